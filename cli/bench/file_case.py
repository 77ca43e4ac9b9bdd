"""A mask of one's own as a case: what peers get is made of the bound mask's row intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cmask.cli.bench.case import Case, MaskMod, Spelling, captured, compiled
from cmask.grammar.source import Source
from cmask.runtime.derive.bound import BoundMask

MOST_INTERVALS = 8  # per row; FlexAttention reads two numbers for each


def of_file(source: Source, seq: int, sizes: Mapping[str, Any]) -> Case:
    """The case of a file at its sizes; without FlexAttention where rows are no intervals.

    Raises `CmaskError` where the text is wrong, `BindError` where the sizes are.
    """
    name = source.name.rsplit("/", 1)[-1].removesuffix(".cmask")
    bare = Case(name, source, seq, sizes=sizes)
    bound = compiled(bare).bind().bound
    bounds = row_bounds(bound)
    if bounds is None:
        return bare
    words = f"{len(bounds)} × start[q] <= k < stop[q], made of the mask's row intervals"
    return Case(name, source, seq, (Spelling(words, lambda d: by_bounds(bounds, d)),), sizes)


def row_bounds(bound: BoundMask) -> NDArray[np.int32] | None:
    """int32[intervals, 2, q_len]: starts and stops, 0 and 0 for those that a row lacks.

    None if rows are no intervals, or too many.
    """
    intervals = bound.row_intervals()
    if intervals is None:
        return None
    most = int(intervals.counts.max(initial=0))
    if most > MOST_INTERVALS:
        return None
    bounds = np.zeros((max(most, 1), 2, bound.q_len), np.int32)
    rows = intervals.rows
    nth = np.arange(len(rows)) - intervals.offsets[rows]
    bounds[nth, 0, rows] = intervals.starts
    bounds[nth, 1, rows] = intervals.stops
    return bounds


def by_bounds(bounds: NDArray[np.int32], device: str) -> MaskMod:
    """A mask_mod that compares keys with their query's bounds."""
    pairs = [(captured(start, device), captured(stop, device)) for start, stop in bounds]

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        start, stop = pairs[0]
        seen = (k >= start[q]) & (k < stop[q])
        for start, stop in pairs[1:]:
            seen = seen | ((k >= start[q]) & (k < stop[q]))
        return seen

    return mod
