"""Launches that are the same in every bind, done again by one call of the driver.

What the kernels of a bind take, addresses and numbers, is fixed by the plan and its block shapes;
only what lies there changes.  So they are recorded into a CUDA graph once they have run: Triton
takes the host 30 to 50 µs for each, a graph of them all less than one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import triton

from cmask.runtime.derive.sizes import BindError
from cmask.runtime.lasting import lasting

Launch = Callable[[], None]
Recorder = Callable[[Launch], Launch | None]  # None: they cannot be recorded


class Replay:
    """Runs launches, and from the second time on what a recorder made of them."""

    def __init__(self, record: Recorder | None) -> None:
        """record: makes something that does the launches again, without doing them; None: never."""
        self._record = record
        self._key: Hashable = object()  # no caller's
        self._again: Launch | None = None

    def run(self, launch: Launch, key: Hashable, *, plainly: bool) -> None:
        """Do what `launch` does.

        key      what tells different launches apart; the last ones are kept
        plainly  launch, whatever is recorded: a stream that captures takes no other graph
        """
        if plainly or self._record is None or torch.compiler.is_compiling():
            launch()
        elif key != self._key:
            launch()  # kernels are compiled and loaded now, which a capture forbids
            self._key, self._again = key, self._record(launch)
        elif self._again is None:  # it was tried
            launch()
        else:
            self._again()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy records anew: its plan has other addresses."""
        return Replay, (self._record,)


def launch_beside(launches: Sequence[Launch], device: torch.device) -> None:
    """Do launches that do not wait for each other: at the same time where a graph is captured."""
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        for launch in launches:
            launch()
        return
    current = torch.cuda.current_stream()
    sides = [torch.cuda.Stream() for _ in launches[1:]]  # type: ignore[no-untyped-call]
    for side, launch in zip(sides, launches[1:], strict=True):
        side.wait_stream(current)
        with torch.cuda.stream(side):
            launch()
    for launch in launches[:1]:
        launch()
    for side in sides:
        current.wait_stream(side)


def check_kernels_run(device: torch.device) -> None:
    """Raise `BindError` on a CPU without Triton's interpreter."""
    if device.type != "cuda" and not triton.knobs.runtime.interpret:
        raise BindError(
            f"a plan on {device} is bound by Triton's interpreter alone: make it on a GPU, or set "
            "TRITON_INTERPRET=1 before triton is imported"
        )


def recorder_for(device: torch.device) -> Recorder | None:
    """Graphs where kernels are compiled for a GPU, None where they are interpreted."""
    return graph_of if device.type == "cuda" and not triton.knobs.runtime.interpret else None


def graph_of(launch: Launch) -> Launch | None:
    """What replays the launches, on the stream that is current then; None if no capture takes them.

    Waits for nothing: `torch.cuda.graph` would, for the device and for a collection of garbage.
    """
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(current)  # some releases of torch reset numbers that its graphs share
    try:
        # what other threads do meanwhile, NCCL's watchdog for one, is no error
        with lasting(), _no_collection(), torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                launch()
            finally:
                graph.capture_end()
    except RuntimeError:
        return None
    finally:
        current.wait_stream(side)
    again: Launch = graph.replay
    return again


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage is collected within: to free what belongs to the GPU can end a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
