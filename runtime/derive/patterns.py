"""The dictionary of distinct bit patterns of partial blocks.

Most partial blocks look alike: what a clause shows within a block depends on the shapes of the
coordinates in it and on the distance between its queries and keys.  Blocks are first told apart
by such a signature, and bits are made once per signature: CLEAR at 32k has thousands of partial
blocks and a few dozen patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cmask.runtime.derive.clauses import FAR, BoundClause, clause_visible
from cmask.runtime.derive.rows import RowIntervals
from cmask.runtime.derive.tokens import Array
from cmask.runtime.descriptor import Int32Array

Bools = NDArray[np.bool_]
_IntervalBits = Callable[[int], Bools]  # signature -> the bits of a block
MAX_BOUNDS = 4  # row intervals that a block's signature compares directly
_CELLS_AT_ONCE = 1 << 22


@dataclass(frozen=True, eq=False)
class Grid:
    """The tokens of each block: int64[blocks, block size], -1 where a block has no token."""

    queries: Array
    keys: Array


@dataclass(frozen=True, eq=False)
class Patterns:
    """Blocks told apart.

    pattern  int64[blocks]: index into `bits`, or -1 (no pair visible) or -2 (all visible)
    bits     bool[num_patterns, block_m, block_n]
    """

    pattern: Array
    bits: Bools


NOTHING, EVERYTHING = -1, -2


def grid_of(num_tokens: int, slots: Array | None, block: int) -> Array:
    """The tokens of each block along one side."""
    tokens = np.arange(num_tokens, dtype=np.int64) if slots is None else slots
    padded = np.full(-(-len(tokens) // block) * block, -1, np.int64)
    padded[: len(tokens)] = tokens
    return padded.reshape(-1, block)


def candidates(clause: BoundClause, grid: Grid) -> tuple[Array, Array]:
    """(query blocks, key blocks) that may hold a visible pair of a clause, ascending.

    Compares the ranges that coordinates span in each block: never misses a pair, and may name
    blocks without any.
    """
    ranges = _Ranges.of(clause, grid)
    found: list[tuple[Array, Array]] = []
    step = max(1, _CELLS_AT_ONCE // max(1, len(grid.keys)))
    for first in range(0, len(grid.queries), step):
        rows, columns = np.nonzero(ranges.overlap(slice(first, first + step)))
        found.append((rows + first, columns))
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])


def tell_apart(
    clauses: Sequence[BoundClause],
    intervals: RowIntervals,
    grid: Grid,
    blocks: tuple[Array, Array],
) -> Patterns:
    """The pattern of each listed block under the clauses and the row intervals together."""
    owners, others = blocks
    interval_keys, interval_bits = _interval_signatures(intervals, grid, blocks)
    real_rows, real_keys = grid.queries >= 0, grid.keys >= 0
    columns = [_shapes([real_rows])[owners], _shapes([real_keys])[others], interval_keys]
    columns += [_Signature.of(clause, grid).of_blocks(owners, others) for clause in clauses]
    first, inverse = _distinct(columns)
    order = np.argsort(first, kind="stable")  # numbered by first appearance
    found: dict[bytes, int] = {}
    bits: list[Bools] = []
    pattern = np.empty(len(first), np.int64)
    for i in order:
        block = owners[first[i]], others[first[i]]
        seen = interval_bits(int(interval_keys[first[i]])) & real_keys[block[1]]
        for clause in clauses:
            seen = seen | _block_bits(clause, grid, *block)
        pattern[i] = _number(seen, real_rows[block[0]], found, bits)
    shape = (0, grid.queries.shape[1], grid.keys.shape[1])
    return Patterns(pattern[inverse], np.stack(bits) if bits else np.zeros(shape, bool))


def _number(seen: Bools, rows: Bools, found: dict[bytes, int], bits: list[Bools]) -> int:
    if not seen.any():
        return NOTHING
    if seen[rows].all():
        return EVERYTHING
    key = np.packbits(seen).tobytes()
    if key not in found:
        found[key] = len(bits)
        bits.append(seen)
    return found[key]


def _block_bits(clause: BoundClause, grid: Grid, owner: int, other: int) -> Bools:
    queries, keys = grid.queries[owner], grid.keys[other]
    rows, columns = np.flatnonzero(queries >= 0), np.flatnonzero(keys >= 0)
    seen = np.zeros((len(queries), len(keys)), bool)
    seen[np.ix_(rows, columns)] = clause_visible(clause, queries[rows], keys[columns])
    return seen


# ------------------------------------------------------------------ row intervals in a block


def _interval_signatures(
    intervals: RowIntervals, grid: Grid, blocks: tuple[Array, Array]
) -> tuple[Array, _IntervalBits]:
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
) -> tuple[Array, _IntervalBits]:
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


# ------------------------------------------------------------------ clauses in a block


@dataclass(frozen=True, eq=False)
class _Ranges:
    """Smallest and largest coordinates of a clause's tokens in each block.

    tests: (query low, query high, key low, key high) per interval test: they overlap when
    key high >= query low and key low <= query high.  discs: the same per axis, with radius^2.
    """

    tests: tuple[tuple[Array, Array, Array, Array], ...]
    discs: tuple[tuple[tuple[tuple[Array, Array, Array, Array], ...], int], ...]

    @staticmethod
    def of(clause: BoundClause, grid: Grid) -> _Ranges:
        q = _Side(clause.query_scope, grid.queries)
        k = _Side(clause.key_scope, grid.keys)
        tests = [(*q.range(clause.query_scope), *k.range(clause.key_scope))]
        for limit in clause.limits:
            low = q.low(limit.low) if limit.low is not None else q.constant(-FAR)
            high = q.high(limit.high - 1) if limit.high is not None else q.constant(FAR)
            tests.append((low, high, *k.range(limit.key)))
        discs = tuple(
            (tuple((*q.range(a), *k.range(b)) for a, b in disc.axes), disc.radius_squared)
            for disc in clause.discs
        )
        return _Ranges(tuple(tests), discs)

    def overlap(self, rows: slice) -> Bools:
        """bool[rows, key blocks]."""
        q_low, _, k_low, _ = self.tests[0]
        may = np.ones((len(q_low[rows]), len(k_low)), bool)
        for q_low, q_high, k_low, k_high in self.tests:
            may &= (k_high >= q_low[rows, None]) & (k_low <= q_high[rows, None])
        for axes, radius_squared in self.discs:
            distance = np.zeros(may.shape, np.int64)
            for q_low, q_high, k_low, k_high in axes:
                apart = np.maximum(k_low - q_high[rows, None], q_low[rows, None] - k_high)
                distance += np.clip(apart, 0, 1 << 30) ** 2
            may &= distance < radius_squared
        return may


@dataclass(frozen=True, eq=False)
class _Side:
    """One side of a clause, block by block."""

    scope: Array
    blocks: Array

    @property
    def member(self) -> Bools:
        return (self.blocks >= 0) & (self.scope[np.maximum(self.blocks, 0)] >= 0)

    def values(self, coordinate: Array, other: int) -> Array:
        """A coordinate in each block, `other` where no token of the clause stands."""
        values = coordinate[np.maximum(self.blocks, 0)].astype(np.int64)
        return np.where(self.member, values, other)

    def low(self, coordinate: Array) -> Array:
        return self.values(coordinate, 2 * FAR).min(axis=1)

    def high(self, coordinate: Array) -> Array:
        return self.values(coordinate, -2 * FAR).max(axis=1)

    def range(self, coordinate: Array) -> tuple[Array, Array]:
        """Smallest and largest; a block without tokens of the clause has an impossible range."""
        return self.low(coordinate), self.high(coordinate)

    def constant(self, value: int) -> Array:
        return np.full(len(self.blocks), value, np.int64)


@dataclass(frozen=True, eq=False)
class _Signature:
    """What a clause shows in a block is a function of its two shapes and the distances.

    query_shape, key_shape  int64[blocks]: equal where coordinates relative to the block's own
                            base are equal
    bases                   per test: (query base, key base), int64[blocks] each
    """

    query_shape: Array
    key_shape: Array
    bases: tuple[tuple[Array, Array], ...]

    @staticmethod
    def of(clause: BoundClause, grid: Grid) -> _Signature:
        q = _Side(clause.query_scope, grid.queries)
        k = _Side(clause.key_scope, grid.keys)
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
        return _Signature(_shapes(query_parts), _shapes(key_parts), tuple(bases))

    def of_blocks(self, owners: Array, others: Array) -> Array:
        """int64[blocks]: equal numbers for blocks in which the clause shows the same."""
        columns = [self.query_shape[owners], self.key_shape[others]]
        columns += [query[owners] - key[others] for query, key in self.bases]
        return _distinct(columns)[1]


def _relative(side: _Side, coordinate: Array, base: Array) -> Array:
    return np.where(side.member, side.values(coordinate, 0) - base[:, None], 0)


def _shapes(parts: Sequence[NDArray[Any]]) -> Array:
    """Numbers the blocks by their contents."""
    found: dict[bytes, int] = {}
    if all(part.dtype == bool for part in parts):
        rows = np.packbits(np.concatenate(parts, axis=1), axis=1)
    else:
        rows = np.concatenate([part.astype(np.int64) for part in parts], axis=1)
    return np.array([found.setdefault(row.tobytes(), len(found)) for row in rows], np.int64)


def _distinct(columns: Sequence[Array]) -> tuple[Array, Array]:
    """(first, inverse) of the distinct rows of a table given by its columns.

    One column at a time: sorting numbers is many times faster than sorting rows.
    """
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, index = np.unique(column, return_inverse=True)
        _, number = np.unique(number * len(values) + index.reshape(-1), return_inverse=True)
    _, first, inverse = np.unique(number, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)
