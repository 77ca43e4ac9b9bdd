"""The search with a clock and candidates that need no GPU."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import pytest

from cmask.cli.bench.measure import Contender, Runner, Verdict
from cmask.cli.tune.report import verdict
from cmask.cli.tune.search import search
from cmask.cli.tune.space import Candidate
from cmask.cli.tune.tried import Found, Tried
from cmask.runtime.kernels.config import KernelConfig


def candidate(name: int, reason: str = "") -> Candidate:
    """One that is told from others by a number; from 50 on, of another kernel."""
    config = KernelConfig(
        direction="forward",
        block_m=name,
        block_n=64,
        num_warps=4,
        num_stages=2,
        kernel="triton" if name < 50 else "gluon",
    )
    return Candidate((config,), reason)


LATER = (7, 8)  # follow-ups
Times = float | Sequence[float] | BaseException


class FakeClock:
    """A call answers its own time [ms]; a graph takes as long."""

    def __init__(self, *, no_graphs: Sequence[int] = (), lost_after: int = 10**6) -> None:
        self.bursts: list[float] = []
        self.recoveries = 0
        self._no_graphs, self._lost_after = no_graphs, lost_after

    def capture(self, runner: Runner) -> Runner:
        name = runner.call.name  # type: ignore[attr-defined]
        if name in self._no_graphs:
            raise RuntimeError("operation not permitted when stream is capturing")
        return runner

    def burst(self, runner: Runner, length_ms: float) -> float:
        ms = float(runner.call())
        self.bursts.append(ms)
        return ms

    def host_us(self, runner: Runner) -> float | None:
        return None

    def pause(self, seconds: float) -> None:
        pass

    def recover(self) -> None:
        self.recoveries += 1
        if self.recoveries > self._lost_after:
            raise RuntimeError("an illegal memory access was encountered")


class Call:
    """Answers times one after the other, the last one for ever; raises what is no time."""

    def __init__(self, name: int, times: Times) -> None:
        self.name = name
        listed = times if isinstance(times, Sequence) else (times,)
        self._times: Iterator[Any] = chain(listed, repeat(listed[-1]))

    def __call__(self) -> float:
        answer = next(self._times)
        if isinstance(answer, BaseException):
            raise answer
        return float(answer)


@dataclass
class FakeBench:
    """Candidates by their numbers: their times, or what is raised when they are made.

    wrong   those whose result differs
    more    what is to be tried after the first rounds
    """

    times: dict[int, Times]
    wrong: Sequence[int] = ()
    more: Sequence[int] = ()
    made: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def make(self, candidate: Candidate) -> Contender:
        name = candidate.configs[0].block_m
        self.made.append(name)
        times = self.times[name]
        if isinstance(times, BaseException):
            raise times
        return Contender(Call(name, times))

    def check(self, contender: Contender) -> Verdict:
        name = contender.call.name  # type: ignore[attr-defined]
        if name in self.wrong:
            return Verdict(False, difference=0.5, detail="a row of O differs")
        return Verdict(difference=0.001)

    def follow_ups(self, fastest: Sequence[Candidate]) -> list[Candidate]:
        self.asked = [each.configs[0].block_m for each in fastest]
        return [candidate(name) for name in self.more]


def found_by(
    bench: FakeBench,
    clock: FakeClock | None = None,
    *,
    unfit: Sequence[int] = (),
    deadline: float = float("inf"),
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Found, dict[int, Tried]]:
    """What a search finds, and each candidate by its number; 0 is the default."""
    names = [name for name in bench.times if name not in LATER]
    candidates = [candidate(name, "too large" if name in unfit else "") for name in names]
    found = search(bench, candidates, clock or FakeClock(), rounds=4, deadline=deadline, say=say)
    return found, {each.candidate.configs[0].block_m: each for each in found.tried}


def test_the_fastest_wins_after_it_is_confirmed() -> None:
    found, tried = found_by(FakeBench({0: 1.0, 1: 0.9, 2: 0.95, 3: 1.1}))
    assert found.winner is tried[1]
    assert tried[1].confirmed == [0.9] * 4
    assert tried[2].confirmed == []
    assert (tried[1].ms, tried[1].ratio, tried[1].difference) == (0.9, 0.9, 0.001)
    assert tried[3].ratio == pytest.approx(1.1)
    assert verdict(found).startswith("1.111 × as fast as the default: 1 × 64")


@pytest.mark.parametrize("ms", [0.995, 1.0, 1.2])
def test_the_default_stays_unless_it_is_beaten_by_more_than_the_noise(ms: float) -> None:
    found, tried = found_by(FakeBench({0: 1.0, 1: ms}))
    assert found.winner is found.default is tried[0]
    assert verdict(found).startswith("the default stays")


def test_a_gain_within_the_spread_is_none() -> None:
    """Ratios of 0.85 and 1.05: their median is below 1, their distance from it larger."""
    found, _ = found_by(FakeBench({0: 1.0, 1: [0.85, 1.05] * 20}))
    assert found.winner is found.default


def test_who_was_only_lucky_is_not_confirmed() -> None:
    lucky = [0.9] * 5 + [1.0]
    found, tried = found_by(FakeBench({0: 1.0, 1: lucky, 2: 0.95}))
    assert tried[1].confirmed == [1.0] * 4
    assert found.winner is found.default


def test_a_drifting_clock_drifts_for_both() -> None:
    """The default's times and a candidate's double half-way: the ratio stays."""
    found, tried = found_by(FakeBench({0: [1.0] * 4 + [2.0], 1: [0.9] * 3 + [1.8]}))
    assert tried[1].ratio == 0.9
    assert found.winner is tried[1]


def test_a_wrong_candidate_is_reported_and_never_timed() -> None:
    clock = FakeClock()
    found, tried = found_by(FakeBench({0: 1.0, 1: 0.5, 2: 0.9}, wrong=[1]), clock)
    assert (tried[1].status, tried[1].detail, tried[1].difference) == (
        "WRONG", "a row of O differs", 0.5,
    )  # fmt: skip
    assert 0.5 not in clock.bursts
    assert found.winner is tried[2]


def test_a_failing_candidate_is_reported_and_the_others_go_on() -> None:
    clock = FakeClock()
    errors = {
        1: RuntimeError("out of resource: shared memory"),
        2: RuntimeError("PassManager::run failed"),
        3: [0.9, 0.9, RuntimeError("an illegal memory access was encountered")],
    }
    found, tried = found_by(FakeBench({0: 1.0, **errors, 4: 0.95}), clock)  # type: ignore[dict-item]
    assert [tried[name].status for name in (1, 2, 3)] == ["memory", "failed", "failed"]
    assert "PassManager" in tried[2].detail
    assert clock.recoveries == 3
    assert found.winner is tried[4]


def test_a_device_that_is_lost_ends_the_search() -> None:
    clock = FakeClock(lost_after=0)
    found, tried = found_by(FakeBench({0: 1.0, 1: RuntimeError("illegal"), 2: 0.9}), clock)
    assert "the device is lost" in found.stopped
    assert (tried[2].status, tried[2].detail) == ("not tried", found.stopped)
    assert found.winner is None


def test_what_does_not_fit_is_not_even_made() -> None:
    bench = FakeBench({0: 1.0, 1: 0.5})
    _, tried = found_by(bench, unfit=[1])
    assert bench.made == [0]
    assert (tried[1].status, tried[1].detail) == ("does not fit", "too large")


def test_a_hopeless_candidate_is_timed_once() -> None:
    clock = FakeClock()
    _, tried = found_by(FakeBench({0: 1.0, 1: 1.5, 2: 1.25}), clock)
    assert (tried[1].status, tried[1].times) == ("slow", [1.5])
    assert "1.50 × the default's" in tried[1].detail
    assert tried[2].times == [1.25] * 5


def test_a_kernel_that_is_far_off_is_left_at_its_likeliest_candidate() -> None:
    bench = FakeBench({0: 1.0, 1: 1.6, 2: 0.95, 50: 1.6, 51: 0.5, 52: 0.5})
    found, tried = found_by(bench)
    assert bench.made == [0, 1, 2, 50]
    assert (tried[51].status, tried[52].status) == ("slow", "slow")
    assert tried[52].detail == "gluon's likeliest takes 1.60 × the default's time"
    assert found.winner is tried[2], "the default's own kernel goes on"
    bench = FakeBench({0: 1.0, 50: 1.4, 51: 0.5})
    assert found_by(bench)[0].winner is not None
    assert bench.made == [0, 50, 51]


@dataclass
class Forgetful(FakeBench):
    """Keeps no call that it makes, only whether others do."""

    calls: list[weakref.ref[Any]] = field(default_factory=list)

    def make(self, candidate: Candidate) -> Contender:
        contender = super().make(candidate)
        self.calls.append(weakref.ref(contender.call))
        return contender

    @property
    def held(self) -> list[bool]:
        return [reference() is not None for reference in self.calls]


def test_calls_are_held_while_their_graphs_are_timed_and_no_longer() -> None:
    bench, held = Forgetful({0: 1.0, 1: 0.9}), []

    class Replaying(FakeClock):
        def capture(self, runner: Runner) -> Runner:
            ms = runner.call()
            return Runner(lambda: ms)

        def burst(self, runner: Runner, length_ms: float) -> float:
            held.append(bench.held)
            return super().burst(runner, length_ms)

    found_by(bench, Replaying())
    assert held == [[True, True]] * len(held)
    assert bench.held == [False, False]


def test_candidates_take_turns_with_the_default() -> None:
    clock = FakeClock()
    found_by(FakeBench({0: 1.0, 1: 0.9, 2: 0.95}), clock)
    looks, a_round, a_confirmation = [1.0, 0.9, 1.0, 0.95], [1.0, 0.9, 0.95], [1.0, 0.9]
    assert clock.bursts == looks + a_round * 4 + a_confirmation * 4


def test_what_follows_from_the_fastest_is_tried_too() -> None:
    bench = FakeBench({0: 1.0, 1: 0.9, 2: 1.1, 7: 0.8}, more=[7, 1])
    found, tried = found_by(bench)
    assert bench.asked == [1, 0, 2]
    assert bench.made == [0, 1, 2, 7], "what was tried is not tried again"
    assert found.winner is tried[7]


def test_without_others_the_default_is_timed_alone() -> None:
    found, tried = found_by(FakeBench({0: 1.0, 1: 0.9}), unfit=[1])
    assert found.winner is tried[0]
    assert tried[0].times == [1.0] * 4


def test_both_are_timed_in_the_same_way() -> None:
    found, tried = found_by(FakeBench({0: 1.0, 1: 0.9}), FakeClock(no_graphs=[0]))
    assert (tried[0].mode, tried[1].mode) == ("eager", "eager")
    assert found.winner is tried[1]
    found, tried = found_by(FakeBench({0: 1.0, 1: 0.9}), FakeClock(no_graphs=[1]))
    assert (tried[0].mode, tried[1].status) == ("graph", "failed")
    assert "capturing" in tried[1].detail
    assert found.winner is tried[0]


@pytest.mark.parametrize("times", [RuntimeError("no"), [RuntimeError("no")]])
def test_nothing_is_chosen_where_the_default_fails(times: Times) -> None:
    found, tried = found_by(FakeBench({0: times, 1: 0.5}))
    assert found.winner is None
    assert found.default.status == "failed"
    assert tried[1].status in ("not tried", "ok")
    assert verdict(found).startswith("not measured (RuntimeError: no)")


def test_nothing_is_chosen_where_the_default_is_wrong() -> None:
    bench = FakeBench({0: 1.0, 1: 0.5}, wrong=[0])
    found, _ = found_by(bench)
    assert (found.winner, found.default.status, bench.made) == (None, "WRONG", [0])


def test_no_candidate_is_begun_after_the_deadline() -> None:
    found, tried = found_by(FakeBench({0: 1.0, 1: 0.5}), deadline=time.monotonic() - 1)
    assert (tried[1].status, tried[1].detail) == ("not tried", "no time was left")
    assert found.winner is tried[0]


def test_no_candidate_is_begun_that_would_end_behind_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compiler takes long: with 50 s to spend, a search went on for 75."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bench = FakeBench({0: 1.0, 1: 0.9, 2: 0.8, 3: 0.7})
    make = bench.make

    def slowly(candidate: Candidate) -> Contender:
        now[0] += 20.0
        return make(candidate)

    monkeypatch.setattr(bench, "make", slowly)
    found, tried = found_by(bench, deadline=70.0)
    assert bench.made == [0, 1, 2]
    assert (tried[3].status, tried[3].detail) == ("not tried", "no time was left")
    assert found.winner is tried[2]


class Interrupting(FakeClock):
    """Ctrl-C after so many bursts."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after

    def burst(self, runner: Runner, length_ms: float) -> float:
        if len(self.bursts) >= self._after:
            raise KeyboardInterrupt
        return super().burst(runner, length_ms)


def test_ctrl_c_keeps_what_is_known() -> None:
    """Two looks of 2, rounds of 3, confirmations of 2."""
    times: dict[int, Times] = {0: 1.0, 1: 0.9, 2: 0.95}
    for after, winner in ((0, None), (3, None), (8, None), (9, 1), (16, 1), (19, 1)):
        found, tried = found_by(FakeBench(times), Interrupting(after))
        assert found.is_interrupted
        expected = None if winner is None else tried[winner]
        known = found.winner if found.winner is not found.default else None
        assert known is expected, after
    found, tried = found_by(FakeBench({0: 1.0, 1: KeyboardInterrupt(), 2: 0.9}))
    assert (found.is_interrupted, found.winner) == (True, None)
    assert tried[2].detail == "interrupted"


def test_progress_is_told_for_each_candidate_and_round() -> None:
    said: list[str] = []
    found_by(FakeBench({0: 1.0, 1: 0.9, 2: RuntimeError("no")}), say=said.append)
    assert said[0].endswith("0.9000 ms, 0.900 × the default")
    assert said[1].endswith("failed RuntimeError: no")
    assert said[2:6] == [f"  round {n} of 4" for n in (1, 2, 3, 4)]
    assert "confirming 1 × 64" in said[6]
