"""The dictionary of distinct bit patterns of partial blocks.

Most partial blocks look alike: what a clause shows within a block depends on the shapes of the
coordinates in it and on the distance between its queries and keys.  Blocks are first told apart
by such a signature, and bits are made once per signature: CLEAR at 32k has thousands of partial
blocks and a few dozen patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cmask.runtime.derive.clauses import BoundClause, clause_visible
from cmask.runtime.derive.grid import Bools, Grid
from cmask.runtime.derive.rows import RowIntervals
from cmask.runtime.derive.signatures import Signature, distinct, interval_signatures, shapes
from cmask.runtime.derive.tokens import Array


@dataclass(frozen=True, eq=False)
class Patterns:
    """Blocks told apart.

    pattern  int64[blocks]: index into `bits`, or -1 (no pair visible) or -2 (all visible)
    bits     bool[num_patterns, block_m, block_n]
    """

    pattern: Array
    bits: Bools


NOTHING, EVERYTHING = -1, -2


def tell_apart(
    clauses: Sequence[BoundClause],
    intervals: RowIntervals,
    grid: Grid,
    blocks: tuple[Array, Array],
) -> Patterns:
    """The pattern of each listed block under the clauses and the row intervals together."""
    owners, others = blocks
    interval_keys, interval_bits = interval_signatures(intervals, grid, blocks)
    real_rows, real_keys = grid.queries >= 0, grid.keys >= 0
    columns = [shapes([real_rows])[owners], shapes([real_keys])[others], interval_keys]
    columns += [Signature.of(clause, grid).of_blocks(owners, others) for clause in clauses]
    first, inverse = distinct(columns)
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
