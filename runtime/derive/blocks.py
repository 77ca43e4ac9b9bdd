"""Row intervals -> runs of full and partial blocks, and the same runs seen from the keys.

Everything is run-coded and the work is in proportion to the rows and to the runs that come out,
never to the number of blocks: a million causal tokens are 8,192 × 8,192 blocks but 16,384 runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cmask.runtime.derive.rows import RowIntervals
from cmask.runtime.derive.tokens import Array

EMPTY, PARTIAL, FULL = 0, 1, 2
_MAX_RANKS = 8


@dataclass(frozen=True, eq=False)
class Runs:
    """Maximal runs of blocks of one kind, ascending by owner and then by block.

    owner        int64[runs]: the query block (or key block) that the run belongs to
    first, stop  int64[runs]: blocks [first, stop) of the other side
    kind         int64[runs]: PARTIAL or FULL
    """

    owner: Array
    first: Array
    stop: Array
    kind: Array

    def of_kind(self, kind: int) -> Runs:
        """The runs of one kind."""
        keep = self.kind == kind
        return Runs(self.owner[keep], self.first[keep], self.stop[keep], self.kind[keep])

    @property
    def num_blocks(self) -> int:
        """Blocks in all runs."""
        return int((self.stop - self.first).sum())

    def blocks(self) -> tuple[Array, Array]:
        """(owners, blocks): every block by itself, ascending."""
        lengths = self.stop - self.first
        owner = np.repeat(self.owner, lengths)
        index = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return owner, np.repeat(self.first, lengths) + index


def classify(intervals: RowIntervals, rows_in_block: Array, block_m: int, block_n: int) -> Runs:
    """The full and partial key blocks of each query block.

    rows_in_block: int64[num_q_blocks]: rows that are tokens (padding does not count).
    """
    one = np.ones(1, np.int64)
    changes = _Changes()
    for owner, starts, stops in _by_rank(intervals, block_m):
        changes.add(owner, starts // block_n, touched=one)
        changes.add(owner, -(-stops // block_n), touched=-one)
        first, stop = -(-starts // block_n), stops // block_n
        inside = first < stop
        changes.add(owner[inside], first[inside], covered=one)
        changes.add(owner[inside], stop[inside], covered=-one)
    owner, block, touched, covered = changes.summed()
    full = covered == rows_in_block[owner]
    kind = np.where(touched > 0, np.where(full, FULL, PARTIAL), EMPTY)
    return _maximal(owner, block, kind)


def _by_rank(intervals: RowIntervals, block_m: int) -> Iterator[tuple[Array, Array, Array]]:
    """(query blocks, starts, stops) of all rows' first intervals, then of their second, ...

    Neighbouring rows mostly agree on which blocks their n-th interval touches, and equal
    neighbours are added up before anything is sorted.
    """
    counts = intervals.counts
    for rank in range(min(int(counts.max(initial=0)), _MAX_RANKS)):
        rows = np.flatnonzero(counts > rank)
        at = intervals.offsets[rows] + rank
        yield rows // block_m, intervals.starts[at], intervals.stops[at]
    if counts.max(initial=0) > _MAX_RANKS:
        every = intervals.rows
        rest = np.arange(len(every)) - intervals.offsets[every] >= _MAX_RANKS
        yield every[rest] // block_m, intervals.starts[rest], intervals.stops[rest]


def transpose(runs: Runs) -> Runs:
    """The same blocks owned by the other side.

    Only the blocks where one owner's kind differs from the owner before it are visited: they are
    the ends of the runs that come out.
    """
    one = np.ones(1, np.int64)
    changes = _Changes()
    for block, sign in ((runs.first, one), (runs.stop, -one)):
        changes.add(runs.owner, block, touched=sign * runs.kind, covered=sign * runs.kind)
        changes.add(runs.owner + 1, block, touched=-sign * runs.kind)
    owner, block, difference, kind = changes.summed()
    change = np.flatnonzero(difference[:-1] != 0)
    cells = Runs(owner[change], block[change], block[change + 1], kind[change])
    lengths = cells.stop - cells.first
    by, at = cells.blocks()
    order = np.argsort(at << 32 | by, kind="stable")
    at, by, kind = at[order], by[order], np.repeat(cells.kind, lengths)[order]
    return _maximal(at, by, kind)


def join(runs: Runs, owner: Array, block: Array, kind: int) -> Runs:
    """`runs` and single blocks of one kind, disjoint from them, as maximal runs."""
    one = np.ones(1, np.int64)
    changes = _Changes()
    changes.add(runs.owner, runs.first, touched=runs.kind)
    changes.add(runs.owner, runs.stop, touched=-runs.kind)
    changes.add(owner, block, touched=kind * one)
    changes.add(owner, block + 1, touched=-kind * one)
    owner, block, joined, _ = changes.summed()
    return _maximal(owner, block, joined)


def _maximal(owner: Array, block: Array, kind: Array) -> Runs:
    """Runs from points (owner, block) at which the kind begins to hold, up to the next point."""
    same = np.zeros(len(owner), bool)
    same[1:] = (owner[1:] == owner[:-1]) & (kind[1:] == kind[:-1])
    points = np.flatnonzero(~same)
    owner, block, kind = owner[points], block[points], kind[points]
    begins = np.flatnonzero(kind[:-1] != EMPTY) if len(kind) else points
    return Runs(owner[begins], block[begins], block[begins + 1], kind[begins])


class _Changes:
    """Sums of two step functions along the blocks of each owner, given by their steps.

    The steps of one owner sum to zero, so that every owner begins at zero.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[Array, Array, Array]] = []

    def add(
        self, owner: Array, block: Array, touched: Array | int = 0, covered: Array | int = 0
    ) -> None:
        """Steps at (owner, block); neighbours at the same place are added up at once."""
        key = owner << 32 | block
        if len(key) == 0:
            return
        heads = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
        sums = [
            np.add.reduceat(np.broadcast_to(np.asarray(w, np.int64), key.shape), heads)
            for w in (touched, covered)
        ]
        self.parts.append((key[heads], sums[0], sums[1]))

    def summed(self) -> tuple[Array, Array, Array, Array]:
        """(owner, block, touched, covered): values from each point to the next."""
        if not self.parts:
            empty = np.zeros(0, np.int64)
            return empty, empty, empty, empty
        keys, touched, covered = (np.concatenate(p) for p in zip(*self.parts, strict=True))
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        heads = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        values = [np.cumsum(np.add.reduceat(w[order], heads)) for w in (touched, covered)]
        keys = keys[heads]
        return keys >> 32, keys & 0xFFFFFFFF, values[0], values[1]
