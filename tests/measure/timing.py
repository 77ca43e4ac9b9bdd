"""Two regimes of a GPU that is limited by power, all implementations in turn.

rested     bursts of 12 ms after pauses of 0.12 s
sustained  120 ms to warm up, then 120 ms
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

PAUSE_S = 0.12
RESTED_MS = 12.0
SUSTAINED_MS = 120.0
HOST_CALLS = 200
HOST_REPEATS = 10

Call = Callable[[], Any]


@dataclass(frozen=True)
class Runner:
    """A call that can be timed.

    mode    "graph", or "eager" where a CUDA graph could not be captured
    around  what a call must run in
    """

    call: Call
    mode: str
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass(frozen=True)
class Samples:
    """Time of one call in each round [ms]."""

    rested: tuple[float, ...] = ()
    sustained: tuple[float, ...] = ()


@dataclass(frozen=True)
class HostTime:
    """Time of one call on the host, medians [µs].

    enqueued  until the call returns
    drained   until the GPU is done; well above `enqueued`, the queue may have been full
    """

    enqueued_us: float
    drained_us: float


def capture(call: Call, around: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Runner:
    """The replay of a CUDA graph of one call; the call itself where it cannot be captured."""
    with around():
        call()
        call()
        torch.cuda.synchronize()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            graph.replay()
            torch.cuda.synchronize()
        except Exception:  # whatever a peer raises while it is captured
            torch.cuda.synchronize()
            return Runner(call, "eager", around)
    return Runner(graph.replay, "graph")


def interleaved(
    runners: Mapping[str, Runner], rounds: tuple[int, int], after_each: Callable[[], None]
) -> dict[str, Samples]:
    """Rounds of each regime, every implementation once a round; `after_each`: of its turns."""
    rested: dict[str, list[float]] = {name: [] for name in runners}
    sustained: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds[0]):
        for name, runner in runners.items():
            rested[name].append(_rested(runner))
            after_each()
    for _ in range(rounds[1]):
        for name, runner in runners.items():
            burst(runner, SUSTAINED_MS)
            sustained[name].append(burst(runner, SUSTAINED_MS))
            after_each()
    return {n: Samples(tuple(rested[n]), tuple(sustained[n])) for n in runners}


def _rested(runner: Runner) -> float:
    time.sleep(PAUSE_S)
    return burst(runner, RESTED_MS)


def burst(runner: Runner, length_ms: float) -> float:
    """Mean time of a call, back to back for about `length_ms` [ms]."""
    begin, end = _event(), _event()
    with runner.around():
        begin.record()
        runner.call()
        end.record()
        torch.cuda.synchronize()
        count = max(1, int(length_ms / max(begin.elapsed_time(end), 1e-3)))
        begin.record()
        for _ in range(count):
            runner.call()
        end.record()
        torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / count


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def host_time(runner: Runner) -> HostTime:
    """What a call costs the host, many enqueued without a pause."""
    enqueued, drained = [], []
    with runner.around():
        for _ in range(HOST_REPEATS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(HOST_CALLS):
                runner.call()
            enqueued.append(time.perf_counter() - start)
            torch.cuda.synchronize()
            drained.append(time.perf_counter() - start)
    per_call = 1e6 / HOST_CALLS
    return HostTime(statistics.median(enqueued) * per_call, statistics.median(drained) * per_call)
