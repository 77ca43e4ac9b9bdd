"""The tokens of each block, and which blocks may hold a visible pair of a clause."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cmask.runtime.derive.clauses import FAR, BoundClause
from cmask.runtime.derive.tokens import Array

Bools = NDArray[np.bool_]
_CELLS_AT_ONCE = 1 << 22


@dataclass(frozen=True, eq=False)
class Grid:
    """The tokens of each block: int64[blocks, block size], -1 where a block has no token."""

    queries: Array
    keys: Array


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
        q = BlockSide(clause.query_scope, grid.queries)
        k = BlockSide(clause.key_scope, grid.keys)
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
class BlockSide:
    """One side of a clause, block by block."""

    scope: Array
    blocks: Array

    @property
    def member(self) -> Bools:
        """Which places of the blocks hold a token of the clause."""
        return (self.blocks >= 0) & (self.scope[np.maximum(self.blocks, 0)] >= 0)

    def values(self, coordinate: Array, other: int) -> Array:
        """A coordinate in each block, `other` where no token of the clause stands."""
        values = coordinate[np.maximum(self.blocks, 0)].astype(np.int64)
        return np.where(self.member, values, other)

    def low(self, coordinate: Array) -> Array:
        """The smallest in each block."""
        return self.values(coordinate, 2 * FAR).min(axis=1)

    def high(self, coordinate: Array) -> Array:
        """The largest in each block."""
        return self.values(coordinate, -2 * FAR).max(axis=1)

    def range(self, coordinate: Array) -> tuple[Array, Array]:
        """Smallest and largest; a block without tokens of the clause has an impossible range."""
        return self.low(coordinate), self.high(coordinate)

    def constant(self, value: int) -> Array:
        """The same for every block."""
        return np.full(len(self.blocks), value, np.int64)
