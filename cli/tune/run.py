"""Every dtype, head dimension and direction: what is known is kept, whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from cmask.cli.bench.measure import Clock, Say, short, why_not
from cmask.cli.bench.settings import Direction
from cmask.cli.tune.search import Bench, search
from cmask.cli.tune.settings import Settings
from cmask.cli.tune.space import Candidate, candidates_of, default_of
from cmask.cli.tune.tried import Found, begun
from cmask.compiler.configs import SHARED_MEMORY
from cmask.runtime.kernels import choose_kernel
from cmask.runtime.kernels.budget import Budget


class Progress(Protocol):
    """Who is told how far a run is."""

    def start(self, name: str) -> None:
        """The next group."""

    def note(self, text: str) -> None:
        """A step that was made."""


@dataclass(frozen=True)
class Device:
    """A GPU that is here.

    shared_memory  that one program may have [bytes]
    """

    name: str
    architecture: int
    shared_memory: int

    @property
    def target(self) -> str:
        """As artifacts name it."""
        return f"sm_{self.architecture}"


@dataclass(frozen=True)
class Group:
    """One direction of calls of one dtype and head dimension, and what was found.

    inputs  on which, in words
    """

    target: str
    dtype: str
    head_dim: int
    way: Direction
    inputs: str
    found: Found


@dataclass
class Outcome:
    """What a run has so far."""

    groups: list[Group] = field(default_factory=list)
    is_interrupted: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether the shipped configuration was right wherever it was tried."""
        fine = ("ok", "not tried")
        return all(group.found.default.status in fine for group in self.groups)


class Stand(Protocol):
    """Where a mask is measured."""

    @property
    def clock(self) -> Clock:
        """What times calls there."""

    @property
    def device(self) -> Device:
        """The GPU."""

    @property
    def inputs(self) -> str:
        """What is attended, in words."""

    @property
    def forward_shape(self) -> tuple[int, int]:
        """What the cost model has chosen for the Hopper forward."""

    def bench(self, budget: Budget, way: Direction) -> Bench:
        """One direction; raises if there is no room for its inputs."""


def run(
    settings: Settings, stand: Stand, progress: Progress, keep: Callable[[Outcome], None]
) -> Outcome:
    """Search in every group; `keep` is told after each."""
    outcome, deadline = Outcome(), time.monotonic() + settings.budget_s
    device = stand.device
    for budget, way in _groups(settings, device.architecture, device.shared_memory):
        progress.start(f"{way} {budget.dtype} head_dim {budget.head_dim}")
        default, candidates = _space(settings, budget, way, stand.forward_shape)
        if outcome.is_interrupted:
            found = _without([default, *candidates], "interrupted")
        else:
            aim = (settings.rounds, deadline)
            found = _search(stand, budget, way, [default, *candidates], aim, progress.note)
        outcome.is_interrupted |= found.is_interrupted
        outcome.groups.append(_group(device.target, budget, way, stand.inputs, found))
        keep(outcome)
    return outcome


def _search(
    stand: Stand,
    budget: Budget,
    way: Direction,
    candidates: list[Candidate],
    aim: tuple[int, float],
    say: Say,
) -> Found:
    """aim: rounds, and the time after which no candidate is begun."""
    rounds, deadline = aim
    try:
        bench = stand.bench(budget, way)
    except KeyboardInterrupt:
        return _without(candidates, "interrupted", is_interrupted=True)
    except Exception as error:  # no room for the inputs, or the device is lost
        return _without(candidates, f"{why_not(error)}: {short(error)}", status=why_not(error))
    return search(bench, candidates, stand.clock, rounds=rounds, deadline=deadline, say=say)


def survey(settings: Settings, forward_shape: tuple[int, int]) -> Outcome:
    """Without a GPU: what would be tried on each target, and what ships for it."""
    outcome = Outcome()
    for target in settings.targets:
        architecture = int(target.removeprefix("sm_"))
        for budget, way in _groups(settings, architecture, SHARED_MEMORY[target]):
            default, candidates = _space(settings, budget, way, forward_shape)
            found = _without([default, *candidates], "there is no such GPU here")
            outcome.groups.append(_group(target, budget, way, "", found))
    return outcome


def _groups(
    settings: Settings, architecture: int, shared_memory: int
) -> Iterator[tuple[Budget, Direction]]:
    for dtype in settings.dtypes:
        for head_dim in settings.head_dims:
            for way in settings.directions:
                yield (
                    Budget(
                        dtype=dtype,
                        head_dim=head_dim,
                        v_head_dim=head_dim,
                        shared_memory_limit=shared_memory,
                        architecture=architecture,
                    ),
                    way,
                )


def _space(
    settings: Settings, budget: Budget, way: Direction, forward_shape: tuple[int, int]
) -> tuple[Candidate, list[Candidate]]:
    """The default, and all others."""
    capability = divmod(budget.architecture, 10)
    kernel = choose_kernel("cuda", capability, budget.dtype, budget.head_dim) or "triton"
    default = default_of(way, budget, kernel, forward_shape)
    return default, candidates_of(way, budget, settings.kernels, default)


def _without(
    candidates: list[Candidate],
    why: str,
    *,
    status: str = "not tried",
    is_interrupted: bool = False,
) -> Found:
    """Nothing was measured, for one reason."""
    tried = [begun(candidate) for candidate in candidates]
    for each in tried:
        if each.status == "not tried":
            each.detail = why
    tried[0].status = status
    return Found(tuple(tried), why, is_interrupted)


def _group(target: str, budget: Budget, way: Direction, inputs: str, found: Found) -> Group:
    return Group(target, budget.dtype, budget.head_dim, way, inputs, found)
