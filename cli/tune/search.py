"""One direction: candidates are checked, timed beside the default, and the fastest is confirmed.

Nothing here knows a GPU: a clock times, candidates come as calls.  Every time of a candidate is
compared with one of the default from the same round, so that a clock that drifts drifts for both.

1. Each candidate is made, its result compared with the default's, and timed once: what is wrong
   or hopeless is timed no more.  A kernel whose likeliest candidate is far off is left at that.
2. Rounds: the default and all that are left, in turn, each after a rest.
3. The same for what follows from the fastest (pairs, orders of work).
4. The fastest and the default once more: only these times decide, as the fastest of many is also
   the luckiest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from cmask.cli.bench.measure import (
    PAUSE_S,
    RESTED_MS,
    Clock,
    Contender,
    Runner,
    Say,
    Verdict,
    short,
    why_not,
)
from cmask.cli.tune.space import Candidate
from cmask.cli.tune.tried import LEAST_ROUNDS, Found, Tried, begun, ratio_of

HOPELESS = 1.3  # times as long as the default at first sight
GIVE_UP = 1.5  # the same of a kernel's likeliest candidate: its others are not tried


class Bench(Protocol):
    """One direction of a mask, ready to be measured."""

    def make(self, candidate: Candidate) -> Contender:
        """A candidate as a call."""

    def check(self, contender: Contender) -> Verdict:
        """Its result: the first one's by itself, later ones by comparison with it."""

    def follow_ups(self, fastest: Sequence[Candidate]) -> list[Candidate]:
        """What else to try; the fastest first, the default among them."""


class _Stopped(Exception):
    """Nothing more can be measured; the message says why."""


def search(
    bench: Bench,
    candidates: Sequence[Candidate],
    clock: Clock,
    *,
    rounds: int,
    deadline: float,
    say: Say,
) -> Found:
    """See the head of this file.

    candidates: the default, then the others.
    deadline: by `time.monotonic`; no candidate is begun that would end behind it if it took as
        long as the longest before.
    """
    found = _Search(bench, clock, rounds, deadline, say)
    stopped, is_interrupted = "", False
    try:
        found.run(candidates)
    except KeyboardInterrupt:
        stopped, is_interrupted = "interrupted", True
    except _Stopped as error:
        stopped = str(error)
    for each in found.tried:
        each.release()
        if each.status == "not tried" and not each.detail:
            each.detail = stopped
    return Found(tuple(found.tried), stopped, is_interrupted)


class _Search:
    """The state of a search: all that were tried so far, the default first."""

    def __init__(
        self, bench: Bench, clock: Clock, rounds: int, deadline: float, say: Callable[[str], None]
    ) -> None:
        self._bench, self._clock, self._say = bench, clock, say
        self._rounds, self._deadline = max(LEAST_ROUNDS, rounds), deadline
        self._longest = 0.0  # that a candidate took [s], its compiler above all
        self._given_up: dict[str, str] = {}  # of each kernel that was timed, why; empty if not
        self.tried: list[Tried] = []

    def run(self, candidates: Sequence[Candidate]) -> None:
        self.tried = [begun(candidate) for candidate in candidates]
        default = self.tried[0]
        self._prepare(default)
        if default.runner is None:
            raise _Stopped(f"the default is {default.status}")
        self._given_up[default.candidate.kernel] = ""
        self._try(self.tried[1:])
        known = {each.candidate for each in self.tried}
        further = self._bench.follow_ups([each.candidate for each in self._fastest()])
        more = [begun(candidate) for candidate in further if candidate not in known]
        self.tried += more
        self._try(more)
        self._confirm()

    def _try(self, tried: Sequence[Tried]) -> None:
        for each in tried:
            if each.status != "not tried":
                continue
            begun_at = time.monotonic()
            if begun_at + self._longest > self._deadline:
                each.detail = "no time was left"
                continue
            if self._given_up.get(each.candidate.kernel):
                each.end("slow", self._given_up[each.candidate.kernel])
                continue
            self._prepare(each)
            if each.runner is not None:
                self._look(each)
            self._longest = max(self._longest, time.monotonic() - begun_at)
            self._say(f"  {each.candidate}: {_said(each)}")
        self._take_rounds(tried)
        for each in self._fastest()[1:]:
            if each is not self.tried[0]:
                each.release()

    def _prepare(self, each: Tried) -> None:
        """Make and check a candidate; it has a runner if it is to be timed."""
        try:
            contender = self._bench.make(each.candidate)
            verdict = self._bench.check(contender)
            each.difference = verdict.difference
            if not verdict.is_right:
                each.end("WRONG", verdict.detail)
                return
            self._capture(each, Runner(contender.call, contender.around))
            each.status = "ok"
        except Exception as error:  # whatever compiling and running raises
            each.end(why_not(error), short(error))
            self._recover()

    def _capture(self, each: Tried, eager: Runner) -> None:
        """A graph of it, unless the default has none: both are timed in the same way."""
        default = self.tried[0]
        each.runner, each.mode, each.held = eager, "eager", eager
        if each is default:
            try:
                each.runner, each.mode = self._clock.capture(eager), "graph"
            except Exception:  # whatever is raised while a graph is captured
                self._recover()
        elif default.mode == "graph":
            each.runner, each.mode = self._clock.capture(eager), "graph"

    def _look(self, each: Tried) -> None:
        """A first time of it, beside the default's."""
        self._round([each])
        if each.runner is None:
            return
        ratio, kernel = ratio_of(each), each.candidate.kernel
        if kernel not in self._given_up:
            why = f"{kernel}'s likeliest takes {ratio:.2f} × the default's time"
            self._given_up[kernel] = why if ratio > GIVE_UP else ""
        if ratio > HOPELESS:
            each.end("slow", f"{ratio:.2f} × the default's time at first sight")

    def _take_rounds(self, tried: Sequence[Tried]) -> None:
        for index in range(self._rounds):
            if any(each.runner is not None for each in tried):
                self._round(tried)
                self._say(f"  round {index + 1} of {self._rounds}")

    def _confirm(self) -> None:
        """Time the fastest anew, if it is not the default: only that counts."""
        fastest = self._fastest()[0]
        if fastest is self.tried[0]:
            if len(fastest.times) < LEAST_ROUNDS:  # there was no other to time it with
                self._take_rounds([fastest])
            return
        for index in range(self._rounds):
            if fastest.runner is not None:
                self._round([fastest], confirms=True)
                self._say(f"  confirming {fastest.candidate}: {index + 1} of {self._rounds}")

    def _fastest(self) -> list[Tried]:
        """All that were timed, the default by its ratio of 1."""
        others = [each for each in self.tried[1:] if each.is_known]
        place = {each: ratio_of(each) for each in others}
        return sorted([self.tried[0], *others], key=lambda each: place.get(each, 1.0))

    def _round(self, tried: Sequence[Tried], *, confirms: bool = False) -> None:
        default = self.tried[0]
        base = self._time(default)
        if base is None:
            raise _Stopped(f"the default is {default.status}")
        for each in tried:
            ms = None if each is default else self._time(each)
            if ms is not None:
                (each.confirmed if confirms else each.ratios).append(ms / base)

    def _time(self, each: Tried) -> float | None:
        """None where there is nothing to be timed, or it fails now."""
        if each.runner is None:
            return None
        try:
            self._clock.pause(PAUSE_S)
            ms = self._clock.burst(each.runner, RESTED_MS)
        except Exception as error:  # the others can still be timed
            each.end(why_not(error), short(error))
            self._recover()
            return None
        each.times.append(ms)
        return ms

    def _recover(self) -> None:
        try:
            self._clock.recover()
        except Exception as error:
            raise _Stopped(f"the device is lost: {short(error)}") from None


def _said(each: Tried) -> str:
    if each.status != "ok" or each.ms is None or each.ratio is None:
        return f"{each.status} {each.detail}".rstrip()
    return f"{each.ms:.4f} ms, {each.ratio:.3f} × the default"
