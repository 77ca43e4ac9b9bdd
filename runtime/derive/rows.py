"""The key intervals that each query sees: sorted, disjoint, not adjacent, not empty.

A clause whose key coordinates never fall along its keys allows one interval of those keys per
query, found by binary search: no pair of tokens, and no pair of instances, is ever enumerated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cmask.runtime.derive.clauses import BoundClause
from cmask.runtime.derive.tokens import Array


@dataclass(frozen=True, eq=False)
class RowIntervals:
    """Intervals of all rows, those of row i at offsets[i]:offsets[i + 1].

    offsets        int64[rows + 1]
    starts, stops  int32[intervals]: keys [start, stop)
    """

    offsets: Array
    starts: NDArray[np.int32]
    stops: NDArray[np.int32]

    @property
    def counts(self) -> Array:
        """Intervals of each row."""
        return np.diff(self.offsets)

    @property
    def rows(self) -> Array:
        """The row of each interval."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.counts)


def clause_intervals(
    clause: BoundClause, q_slots: Array | None, k_slots: Array | None
) -> tuple[Array, Array, Array] | None:
    """(rows, starts, stops) of one clause, at least one entry where a row sees a key.

    None if a coordinate falls somewhere along the keys, so that the keys are not an interval.
    """
    if clause.discs:
        return None
    rows = _members(clause.query_scope, q_slots)
    keys = _members(clause.key_scope, k_slots)
    queries = rows if q_slots is None else q_slots[rows]
    tokens = keys if k_slots is None else k_slots[keys]
    query_scope, key_scope = clause.query_scope[queries], clause.key_scope[tokens]
    first = np.searchsorted(key_scope, query_scope, "left")
    stop = np.searchsorted(key_scope, query_scope, "right")
    for limit in clause.limits:
        values = limit.key[tokens]
        if not ((np.diff(values) >= 0) | (np.diff(key_scope) != 0)).all():
            return None
        search = _Search(values, key_scope, query_scope)
        if limit.low is not None:
            first = np.maximum(first, search(limit.low[queries]))
        if limit.high is not None:
            stop = np.minimum(stop, search(limit.high[queries]))
    some = np.flatnonzero(first < stop)
    breaks = _breaks(keys, k_slots)
    return _to_slots(keys, breaks, rows[some], first[some], stop[some])


def _members(scope: Array, slots: Array | None) -> Array:
    """The slots (ascending) whose tokens lie in a clause."""
    if slots is None:
        return np.flatnonzero(scope >= 0)
    return np.flatnonzero((slots >= 0) & (scope[np.maximum(slots, 0)] >= 0))


class _Search:
    """How many keys lie before a coordinate, within the query's scope instance."""

    def __init__(self, values: Array, key_scope: Array, query_scope: Array) -> None:
        self.low = int(values.min(initial=0))
        self.span = int(values.max(initial=0)) - self.low + 2
        self.sorted = key_scope.astype(np.int64) * self.span + (values - self.low)
        self.query_scope = query_scope.astype(np.int64)

    def __call__(self, coordinate: Array) -> Array:
        clipped = np.clip(coordinate - self.low, 0, self.span - 1)
        return np.searchsorted(self.sorted, self.query_scope * self.span + clipped, "left")


def _breaks(keys: Array, k_slots: Array | None) -> Array:
    """Where, along a clause's keys, a key that is not in the clause lies in between.

    Padding does not break an interval: whoever turns it into blocks leaves the padding out.
    """
    if k_slots is None:
        return np.flatnonzero(np.diff(keys) > 1) + 1
    rank = np.cumsum(k_slots >= 0)
    return np.flatnonzero(np.diff(rank[keys]) > 1) + 1


def _to_slots(
    keys: Array, breaks: Array, rows: Array, first: Array, stop: Array
) -> tuple[Array, Array, Array]:
    """Intervals of the clause's own keys -> intervals of key slots: one for each run of slots."""
    if len(breaks) == 0:
        return rows, keys[first], keys[stop - 1] + 1
    first_run = np.searchsorted(breaks, first, "right")
    runs = np.searchsorted(breaks, stop - 1, "right") - first_run + 1
    owner = np.repeat(np.arange(len(rows)), runs)
    index = np.arange(len(owner)) - np.repeat(np.cumsum(runs) - runs, runs)
    run = first_run[owner] + index
    run_starts = np.concatenate([[0], breaks])
    run_stops = np.concatenate([breaks, [len(keys)]])
    start = np.maximum(first[owner], run_starts[run])
    end = np.minimum(stop[owner], run_stops[run])
    return rows[owner], keys[start], keys[end - 1] + 1


def unite(parts: Sequence[tuple[Array, Array, Array]], num_rows: int) -> RowIntervals:
    """The union of (rows, starts, stops) triples, row by row."""
    if not parts:
        return RowIntervals(np.zeros(num_rows + 1, np.int64), _EMPTY, _EMPTY)
    # one sort key per interval: rows and starts are below 2^31
    keys = np.concatenate([rows << 32 | starts for rows, starts, _ in parts])
    stops = np.concatenate([stops for _, _, stops in parts])
    if not (keys[1:] > keys[:-1]).all():
        order = np.argsort(keys, kind="stable")
        keys, stops = keys[order], stops[order]
    rows = keys >> 32
    reach = np.maximum.accumulate(rows << 32 | stops)
    begins = np.ones(len(keys), bool)
    # an interval begins beyond all that came before, in its row or because its row is new
    begins[1:] = keys[1:] > reach[:-1]
    heads = np.flatnonzero(begins)
    tails = np.concatenate([heads[1:], [len(keys)]])[: len(heads)] - 1
    offsets = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(rows[heads], minlength=num_rows), out=offsets[1:])
    low = 0xFFFFFFFF
    return RowIntervals(
        offsets, (keys[heads] & low).astype(np.int32), (reach[tails] & low).astype(np.int32)
    )


_EMPTY: NDArray[np.int32] = np.zeros(0, np.int32)
