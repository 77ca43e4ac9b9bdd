"""Owners with much work, cut into parts that several programs do at the same time.

A key block that every query sees (a sink, a shared prompt, text before an image) would keep one
program busy long after the others.  Its parts write partial sums into slots, which are added in
order: the result does not depend on who was first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cmask.runtime.descriptor import Int32Array

FULL, BOUNDS, PATTERN = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Lists:
    """What a kernel walks for each owner (or part of one).

    offsets  int32[3, owners + 1]: where an owner's full, bounds and pattern entries begin
    counts   int32[2, owners]: how many blocks its full and its bounds runs hold
    entries  int32[entries, 2]: (first, stop) of a run, or (block, pattern)
    costs    float64[owners], in full blocks
    order    int32[owners]: the owners, most work first
    """

    offsets: Int32Array
    counts: Int32Array
    entries: Int32Array
    costs: NDArray[np.float64]
    order: Int32Array


@dataclass(frozen=True, eq=False)
class Parts:
    """Lists of parts, and where each belongs.

    owners  int32[parts, 2]: (owner, slot), slot -1 where a part is a whole owner
    heavy   int32[owners that are cut, 3]: (owner, first slot, stop slot)
    """

    lists: Lists
    owners: Int32Array
    heavy: Int32Array

    @property
    def num_slots(self) -> int:
        """Slots for partial sums, for each head."""
        return int(self.heavy[:, 2].max(initial=0))


def cut(lists: Lists, limit: float, partial_cost: float) -> Parts:
    """Parts of at most about `limit` full blocks each; the lists themselves if none is larger.

    partial_cost: of a block that is masked, in full blocks.
    """
    if lists.costs.max(initial=0) <= limit:
        return whole(lists)
    owners: list[tuple[int, int]] = []
    heavy: list[tuple[int, int, int]] = []
    pieces: list[list[tuple[int, int, int]]] = []  # of each part: (kind, first, stop or pattern)
    slots = 0
    for owner, cost in enumerate(lists.costs):
        work = list(_work_of(lists, owner))
        count = max(1, int(np.ceil(cost / limit)))
        parts = [work] if count == 1 else _cut_work(work, cost / count, partial_cost)
        if len(parts) > 1:
            heavy.append((owner, slots, slots + len(parts)))
        for part in parts:
            owners.append((owner, slots if len(parts) > 1 else -1))
            slots += len(parts) > 1
            pieces.append(part)
    return Parts(
        _lists_of(pieces, partial_cost),
        np.array(owners, np.int32).reshape(-1, 2),
        np.array(heavy, np.int32).reshape(-1, 3),
    )


def whole(lists: Lists) -> Parts:
    """Every owner in one part."""
    count = len(lists.costs)
    owners = np.stack([np.arange(count), np.full(count, -1)], axis=1).astype(np.int32)
    return Parts(lists, owners, np.zeros((0, 3), np.int32))


def _work_of(lists: Lists, owner: int) -> list[tuple[int, int, int]]:
    """(kind, first, stop) of each run, (kind, block, pattern) of each pattern block."""
    return [
        (kind, int(first), int(second))
        for kind in (PATTERN, BOUNDS, FULL)
        for first, second in lists.entries[
            lists.offsets[kind, owner] : lists.offsets[kind, owner + 1]
        ]
    ]


def _cut_work(
    work: list[tuple[int, int, int]], size: float, partial_cost: float
) -> list[list[tuple[int, int, int]]]:
    """The work in parts that cost about `size`; runs are cut between blocks."""
    parts: list[list[tuple[int, int, int]]] = [[]]
    room = size
    for kind, first, second in work:
        each = 1.0 if kind == FULL else partial_cost
        stop = first + 1 if kind == PATTERN else second
        while first < stop:
            if room < each / 2:
                parts.append([])
                room += size
            taken = 1 if kind == PATTERN else min(stop - first, max(1, round(room / each)))
            parts[-1].append((kind, first, second if kind == PATTERN else first + taken))
            room -= each * taken
            first += taken
    return parts


def _lists_of(pieces: list[list[tuple[int, int, int]]], partial_cost: float) -> Lists:
    entries: list[tuple[int, int]] = []
    offsets = np.zeros((3, len(pieces) + 1), np.int32)
    counts = np.zeros((2, len(pieces)), np.int32)
    costs = np.zeros(len(pieces))
    for kind in (FULL, BOUNDS, PATTERN):
        offsets[kind, 0] = len(entries)
        for i, part in enumerate(pieces):
            mine = [(first, second) for k, first, second in part if k == kind]
            entries += mine
            offsets[kind, i + 1] = len(entries)
            blocks = len(mine) if kind == PATTERN else sum(b - a for a, b in mine)
            costs[i] += blocks * (1.0 if kind == FULL else partial_cost)
            if kind != PATTERN:
                counts[kind, i] = blocks
    flat = np.array(entries, np.int32).reshape(-1, 2)
    order = np.argsort(-costs, kind="stable").astype(np.int32)
    return Lists(offsets, counts, flat, costs, order)
