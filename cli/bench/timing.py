"""The clock of a GPU: CUDA events around calls, graphs of one call."""

from __future__ import annotations

import gc
import statistics
import time

import torch

from cmask.cli.bench.measure import Call, Runner

HOST_CALLS = 50
HOST_REPEATS = 5
LONGEST_FOR_HOST_MS = 2.0  # of a call: many of longer ones would fill the queue
LONE_CALLS = 50
GRAPH_CALLS = 10  # in one graph: its launch is shared by them
REPLAYS = 20
FLUSH_BYTES = 256 * 2**20  # several times the L2 of any GPU so far


class GpuClock:
    """Times calls on the current CUDA device.

    cold_l2  overwrite the L2 cache before every call, and leave that out of the time
    stream   where graphs are captured: the one on which backwards were made
    """

    def __init__(self, stream: torch.cuda.Stream, *, cold_l2: bool = False) -> None:
        self._stream = stream
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda") if cold_l2 else None

    def capture(self, runner: Runner) -> Runner:
        """The replay of a graph of one call, after two to warm up."""
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream), runner.around():
            runner.call()
            runner.call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                runner.call()
        graph.replay()
        torch.cuda.synchronize()
        return Runner(graph.replay)

    def burst(self, runner: Runner, length_ms: float) -> float:
        """Mean time of a call [ms]; the number of calls follows from the first one."""
        with runner.around():
            first = self._timed(runner, 1)
            return self._timed(runner, max(1, int(length_ms / max(first, 1e-3))))

    def _timed(self, runner: Runner, count: int) -> float:
        if self._flush is not None:
            return self._timed_cold(runner, count, self._flush)
        begin, end = _event(), _event()
        begin.record()
        for _ in range(count):
            runner.call()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / count

    def _timed_cold(self, runner: Runner, count: int, flush: torch.Tensor) -> float:
        """A pair of events around each call, behind what overwrites the cache."""
        events = [(_event(), _event()) for _ in range(count)]
        for begin, end in events:
            flush.zero_()
            begin.record()
            runner.call()
            end.record()
        torch.cuda.synchronize()
        return sum(float(begin.elapsed_time(end)) for begin, end in events) / count

    def host_us(self, runner: Runner) -> float | None:
        """The best of several means, many calls enqueued without a pause."""
        with runner.around():
            runner.call()
            if self._timed(runner, 1) > LONGEST_FOR_HOST_MS:
                return None
            return min(_enqueue(runner) for _ in range(HOST_REPEATS)) / HOST_CALLS * 1e6

    def pause(self, seconds: float) -> None:
        """Let the device rest."""
        time.sleep(seconds)

    def recover(self) -> None:
        """Give back memory; raises if the device is lost."""
        free()


def _enqueue(runner: Runner) -> float:
    """Time until all calls have returned [s]."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(HOST_CALLS):
        runner.call()
    taken = time.perf_counter() - begun
    torch.cuda.synchronize()
    return taken


def lone_us(call: Call) -> float:
    """Host time of a call while the device has nothing to do: the median [µs]."""
    times = []
    call()
    for _ in range(LONE_CALLS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6


def graph_ms(call: Call) -> float:
    """GPU time of a call that has run before: the median of replays of several in a graph [ms]."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_CALLS):
            call()
    graph.replay()
    events = [(_event(), _event()) for _ in range(REPLAYS)]
    for begin, end in events:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(float(b.elapsed_time(e)) for b, e in events) / GRAPH_CALLS


def free() -> None:
    """Give back what is no longer held; raises if the device is lost."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def is_lost() -> bool:
    """Whether a kernel's fault has made the device useless to this process."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
