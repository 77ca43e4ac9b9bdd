"""Signatures: numbers that are equal for blocks which cannot differ.

What row intervals show in a block is a function of where they cut it; what a clause shows is a
function of the shapes of the coordinates in the block and of their distances.  Bits are made
once per signature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cmask.runtime.derive.clauses import BoundClause
from cmask.runtime.derive.grid import BlockSide, Bools, Grid
from cmask.runtime.derive.rows import RowIntervals
from cmask.runtime.derive.tokens import Array
from cmask.runtime.descriptor import Int32Array

IntervalBits = Callable[[int], Bools]  # signature -> the bits of a block
MAX_BOUNDS = 4  # row intervals that a block's signature compares directly
_CELLS_AT_ONCE = 1 << 22


def interval_signatures(
    intervals: RowIntervals, grid: Grid, blocks: tuple[Array, Array]
) -> tuple[Array, IntervalBits]:
    """A key per block that is equal where the row intervals cut the block equally."""
    counts = intervals.counts
    if counts.max(initial=0) > MAX_BOUNDS:
        return _dense_signatures(intervals, grid, blocks)
    block_m, block_n = grid.queries.shape[1], grid.keys.shape[1]
    bounds = row_bounds(intervals, int(counts.max(initial=0)), grid.queries.size)
    bounds = bounds.reshape(len(bounds), len(grid.queries), block_m)
    found: dict[bytes, int] = {}
    shapes: list[NDArray[np.int16]] = []
    keys = np.empty(len(blocks[0]), np.int64)
    step = max(1, _CELLS_AT_ONCE // (4 * block_m * max(1, len(bounds))))
    for first in range(0, len(keys), step):
        owners, others = (side[first : first + step] for side in blocks)
        cut = bounds[:, owners] - (others * block_n).astype(np.int32)[:, None]
        cut = np.clip(cut, 0, block_n).astype(np.int16).transpose(1, 0, 2)
        empty = cut[:, 0::2] >= cut[:, 1::2]
        cut = np.where(np.repeat(empty, 2, axis=1), 0, cut)
        for i, shape in enumerate(cut):
            key = shape.tobytes()
            if key not in found:
                found[key] = len(shapes)
                shapes.append(shape)
            keys[first + i] = found[key]
    columns = np.arange(block_n)

    def bits(key: int) -> Bools:
        seen = np.zeros((block_m, block_n), bool)
        for start, stop in zip(shapes[key][0::2], shapes[key][1::2], strict=True):
            seen |= (columns >= start[:, None]) & (columns < stop[:, None])
        return seen

    return keys, bits


def _dense_signatures(
    intervals: RowIntervals, grid: Grid, blocks: tuple[Array, Array]
) -> tuple[Array, IntervalBits]:
    """The same for rows of many intervals: bits of one query block at a time."""
    block_m, block_n = grid.queries.shape[1], grid.keys.shape[1]
    owners, others = blocks
    found: dict[bytes, int] = {}
    shapes: list[Bools] = []
    keys = np.empty(len(owners), np.int64)
    for owner, band in _bands(intervals, np.unique(owners), block_m, len(grid.keys) * block_n):
        for i in np.flatnonzero(owners == owner):
            seen = band[:, others[i] * block_n : (others[i] + 1) * block_n]
            key = np.packbits(seen).tobytes()
            if key not in found:
                found[key] = len(shapes)
                shapes.append(seen.copy())
            keys[i] = found[key]
    return keys, shapes.__getitem__


def _bands(
    intervals: RowIntervals, owners: Array, block_m: int, width: int
) -> Iterator[tuple[int, Bools]]:
    rows = intervals.rows
    for owner in owners:
        first, stop = np.searchsorted(rows, [owner * block_m, (owner + 1) * block_m])
        steps = np.zeros((block_m, width + 1), np.int8)
        local = rows[first:stop] - owner * block_m
        steps[local, intervals.starts[first:stop]] += 1  # never twice at one place: not adjacent
        steps[local, intervals.stops[first:stop]] -= 1
        yield int(owner), np.cumsum(steps[:, :-1], axis=1, dtype=np.int8).astype(bool)


def row_bounds(intervals: RowIntervals, num_intervals: int, num_rows: int) -> Int32Array:
    """int32[2 * num_intervals, num_rows]: start_0, stop_0, start_1, ... of each row; else 0."""
    bounds = np.zeros((2 * num_intervals, num_rows), np.int32)
    rows = intervals.rows
    index = np.arange(len(rows)) - intervals.offsets[rows]
    bounds[2 * index, rows] = intervals.starts
    bounds[2 * index + 1, rows] = intervals.stops
    return bounds


@dataclass(frozen=True, eq=False)
class Signature:
    """What a clause shows in a block is a function of its two shapes and the distances.

    query_shape, key_shape  int64[blocks]: equal where coordinates relative to the block's own
                            base are equal
    bases                   per test: (query base, key base), int64[blocks] each
    """

    query_shape: Array
    key_shape: Array
    bases: tuple[tuple[Array, Array], ...]

    @staticmethod
    def of(clause: BoundClause, grid: Grid) -> Signature:
        """The shapes and bases of every block."""
        q = BlockSide(clause.query_scope, grid.queries)
        k = BlockSide(clause.key_scope, grid.keys)
        # (query arrays, key array): compared with each other, so relative to a common base
        tests: list[tuple[tuple[Array, ...], Array]] = [((clause.query_scope,), clause.key_scope)]
        for limit in clause.limits:
            keys = limit.key[clause.key_scope >= 0]
            low, high = int(keys.min(initial=0)) - 1, int(keys.max(initial=0)) + 1
            ends = tuple(np.clip(e, low, high) for e in (limit.low, limit.high) if e is not None)
            tests.append((ends, limit.key))
        tests += [((query,), key) for disc in clause.discs for query, key in disc.axes]
        bases: list[tuple[Array, Array]] = []
        query_parts: list[NDArray[Any]] = [q.member]
        key_parts: list[NDArray[Any]] = [k.member]
        for queries, key in tests:
            if not queries:
                continue
            query_base, key_base = q.low(queries[0]), k.low(key)
            bases.append((query_base, key_base))
            query_parts += [_relative(q, array, query_base) for array in queries]
            key_parts.append(_relative(k, key, key_base))
        return Signature(shapes(query_parts), shapes(key_parts), tuple(bases))

    def of_blocks(self, owners: Array, others: Array) -> Array:
        """int64[blocks]: equal numbers for blocks in which the clause shows the same."""
        columns = [self.query_shape[owners], self.key_shape[others]]
        columns += [query[owners] - key[others] for query, key in self.bases]
        return distinct(columns)[1]


def _relative(side: BlockSide, coordinate: Array, base: Array) -> Array:
    return np.where(side.member, side.values(coordinate, 0) - base[:, None], 0)


def shapes(parts: Sequence[NDArray[Any]]) -> Array:
    """Numbers the blocks by their contents."""
    found: dict[bytes, int] = {}
    if all(part.dtype == bool for part in parts):
        rows = np.packbits(np.concatenate(parts, axis=1), axis=1)
    else:
        rows = np.concatenate([part.astype(np.int64) for part in parts], axis=1)
    return np.array([found.setdefault(row.tobytes(), len(found)) for row in rows], np.int64)


def distinct(columns: Sequence[Array]) -> tuple[Array, Array]:
    """(first, inverse) of the distinct rows of a table given by its columns.

    One column at a time: sorting numbers is many times faster than sorting rows.
    """
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, index = np.unique(column, return_inverse=True)
        _, number = np.unique(number * len(values) + index.reshape(-1), return_inverse=True)
    _, first, inverse = np.unique(number, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)
