"""Whether a candidate's results are right: sampled ones against float64, all against the default's.

A row's distance is taken by its length, or by that of a usual row where it is shorter: gradients
that cancel are no measure of their own rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from cmask.cli.bench import exact
from cmask.cli.bench.exact_gradients import exact_dkdv
from cmask.cli.bench.measure import Contender, Verdict
from cmask.cli.bench.problem import Problem
from cmask.cli.bench.settings import Direction

TOLERANCE = 5e-2  # of a row; bfloat16 leaves about 1e-2 in the worst of a million


class Agreement:
    """What results of one direction are compared with; those of the first call are kept.

    Results are (out, lse) or (dQ, dK, dV).
    """

    def __init__(self, problem: Problem, way: Direction) -> None:
        self._problem, self._way = problem, way
        self._first: tuple[Tensor, ...] | None = None

    @cached_property
    def _rows(self) -> exact.Rows:
        return exact.sample_rows(self._problem)

    @cached_property
    def _vectors(self) -> tuple[exact.Vectors, ...]:
        if self._way == "fwd":
            return (exact.exact_out(self._problem, self._rows),)
        return (exact.exact_dq(self._problem, self._rows), *exact_dkdv(self._problem))

    def check(self, made: Contender) -> Verdict:
        """Call once, and judge all of what came."""
        with made.around():
            results = made.results(made.call())
            if results[0].is_cuda:
                torch.cuda.synchronize()
        wrong = list(self._inexact(results))
        difference = None
        if self._first is None:
            self._first = tuple(x.detach() for x in results)
        else:
            difference, more = self._compared(results, self._first)
            wrong += more
        return Verdict(is_right=not wrong, difference=difference, detail=", ".join(wrong))

    def _inexact(self, results: tuple[Tensor, ...]) -> Iterator[str]:
        """Of sampled vectors; comparisons with NaN are false, so that NaN is wrong."""
        for name, vectors, found in zip(self._names, self._vectors, results, strict=False):
            error = vectors.error(found)
            if not error <= exact.TOLERANCE:
                yield f"{name} is {error:.2g} off float64"
        if self._way == "fwd":
            error = exact.lse_error(self._rows, results[1])
            if not error <= exact.LSE_TOLERANCE:
                yield f"LSE is {error:.2g} off float64"

    def _compared(
        self, results: tuple[Tensor, ...], first: tuple[Tensor, ...]
    ) -> tuple[float, list[str]]:
        wrong, largest = [], 0.0
        for name, found, expected in zip(self._names, results, first, strict=False):
            difference = row_difference(found, expected)
            largest = max(largest, difference) if difference == difference else difference
            if not difference <= TOLERANCE:
                wrong.append(f"a row of {name} differs from the default's by {difference:.2g}")
        if self._way == "fwd":
            same = results[1] == first[1]  # -inf and -inf, too
            apart = float(torch.where(same, 0.0, (results[1] - first[1]).abs()).max())
            if not apart <= exact.LSE_TOLERANCE:
                wrong.append(f"an LSE differs from the default's by {apart:.2g}")
        return largest, wrong

    @property
    def _names(self) -> tuple[str, ...]:
        return ("O",) if self._way == "fwd" else ("dQ", "dK", "dV")


def row_difference(found: Tensor, expected: Tensor) -> float:
    """The largest distance of a row, see the head of this file; NaN if anything is."""
    worst = []
    for a, b in zip(found, expected, strict=True):  # one element of the batch at a time
        length = b.float().norm(dim=-1)
        distance = (a.float() - b.float()).norm(dim=-1)
        usual = torch.maximum(length, length.mean())
        nothing = torch.where(distance == 0, 0.0, torch.inf).to(distance)
        relative = torch.where(usual > 0, distance / usual, nothing)
        worst.append(torch.where(distance.isnan(), distance, relative).max())
    return float(torch.stack(worst).max())
