"""One mask: every implementation is made and checked, then all are timed in turn.

Nothing here knows a GPU: a clock times, implementations come as calls.  Whatever an
implementation raises ends up in its own result, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from cmask.cli.bench.rows import Result, Samples
from cmask.cli.bench.settings import CALLS

PAUSE_S = 0.12  # before a rested burst
RESTED_MS = 12.0
SUSTAINED_MS = 120.0  # to warm up, and as long again to be timed

Call = Callable[[], Any]


class NotApplicable(Exception):
    """A peer that does not know the mask; the message says why."""


@dataclass(frozen=True)
class Contender:
    """An implementation, ready to run.

    results   what `call` answers -> tensors that can be compared
    around    what a call must run in
    spelling  how it was told the mask
    """

    call: Call
    results: Callable[[Any], Any] = lambda result: result
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    spelling: str = ""


@dataclass(frozen=True)
class Verdict:
    """What a check found; see `Result`.  Only what `is_right` is timed."""

    is_right: bool = True
    error: float | None = None
    lse_error: float | None = None
    difference: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Entry:
    """A column: how to make it, and how to check what one call answers."""

    name: str
    make: Callable[[], Contender]
    check: Callable[[Contender], Verdict] = lambda contender: Verdict()


@dataclass(frozen=True)
class Runner:
    """A call that can be timed."""

    call: Call
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


class Clock(Protocol):
    """What times calls."""

    def capture(self, runner: Runner) -> Runner:
        """The replay of a CUDA graph of one call; raises where it cannot be captured."""

    def burst(self, runner: Runner, length_ms: float) -> float:
        """Mean time of a call, back to back for about so long [ms]."""

    def host_us(self, runner: Runner) -> float | None:
        """What one call costs the host [µs]; None where that cannot be told."""

    def pause(self, seconds: float) -> None:
        """Let the device rest."""

    def recover(self) -> None:
        """Give back what a failed call held; raises if the device is lost."""


@dataclass
class _Turn:
    """A runner and what was measured of it so far."""

    name: str
    mode: str
    runner: Runner
    rested: list[float] = field(default_factory=list)
    sustained: list[float] = field(default_factory=list)
    fault: str = ""

    @property
    def samples(self) -> Samples:
        return Samples(tuple(self.rested), tuple(self.sustained))


@dataclass(frozen=True)
class Measured:
    """The results, and whether Ctrl-C cut them short."""

    results: tuple[Result, ...]
    is_interrupted: bool = False


Say = Callable[[str], None]


def measure(
    entries: Sequence[Entry],
    clock: Clock,
    *,
    rounds: tuple[int, int],
    say: Say,
    calls: tuple[str, ...] = CALLS,
) -> Measured:
    """Check every entry, then time all that are right; see the head of this file.

    calls: of `CALLS`, which to time; what cannot be captured is timed eagerly all the same.
    """
    results = {entry.name: Result(entry.name, "interrupted") for entry in entries}
    turns: list[_Turn] = []
    is_interrupted = False
    try:
        ready: dict[str, Contender] = {}
        for entry in entries:
            begun = time.monotonic()
            results[entry.name], contender = _prepared(entry, clock)
            if contender is not None:
                ready[entry.name] = contender
            say(_said(results[entry.name], time.monotonic() - begun))
        for name, contender in ready.items():
            results[name] = _add_turns(turns, results[name], contender, clock, calls)
        _take_turns(turns, clock, rounds, say)
    except KeyboardInterrupt:
        is_interrupted = True
    return Measured(tuple(_with_times(r, turns) for r in results.values()), is_interrupted)


def _prepared(entry: Entry, clock: Clock) -> tuple[Result, Contender | None]:
    """The result without times; no contender if it is not to be timed."""
    result = Result(entry.name)
    try:
        contender = entry.make()
        found = entry.check(contender)
    except NotApplicable as error:
        return replace(result, status="–", detail=str(error)), None
    except Exception as error:  # whatever a peer raises
        _recover(clock)
        return replace(result, status=why_not(error), detail=short(error)), None
    result = replace(
        result,
        status="ok" if found.is_right else "WRONG",
        detail=found.detail,
        spelling=contender.spelling,
        error=found.error,
        lse_error=found.lse_error,
        difference=found.difference,
    )
    return result, contender if found.is_right else None


def _said(result: Result, seconds: float) -> str:
    return f"  {result.name}: {result.status} in {seconds:.1f} s {result.detail}".rstrip()


def _add_turns(
    turns: list[_Turn],
    result: Result,
    contender: Contender,
    clock: Clock,
    calls: tuple[str, ...],
) -> Result:
    """Eager calls, and the replay of a graph where it can be captured."""
    eager = Runner(contender.call, contender.around)
    try:
        host_us = clock.host_us(eager)
    except Exception as error:  # a second call may fail where a first did not
        _recover(clock)
        return replace(result, status=why_not(error), detail=short(error))
    no_graph = ""
    if "graph" in calls:
        try:
            turns.append(_Turn(result.name, "graph", clock.capture(eager)))
        except Exception as error:  # whatever a peer raises while it is captured
            _recover(clock)
            no_graph = short(error)
    if "eager" in calls or no_graph:
        turns.append(_Turn(result.name, "eager", eager))
    return replace(result, host_us=host_us, no_graph=no_graph)


def _take_turns(turns: Sequence[_Turn], clock: Clock, rounds: tuple[int, int], say: Say) -> None:
    """Rounds of each regime, every runner once a round."""
    for regime, count in zip(("rested", "sustained"), rounds, strict=True):
        for index in range(count):
            for turn in turns:
                if not turn.fault:
                    _take(turn, regime, clock)
            say(f"  {regime}: round {index + 1} of {count}")


def _take(turn: _Turn, regime: str, clock: Clock) -> None:
    try:
        if regime == "rested":
            clock.pause(PAUSE_S)
            turn.rested.append(clock.burst(turn.runner, RESTED_MS))
        else:
            clock.burst(turn.runner, SUSTAINED_MS)
            turn.sustained.append(clock.burst(turn.runner, SUSTAINED_MS))
    except Exception as error:  # the others can still be timed
        _recover(clock)
        turn.fault = f"{why_not(error)}: {short(error)}"


def _recover(clock: Clock) -> None:
    """A device that is lost is found out by whoever needs it next."""
    try:
        clock.recover()
    except Exception:
        return


def _with_times(result: Result, turns: Sequence[_Turn]) -> Result:
    own = {turn.mode: turn for turn in turns if turn.name == result.name}
    if not own:
        return result
    fault = next((turn.fault for turn in own.values() if turn.fault), "")
    empty = Samples()
    result = replace(
        result,
        graph=own["graph"].samples if "graph" in own else empty,
        eager=own["eager"].samples if "eager" in own else empty,
    )
    if not result.times.rested:
        status, _, detail = fault.partition(": ")
        return replace(result, status=status or "interrupted", detail=detail)
    return replace(result, detail=result.detail or fault)


def why_not(error: BaseException) -> str:
    """Why there is no figure, in a word."""
    if isinstance(error, ImportError):
        return "missing"
    text = f"{type(error).__name__} {error}".lower()
    if "outofmemory" in text or "out of memory" in text or "out of resource" in text:
        return "memory"
    if any(word in text for word in ("not supported", "unsupported", "no available kernel")):
        return "unsupported"
    return "failed"


def short(error: BaseException) -> str:
    """A fault in one line of bounded length."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
