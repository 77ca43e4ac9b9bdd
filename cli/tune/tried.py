"""A candidate and what is known of it; what a search found."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from cmask.cli.bench.measure import Runner
from cmask.cli.tune.space import Candidate

MARGIN = 0.01  # of the default's time: what a winner must at least gain
LEAST_ROUNDS = 3  # by which a run that was cut short is judged


@dataclass(eq=False)
class Tried:
    """A candidate, and what is known of it.

    status      "ok", or in a word why there is no time
    detail      the same at length
    difference  of its result from the default's
    mode        "graph" or "eager": what was timed
    times       of a call in each round [ms]
    ratios      the same by the default's time in that round
    confirmed   ratios of the last rounds, which decide
    runner      what is timed; None once it is timed no more
    held        the call itself: a graph of it reads tensors that only the call keeps
    """

    candidate: Candidate
    status: str = "not tried"
    detail: str = ""
    difference: float | None = None
    mode: str = ""
    times: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    confirmed: list[float] = field(default_factory=list)
    runner: Runner | None = field(default=None, repr=False)
    held: Runner | None = field(default=None, repr=False)

    @property
    def ms(self) -> float | None:
        """The median time of a call [ms]."""
        return statistics.median(self.times) if self.times else None

    @property
    def _counts(self) -> list[float]:
        """The ratios that count."""
        return self.confirmed if len(self.confirmed) >= LEAST_ROUNDS else self.ratios

    @property
    def ratio(self) -> float | None:
        """By how much it is slower than the default: the median of what counts."""
        return statistics.median(self._counts) if self._counts else None

    @property
    def margin(self) -> float:
        """What it must gain: more than its ratios usually stray from their median."""
        middle = statistics.median(self._counts)
        return max(MARGIN, statistics.median(abs(ratio - middle) for ratio in self._counts))

    @property
    def is_known(self) -> bool:
        """Whether it was right, and timed often enough to be judged."""
        return self.status == "ok" and len(self._counts) >= LEAST_ROUNDS

    def end(self, status: str, detail: str) -> None:
        """Time it no more, for this reason."""
        self.status, self.detail = status, detail
        self.release()

    def release(self) -> None:
        """Give back what it holds of the device."""
        self.runner = self.held = None


@dataclass(frozen=True)
class Found:
    """What a search found; the default comes first.

    stopped  in words, what cut it short; empty if nothing did
    """

    tried: tuple[Tried, ...]
    stopped: str = ""
    is_interrupted: bool = False

    @property
    def default(self) -> Tried:
        """What the runtime chooses by itself."""
        return self.tried[0]

    @property
    def winner(self) -> Tried | None:
        """What to run: the default, unless another beats it by more than the noise.

        None where the default could not be timed.
        """
        if self.default.status != "ok" or len(self.default.times) < LEAST_ROUNDS:
            return None
        known = [each for each in self.tried[1:] if each.is_known]
        confirmed = [each for each in known if each.confirmed]
        best = min(confirmed or known, key=ratio_of, default=None)
        return best if best is not None and ratio_of(best) < 1 - best.margin else self.default


def begun(candidate: Candidate) -> Tried:
    """A candidate before anything is known of it but whether it fits."""
    if candidate.reason:
        return Tried(candidate, "does not fit", candidate.reason)
    return Tried(candidate)


def ratio_of(each: Tried) -> float:
    """Its ratio; infinite where it was not timed."""
    return float("inf") if each.ratio is None else each.ratio
