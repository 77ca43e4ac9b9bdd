"""The harness with a clock, peers and a stand that need no GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from cmask.cli.bench.measure import (
    RESTED_MS,
    SUSTAINED_MS,
    Contender,
    Entry,
    Measured,
    NotApplicable,
    Runner,
    Verdict,
    measure,
    why_not,
)
from cmask.cli.bench.progress import Reporter
from cmask.cli.bench.rows import Binding, Group
from cmask.cli.bench.run import Outcome, run
from cmask.cli.bench.settings import DIRECTIONS, Direction, Settings

Column = tuple[Callable[[], Contender], Callable[[Contender], Verdict]]


class FakeClock:
    """Says of each call the times that it answers itself, and keeps who was timed in which order.

    A call answers its time [ms]; as a graph it takes a tenth less.
    """

    def __init__(self, *, unfit_for_graphs: Sequence[float] = ()) -> None:
        self.bursts: list[tuple[float, float]] = []
        self.pauses = 0
        self.recoveries = 0
        self._unfit = set(unfit_for_graphs)

    def capture(self, runner: Runner) -> Runner:
        ms = runner.call()
        if ms in self._unfit:
            raise RuntimeError("operation not permitted when stream is capturing")
        return Runner(lambda: 0.9 * runner.call())

    def burst(self, runner: Runner, length_ms: float) -> float:
        with runner.around():
            ms = float(runner.call())
        self.bursts.append((ms, length_ms))
        return ms

    def host_us(self, runner: Runner) -> float | None:
        return 1e3 * float(runner.call())

    def pause(self, seconds: float) -> None:
        self.pauses += 1

    def recover(self) -> None:
        self.recoveries += 1


def takes(ms: float, **verdict: Any) -> Column:
    """An implementation that takes so long, and what a check finds of it."""
    found = Verdict(**verdict)
    return (lambda: Contender(lambda: ms, spelling="as a number")), (lambda contender: found)


def raises(error: BaseException) -> Column:
    """An implementation that cannot be made."""

    def make() -> Contender:
        raise error

    return make, lambda contender: Verdict()


@dataclass
class FakeBench:
    """One mask whose columns are given."""

    mask: str
    seq: int
    columns: dict[str, Column]

    def group(self, direction: Direction) -> Group:
        return Group(self.mask, direction, self.seq, 2, (64, 8), (128, 128), 10**6, 0.5, 1e12)

    def entries(self, direction: Direction) -> list[Entry]:
        return [Entry(name, *column) for name, column in self.columns.items()]

    def binding(self) -> Binding:
        return Binding(1.5, 2**20, 4096, eager_why="memory: all of it", compiled_ms=0.5)


@dataclass
class FakeStand:
    """Prepares what it is given; an exception instead of columns is raised."""

    columns: dict[str, Any]
    clock: FakeClock = field(default_factory=FakeClock)
    lost_after: int = 10**6
    prepared: list[str] = field(default_factory=list)

    def prepare(self, case: Any) -> FakeBench:
        self.prepared.append(case.name)
        columns = self.columns[case.name]
        if isinstance(columns, BaseException):
            raise columns
        return FakeBench(case.name, case.seq, columns)

    def state(self) -> str:
        return "1980 MHz, 300.00 W, 40"

    def is_lost(self) -> bool:
        return len(self.prepared) >= self.lost_after


@dataclass(frozen=True)
class FakeCase:
    """A name and a length."""

    name: str
    seq: int


def _measure(entries: dict[str, Column], clock: FakeClock | None = None) -> Measured:
    listed = [Entry(name, *column) for name, column in entries.items()]
    return measure(listed, clock or FakeClock(), rounds=(3, 2), say=lambda text: None)


def test_every_implementation_is_timed_in_turn_in_both_regimes_and_modes() -> None:
    clock = FakeClock()
    ours, theirs = _measure({"cmask": takes(1.0), "flex": takes(2.0)}, clock).results
    assert (ours.graph.rested, ours.graph.sustained) == ((0.9,) * 3, (0.9,) * 2)
    assert (theirs.eager.rested, theirs.eager.sustained) == ((2.0,) * 3, (2.0,) * 2)
    a_round = [0.9, 1.0, 1.8, 2.0]
    assert clock.bursts[:12] == [(ms, RESTED_MS) for ms in a_round * 3]
    warmed_up = [ms for ms in a_round for _ in range(2)]
    assert clock.bursts[12:] == [(ms, SUSTAINED_MS) for ms in warmed_up * 2]
    assert clock.pauses == 12
    assert ours.host_us == 1000.0


def test_what_cannot_be_captured_is_timed_eagerly_and_says_so() -> None:
    clock = FakeClock(unfit_for_graphs=[2.0])
    ours, theirs = _measure({"cmask": takes(1.0), "fa4": takes(2.0)}, clock).results
    assert (ours.mode, theirs.mode) == ("graph", "eager")
    assert theirs.is_ok
    assert theirs.times.rested == (2.0, 2.0, 2.0)
    assert "capturing" in theirs.no_graph
    assert clock.recoveries == 1


@pytest.mark.parametrize(("calls", "timed"), [(("graph",), {0.9, 2.0}), (("eager",), {1.0, 2.0})])
def test_only_the_calls_that_are_asked_for_are_timed(
    calls: tuple[str, ...], timed: set[float]
) -> None:
    """But what cannot be captured has no other."""
    clock = FakeClock(unfit_for_graphs=[2.0])
    listed = [Entry("cmask", *takes(1.0)), Entry("fa4", *takes(2.0))]
    found = measure(listed, clock, rounds=(1, 1), say=lambda text: None, calls=calls)
    assert {ms for ms, _ in clock.bursts} == timed
    assert all(result.is_ok and result.times.rested for result in found.results)


def test_a_wrong_result_is_never_timed() -> None:
    clock = FakeClock()
    wrong = takes(1.0, is_right=False, error=0.5, detail="errors dQ 0.5")
    found, _ = _measure({"cmask": wrong, "flex": takes(2.0)}, clock).results
    assert (found.status, found.error, found.detail) == ("WRONG", 0.5, "errors dQ 0.5")
    assert not found.times.rested
    assert {ms for ms, _ in clock.bursts} == {1.8, 2.0}


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (ImportError("no flash_attn"), "missing"),
        (RuntimeError("CUDA out of memory. Tried to allocate 40 GiB"), "memory"),
        (RuntimeError("out of resource: shared memory"), "memory"),
        (NotImplementedError("head_dim 192 is not supported"), "unsupported"),
        (RuntimeError("No available kernel. Aborting execution."), "unsupported"),
        (NotApplicable("rows are no intervals"), "–"),
        (ValueError("anything\nelse"), "failed"),
    ],
)
def test_the_run_goes_on_and_a_word_says_why(error: Exception, word: str) -> None:
    failed, fine = _measure({"fa4": raises(error), "flex": takes(1.0)}).results
    assert failed.status == word
    assert str(error).split("\n")[0] in failed.detail
    assert "\n" not in failed.detail
    assert fine.is_ok
    assert len(fine.times.rested) == 3


def test_torchs_own_error_is_memory() -> None:
    torch = pytest.importorskip("torch")
    assert why_not(torch.OutOfMemoryError("Tried to allocate")) == "memory"


def test_one_that_fails_while_it_is_timed_keeps_what_it_has() -> None:
    """Call 1 is the host's time, 2 the capture's; a graph and the plain call have turns of 4, 5."""
    calls = iter(range(1, 100))

    def call() -> float:
        if next(calls) > 6:
            raise RuntimeError("an illegal memory access was encountered")
        return 1.0

    entries = {"fa4": (lambda: Contender(call), takes(1.0)[1]), "flex": takes(2.0)}
    failed, fine = _measure(entries).results
    assert failed.graph.rested == (0.9, 0.9)
    assert "illegal memory access" in failed.detail
    assert len(fine.graph.sustained) == 2


@pytest.mark.parametrize("after", [0, 1, 5, 9])
def test_ctrl_c_keeps_what_was_measured(after: int) -> None:
    class Interrupting(FakeClock):
        def burst(self, *arguments: object) -> float:
            if len(self.bursts) == after:
                raise KeyboardInterrupt
            return super().burst(*arguments)  # type: ignore[arg-type]

    found = _measure({"cmask": takes(1.0), "flex": takes(2.0)}, Interrupting())
    ours, theirs = found.results
    assert found.is_interrupted
    assert len(ours.graph.rested) == min(3, (after + 3) // 4)
    assert ours.status == ("ok" if after else "interrupted")
    assert theirs.status == ("ok" if after > 2 else "interrupted")


def test_ctrl_c_while_a_peer_compiles_keeps_the_columns() -> None:
    found = _measure({"cmask": takes(1.0), "fa4": raises(KeyboardInterrupt())})
    assert found.is_interrupted
    assert [result.name for result in found.results] == ["cmask", "fa4"]
    assert found.results[1].status == "interrupted"


NAMES = ("causal", "window", "hstu")


def _run(stand: FakeStand, **settings: Any) -> tuple[Outcome, list[Group]]:
    """The outcome, and the groups in the order in which they were shown."""
    cases = [FakeCase(name, 4096) for name in stand.columns]
    shown: list[Group] = []
    reporter = Reporter(len(cases), lambda group: shown.append(group) or [])  # type: ignore[func-returns-value]
    given = Settings(rounds=(2, 1), **settings)
    return run(cases, given, stand, reporter, lambda outcome: None), shown


def _fine() -> dict[str, Column]:
    return {"cmask": takes(1.0), "flex": takes(2.0), "matmul": takes(4.0)}


def test_every_mask_is_measured_in_both_directions() -> None:
    outcome, shown = _run(FakeStand({name: _fine() for name in NAMES}))
    assert [(g.mask, g.direction) for g in shown] == [(n, d) for n in NAMES for d in DIRECTIONS]
    assert outcome.groups == shown
    assert outcome.is_sound
    first = shown[0]
    assert [result.name for result in first.results] == ["cmask", "flex"]
    assert first.ceiling is not None
    assert first.ceiling.times.rested == (3.6, 3.6)
    assert first.before == first.after == "1980 MHz, 300.00 W, 40"
    assert first.binding is not None
    assert shown[1].binding is None


def test_a_mask_without_room_does_not_stop_the_others() -> None:
    columns: dict[str, Any] = {name: _fine() for name in NAMES}
    columns["window"] = RuntimeError("CUDA out of memory")
    outcome, _ = _run(FakeStand(columns), directions=("fwd",))
    assert [group.ours.status for group in outcome.groups if group.ours] == ["ok", "memory", "ok"]
    assert not outcome.is_sound


def test_a_wrong_result_of_a_peer_is_not_cmasks_fault() -> None:
    wrong = takes(1.0, is_right=False, error=1.0)
    assert _run(FakeStand({"causal": {**_fine(), "flex": wrong}}))[0].is_sound
    assert not _run(FakeStand({"causal": {**_fine(), "cmask": wrong}}))[0].is_sound


def test_ctrl_c_ends_the_run_and_keeps_it() -> None:
    columns = {name: _fine() for name in NAMES}
    columns["window"]["flex"] = raises(KeyboardInterrupt())
    outcome, shown = _run(FakeStand(columns))
    assert outcome.is_interrupted
    assert outcome.left_out == ["hstu 4k"]
    assert [(g.mask, g.direction) for g in outcome.groups] == [
        ("causal", "fwd"),
        ("causal", "bwd"),
        ("window", "fwd"),
    ]
    assert shown == outcome.groups


def test_what_the_budget_does_not_allow_is_left_out_and_said() -> None:
    outcome, _ = _run(FakeStand({name: _fine() for name in NAMES}), budget_s=-1.0)
    assert outcome.left_out == ["causal 4k", "window 4k", "hstu 4k"]


def test_nothing_more_is_asked_of_a_device_that_is_lost() -> None:
    stand = FakeStand({name: _fine() for name in NAMES}, lost_after=1)
    outcome, _ = _run(stand)
    assert stand.prepared == ["causal"]
    assert outcome.left_out == ["window 4k", "hstu 4k"]
