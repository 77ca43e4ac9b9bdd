"""All masks, one after the other: what was measured is printed and kept, whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from cmask.cli.bench.measure import Clock, Entry, measure, short, why_not
from cmask.cli.bench.progress import Reporter
from cmask.cli.bench.rows import CEILING, Binding, Group, Result, count
from cmask.cli.bench.settings import OURS, Direction, Settings


class Asked(Protocol):
    """What is asked of a case here."""

    @property
    def name(self) -> str:
        """Of the mask."""

    @property
    def seq(self) -> int:
        """[tokens]."""


class Bench(Protocol):
    """One mask, ready to be measured."""

    def group(self, direction: Direction) -> Group:
        """What is known before anything is timed."""

    def entries(self, direction: Direction) -> list[Entry]:
        """The columns, the dense ceiling among them."""

    def binding(self) -> Binding:
        """What it costs to make the mask known."""


C = TypeVar("C", bound=Asked)
C_contra = TypeVar("C_contra", bound=Asked, contravariant=True)


class Stand(Protocol[C_contra]):
    """Where masks are measured."""

    @property
    def clock(self) -> Clock:
        """What times calls there."""

    def prepare(self, case: C_contra) -> Bench:
        """A case with its inputs; raises if there is no room for them."""

    def state(self) -> str:
        """Clock, power and temperature now."""

    def is_lost(self) -> bool:
        """Whether nothing more can be measured."""


@dataclass
class Outcome:
    """What a run has so far.

    left_out  masks for which no time was left, or no device
    """

    groups: list[Group] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    is_interrupted: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether cmask was right wherever it was measured."""
        fine = ("ok", "interrupted")
        return all(group.ours is None or group.ours.status in fine for group in self.groups)


def run(
    cases: Sequence[C],
    settings: Settings,
    stand: Stand[C],
    reporter: Reporter,
    keep: Callable[[Outcome], None],
) -> Outcome:
    """Measure every case that the budget allows; `keep` is told after each direction."""
    outcome, begun = Outcome(), time.monotonic()
    for case in cases:
        is_late = time.monotonic() - begun > settings.budget_s
        if outcome.is_interrupted or is_late or stand.is_lost():
            outcome.left_out.append(f"{case.name} {count(case.seq)}")
            continue
        try:
            _measure_case(case, settings, stand, reporter, outcome, keep)
        except KeyboardInterrupt:
            outcome.is_interrupted = True
        keep(outcome)
    return outcome


def _measure_case(
    case: C,
    settings: Settings,
    stand: Stand[C],
    reporter: Reporter,
    outcome: Outcome,
    keep: Callable[[Outcome], None],
) -> None:
    reporter.start(f"{case.name} {count(case.seq)}")
    try:
        bench = stand.prepare(case)
    except Exception as error:  # no room for the inputs: other masks are still worth measuring
        outcome.groups.append(_without(case, settings, error))
        reporter.show(outcome.groups[-1])
        return
    for direction in settings.directions:
        if not outcome.is_interrupted:
            group = _measure(bench, direction, settings, stand, reporter, outcome)
            if direction == settings.directions[0] and not outcome.is_interrupted:
                group = _with_binding(group, bench, reporter)
            outcome.groups.append(group)
            reporter.show(group)
            keep(outcome)


def _measure(
    bench: Bench,
    direction: Direction,
    settings: Settings,
    stand: Stand[C],
    reporter: Reporter,
    outcome: Outcome,
) -> Group:
    group, before = bench.group(direction), stand.state()
    found = measure(
        bench.entries(direction),
        stand.clock,
        rounds=settings.rounds,
        say=reporter.note,
        calls=settings.calls,
    )
    outcome.is_interrupted = found.is_interrupted
    return replace(
        group,
        results=tuple(result for result in found.results if result.name != CEILING),
        ceiling=next((result for result in found.results if result.name == CEILING), None),
        before=before,
        after=stand.state(),
    )


def _with_binding(group: Group, bench: Bench, reporter: Reporter) -> Group:
    """The same with the time to bind; without, where that fails."""
    try:
        reporter.note("  binding")
        return replace(group, binding=bench.binding())
    except Exception as error:  # the times are worth keeping
        reporter.note(f"  binding {why_not(error)}: {short(error)}")
        return group


def _without(case: Asked, settings: Settings, error: Exception) -> Group:
    """A mask that could not be prepared."""
    result = Result(OURS, why_not(error), short(error))
    direction, batch = settings.directions[0], max(1, settings.tokens // case.seq)
    shape = (settings.heads, settings.dims)
    return Group(case.name, direction, case.seq, batch, *shape, 0, 0.0, 0.0, results=(result,))
