"""Two runs: whether cmask is as many times as fast as its peers in both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cmask.cli.bench import titles
from cmask.cli.bench.rows import REGIMES, Regime
from cmask.cli.bench.saved import Run
from cmask.cli.bench.settings import OURS
from cmask.cli.bench.table import cut
from cmask.cli.report import CommandFault

WITHIN = 0.03  # what two runs of one command may differ by, of a ratio
_HEADING = f"{'':70}{'first':>8}{'second':>8}{'differs':>8}"

Key = tuple[str, str, Regime]


@dataclass(frozen=True)
class Pair:
    """One ratio, cmask by a peer, of both runs.

    where  mask, batch × tokens, direction, heads
    """

    where: str
    peer: str
    regime: Regime
    first: float
    second: float

    @property
    def difference(self) -> float:
        """The larger by the smaller, less one."""
        return max(self.first, self.second) / min(self.first, self.second) - 1

    def line(self) -> str:
        """As a line of the table; what differs too much is marked."""
        mark = " !" if self.difference > WITHIN else ""
        what = f"÷ {self.peer}, {self.regime}"
        return (
            f"{self.where:44}{what:>26}{self.first:8.3f}{self.second:8.3f}"
            f"{self.difference:8.1%}{mark}"
        )


@dataclass(frozen=True)
class Comparison:
    """All ratios of two runs.

    alone  ratios that only one of them has, in words
    """

    pairs: tuple[Pair, ...]
    alone: tuple[str, ...]

    @property
    def worst(self) -> Pair | None:
        """Where they differ most; None where they share nothing."""
        return max(self.pairs, key=lambda pair: pair.difference, default=None)

    @property
    def agrees(self) -> bool:
        """Whether no ratio differs by more than `WITHIN`."""
        return self.worst is not None and self.worst.difference <= WITHIN

    def lines(self) -> list[str]:
        """The table, what only one run has, and the largest difference."""
        lines = [_HEADING.rstrip(), *(pair.line() for pair in self.pairs)]
        lines += [cut(f"only in one: {text}") for text in self.alone]
        if self.worst is None:
            return [*lines, "no ratio is in both runs"]
        said = f"{self.worst.where} ÷ {self.worst.peer}, {self.worst.regime}"
        verdict = "within" if self.agrees else "above"
        largest = f"largest difference of {len(self.pairs)} ratios: {self.worst.difference:.1%}"
        return [*lines, f"{largest}, {verdict} {WITHIN:.0%}", cut(f"  {said}")]


def compare(first: Run, second: Run) -> Comparison:
    """Every ratio of cmask to a peer, in the order of the first run."""
    for name in ("dtype", "cold_l2"):
        one, other = first.settings.get(name), second.settings.get(name)
        if one != other:
            raise CommandFault(f"the runs differ in {name}: {one} and {other}")
    ones, others = dict(_ratios(first)), dict(_ratios(second))
    pairs = [Pair(*key, ones[key], others[key]) for key in ones if key in others]
    alone = [
        f"{where} ÷ {peer}, {regime} ({run.name})"
        for run, mine, theirs in ((first, ones, others), (second, others, ones))
        for where, peer, regime in mine
        if (where, peer, regime) not in theirs
    ]
    return Comparison(tuple(pairs), tuple(alone))


def _ratios(run: Run) -> Iterator[tuple[Key, float]]:
    for group in run.groups:
        heads = titles.of_heads(group)
        where = f"{group.mask}  {group.place}  {group.direction}  {heads}"
        for result in group.results:
            for regime in REGIMES:
                ratio = group.ratio(result, regime)
                if ratio is not None and result.name != OURS:
                    yield (where, result.name, regime), ratio
