"""A mask as a grid of cells, each with its share of visible pairs.

Nothing here makes the whole score matrix: row intervals are summed over cells; masks that are no
intervals are sampled on a few rows and keys of every cell; blocks are counted from their lists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from cmask.runtime.derive.bound import BoundMask
    from cmask.runtime.derive.rows import RowIntervals
    from cmask.runtime.descriptor import Descriptor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_SAMPLES = 1 << 22  # pairs looked at for one picture
_MOST_INTERVALS = 1 << 18  # intervals summed exactly; beyond, rows are sampled


@dataclass(frozen=True, slots=True)
class Label:
    """Neighbouring instances of one region along a side [tokens or blocks]."""

    region: str
    instances: int
    start: int
    stop: int

    @property
    def text(self) -> str:
        """The region's name, with the number of instances when there are more."""
        return self.region if self.instances == 1 else f"{self.region} ×{self.instances}"


@dataclass(frozen=True, eq=False)
class Picture:
    """A mask cut into cells.

    q_edges, k_edges   cell i covers tokens [edges[i], edges[i + 1])
    shares             float64[rows, columns]: visible pairs of each cell / its pairs
    full               the share in full blocks, in a picture of blocks; else None
    q_labels, k_labels the regions along each side
    regions            all regions, in the order written
    """

    q_edges: Ints
    k_edges: Ints
    shares: Floats
    full: Floats | None
    q_labels: tuple[Label, ...]
    k_labels: tuple[Label, ...]
    regions: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """Whether every cell is one pair."""
        cells = (len(self.q_edges) - 1, len(self.k_edges) - 1)
        return cells == (int(self.q_edges[-1]), int(self.k_edges[-1]))

    def key_regions(self) -> list[int]:
        """For each column, the number (in `regions`) of the region in its middle."""
        middles = (self.k_edges[:-1] + self.k_edges[1:] - 1) // 2
        numbers = np.full(len(middles), -1)
        for label in self.k_labels:
            inside = (label.start <= middles) & (middles < label.stop)
            numbers[inside] = self.regions.index(label.region)
        return [int(n) for n in numbers]


def draw(bound: BoundMask, rows: int, columns: int) -> Picture:
    """The mask in at most `rows` × `columns` cells."""
    q_edges, k_edges = _edges(bound.q_len, rows), _edges(bound.kv_len, columns)
    intervals = bound.row_intervals()
    if intervals is not None and len(intervals.starts) <= _MOST_INTERVALS:
        shares = _sum_intervals(intervals, q_edges, k_edges)
    else:
        shares = _sample(bound, q_edges, k_edges)
    labels = _labels(bound)
    return Picture(q_edges, k_edges, shares, None, *labels, _regions(bound))


def draw_blocks(bound: BoundMask, shape: tuple[int, int], rows: int, columns: int) -> Picture:
    """The blocks of a mask, in the token order that kernels work in: shares of visited blocks."""
    descriptor = bound.descriptor(*shape)
    q_edges = _edges(descriptor.num_q_blocks, rows)
    k_edges = _edges(descriptor.num_kv_blocks, columns)
    lists = descriptor.by_query
    pattern_runs = np.stack([lists.pattern_blocks[:, 0], lists.pattern_blocks[:, 0] + 1], axis=1)
    full = _sum_runs(descriptor, lists.full_offsets, lists.full_runs, q_edges, k_edges)
    bounds = _sum_runs(descriptor, lists.bounds_offsets, lists.bounds_runs, q_edges, k_edges)
    pattern = _sum_runs(descriptor, lists.pattern_offsets, pattern_runs, q_edges, k_edges)
    q_labels, k_labels = ((), ()) if bound.is_permuted else _labels(bound)
    return Picture(
        q_edges,
        k_edges,
        full + bounds + pattern,
        full,
        tuple(_in_blocks(label, shape[0]) for label in q_labels),
        tuple(_in_blocks(label, shape[1]) for label in k_labels),
        _regions(bound),
    )


def _edges(length: int, cells: int) -> Ints:
    cells = max(1, min(length, cells))
    return np.arange(cells + 1, dtype=np.int64) * length // cells


def _sum_intervals(intervals: RowIntervals, q_edges: Ints, k_edges: Ints) -> Floats:
    """Exact shares: visible pairs left of each column edge, summed over the rows of a cell."""
    cells = len(q_edges) - 1
    cell = np.searchsorted(q_edges, intervals.rows, "right") - 1
    starts, lengths = intervals.starts, intervals.stops - intervals.starts
    left = np.stack(
        [np.bincount(cell, np.clip(edge - starts, 0, lengths), cells) for edge in k_edges], axis=1
    )
    return np.diff(left, axis=1) / _areas(q_edges, k_edges)


def _sample(bound: BoundMask, q_edges: Ints, k_edges: Ints) -> Floats:
    """Shares from a few rows and keys of every cell; exact where a cell has no more than those."""
    rows, columns = len(q_edges) - 1, len(k_edges) - 1
    most = max(1, math.isqrt(_MOST_SAMPLES // (rows * columns)))
    queries, per_row = _spread(q_edges, most)
    keys, per_column = _spread(k_edges, most)
    seen = bound.visible(queries, keys).reshape(rows, per_row, columns, per_column)
    shares: Floats = seen.mean(axis=(1, 3))
    return shares


def _spread(edges: Ints, most: int) -> tuple[Ints, int]:
    """Tokens spread evenly over every cell, as many in each; and how many."""
    lengths = np.diff(edges)
    each = max(1, min(most, int(lengths.max(initial=1))))
    steps = (np.arange(each) * 2 + 1)[None, :] * lengths[:, None] // (2 * each)
    return (edges[:-1, None] + steps).reshape(-1), each


def _sum_runs(
    descriptor: Descriptor,
    offsets: NDArray[np.int32],
    runs: NDArray[np.int32],
    q_edges: Ints,
    k_edges: Ints,
) -> Floats:
    """Shares of the blocks that lie in runs [first, stop) of key blocks."""
    owners = np.repeat(np.arange(descriptor.num_q_blocks), np.diff(offsets))
    cell = np.searchsorted(q_edges, owners, "right") - 1
    changes = np.zeros((len(q_edges) - 1, descriptor.num_kv_blocks + 1))
    np.add.at(changes, (cell, runs[:, 0]), 1)
    np.add.at(changes, (cell, runs[:, 1]), -1)
    counts = np.cumsum(changes, axis=1)[:, :-1]
    total = np.concatenate([np.zeros((len(counts), 1)), np.cumsum(counts, axis=1)], axis=1)
    return np.diff(total[:, k_edges], axis=1) / _areas(q_edges, k_edges)


def _areas(q_edges: Ints, k_edges: Ints) -> Floats:
    areas = np.diff(q_edges)[:, None] * np.diff(k_edges)[None, :]
    return np.asarray(np.maximum(areas, 1), np.float64)


def _labels(bound: BoundMask) -> tuple[tuple[Label, ...], tuple[Label, ...]]:
    spans = bound.segments
    return (
        _merge([(s.region, s.q_start, s.q_stop) for s in spans]),
        _merge([(s.region, s.k_start, s.k_stop) for s in spans]),
    )


def _merge(spans: Sequence[tuple[str, int, int]]) -> tuple[Label, ...]:
    """Neighbours of one region as one label; empty instances are left out."""
    labels: list[Label] = []
    for region, start, stop in spans:
        if start == stop:
            continue
        if labels and labels[-1].region == region and labels[-1].stop == start:
            last = labels.pop()
            labels.append(Label(region, last.instances + 1, last.start, stop))
        else:
            labels.append(Label(region, 1, start, stop))
    return tuple(labels)


def _in_blocks(label: Label, size: int) -> Label:
    return Label(label.region, label.instances, label.start // size, -(-label.stop // size))


def _regions(bound: BoundMask) -> tuple[str, ...]:
    return tuple(dict.fromkeys(s.region for s in bound.segments))
