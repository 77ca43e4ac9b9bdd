"""Row intervals and clauses -> the descriptor of one block shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cmask.runtime.derive import blocks as runs_of
from cmask.runtime.derive.blocks import FULL, PARTIAL, Runs
from cmask.runtime.derive.clauses import BoundClause
from cmask.runtime.derive.grid import Grid, candidates, grid_of
from cmask.runtime.derive.patterns import EVERYTHING, Patterns, tell_apart
from cmask.runtime.derive.rows import RowIntervals, clause_intervals, unite
from cmask.runtime.derive.signatures import MAX_BOUNDS, row_bounds
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.derive.tokens import Array
from cmask.runtime.descriptor import (
    BlockLists,
    Descriptor,
    Int32Array,
    pack_pattern,
    unpack_pattern,
)

if TYPE_CHECKING:
    from cmask.runtime.schema import StoredBlocks

MAX_DICTIONARY = 128  # patterns; with more, row bounds are smaller where they can serve
PARTIAL_COST = 1.2  # of a full block, in the order of work; measured on an H200


@dataclass(frozen=True, eq=False)
class View:
    """The clauses of a mask in one token order.

    q_len, kv_len     [slots]
    q_slots, k_slots  the token of each slot (-1: padding); None: slots are tokens
    """

    clauses: Sequence[BoundClause]
    q_len: int
    kv_len: int
    q_slots: Array | None
    k_slots: Array | None


@dataclass(frozen=True, eq=False)
class Split:
    """A view's clauses: those that are row intervals, united, and the others."""

    intervals: RowIntervals
    others: tuple[BoundClause, ...]


@dataclass(frozen=True, eq=False)
class Blocks:
    """All blocks that hold a visible pair: full runs, and partial blocks by bounds or pattern.

    partial: the partial runs masked by row bounds (empty when patterns are used)
    owner, other, pattern: int64[blocks], the partial blocks masked by patterns
    """

    full: Runs
    partial: Runs
    owner: Array
    other: Array
    pattern: Array
    bits: Patterns


def split(view: View) -> Split:
    """Row intervals where clauses are intervals in this order; the rest stays symbolic."""
    parts, others = [], []
    for clause in view.clauses:
        part = clause_intervals(clause, view.q_slots, view.k_slots)
        if part is None or len(part[0]) > 64 * max(view.q_len, 1024):
            others.append(clause)
        else:
            parts.append(part)
    return Split(unite(parts, view.q_len), tuple(others))


def describe(view: View, parts: Split, block_m: int, block_n: int, masking: str) -> Descriptor:
    """The descriptor of one block shape.

    masking: "pattern", "bounds" (raises `BindError` where rows have more than 4 intervals or
    clauses are no intervals), or "auto": patterns while the dictionary is small.
    """
    blocks = _blocks(view, parts, block_m, block_n, masking)
    num_q_blocks, num_kv_blocks = -(-view.q_len // block_m), -(-view.kv_len // block_n)
    full = runs_of.transpose(blocks.full)
    partial = runs_of.transpose(blocks.partial)
    transposed = np.argsort(blocks.other << 32 | blocks.owner, kind="stable")
    by_key = (blocks.other[transposed], blocks.owner[transposed], blocks.pattern[transposed])
    bits = blocks.bits.bits
    return Descriptor(
        block_m=block_m,
        block_n=block_n,
        q_len=view.q_len,
        kv_len=view.kv_len,
        by_query=block_lists(
            num_q_blocks, blocks.full, blocks.partial, blocks.owner, blocks.other, blocks.pattern
        ),
        by_key=block_lists(num_kv_blocks, full, partial, *by_key),
        patterns=pack_pattern(bits),
        key_patterns=pack_pattern(bits.transpose(0, 2, 1)),
        bounds=_bounds(parts.intervals, blocks.partial, num_q_blocks * block_m),
        key_is_read=_key_is_read(view, parts, blocks, block_n),
    )


def _blocks(view: View, parts: Split, block_m: int, block_n: int, masking: str) -> Blocks:
    grid = Grid(
        grid_of(view.q_len, view.q_slots, block_m), grid_of(view.kv_len, view.k_slots, block_n)
    )
    runs = runs_of.classify(parts.intervals, (grid.queries >= 0).sum(axis=1), block_m, block_n)
    full, partial = runs.of_kind(FULL), runs.of_kind(PARTIAL)
    padded: NDArray[np.bool_] = np.any(grid.keys[: view.kv_len // block_n] < 0, axis=1)
    has_padding = view.k_slots is not None and bool((view.k_slots < 0).any())
    can_bound = _has_bounds(parts) and not has_padding
    if padded.any():
        full, partial = _without_padding(full, partial, padded)
    if masking == "bounds" and not can_bound:
        raise BindError("row bounds hold at most 4 intervals per row, and no grids: use patterns")
    nothing = np.zeros(0, np.int64)
    if masking != "bounds":
        owner, other = _partial_blocks(parts, grid, full, partial)
        patterns = tell_apart(parts.others, parts.intervals, grid, (owner, other))
        if masking == "pattern" or not can_bound or len(patterns.bits) <= MAX_DICTIONARY:
            whole = patterns.pattern == EVERYTHING
            full = runs_of.join(full, owner[whole], other[whole], FULL)
            some = patterns.pattern >= 0
            return Blocks(
                full,
                partial.of_kind(FULL),  # none
                owner[some],
                other[some],
                patterns.pattern[some],
                patterns,
            )
    unused = Patterns(nothing, np.zeros((0, block_m, block_n), bool))
    return Blocks(full, partial, nothing, nothing, nothing, unused)


def _has_bounds(parts: Split) -> bool:
    """Whether at most 4 intervals a row say all of the mask."""
    return not parts.others and int(parts.intervals.counts.max(initial=0)) <= MAX_BOUNDS


def _without_padding(full: Runs, partial: Runs, padded: NDArray[np.bool_]) -> tuple[Runs, Runs]:
    """Key blocks that hold padding are partial, whatever the row intervals say."""
    owner, block = full.blocks()
    cut = padded[block]
    nothing = full.of_kind(PARTIAL)
    return (
        runs_of.join(nothing, owner[~cut], block[~cut], FULL),
        runs_of.join(partial, owner[cut], block[cut], PARTIAL),
    )


def _partial_blocks(parts: Split, grid: Grid, full: Runs, partial: Runs) -> tuple[Array, Array]:
    """Every block that may be partial: by row intervals, or a candidate of another clause."""
    found = [partial.blocks()] + [candidates(clause, grid) for clause in parts.others]
    keys = np.unique(np.concatenate([owner << 32 | other for owner, other in found]))
    run = np.searchsorted(full.owner << 32 | full.first, keys, "right") - 1
    inside = np.zeros(len(keys), bool)
    if len(full.owner):
        at = np.maximum(run, 0)
        same = full.owner[at] == keys >> 32
        inside = (run >= 0) & same & ((keys & 0xFFFFFFFF) < full.stop[at])
    keys = keys[~inside]
    return keys >> 32, keys & 0xFFFFFFFF


def restore(stored: StoredBlocks, parts: Split) -> Descriptor:
    """The whole descriptor from its stored half and the clauses of the same mask.

    Raises `BindError` if it masks blocks by row bounds that the mask does not have.
    """
    if len(stored.bounds_runs) and not _has_bounds(parts):
        raise BindError("the stored blocks need row bounds, which this mask has not: compile anew")
    block_m, block_n = stored.block_m, stored.block_n
    num_q_blocks, num_kv_blocks = -(-stored.q_len // block_m), -(-stored.kv_len // block_n)
    full = _stored_runs(stored.full_offsets, stored.full_runs, FULL)
    partial = _stored_runs(stored.bounds_offsets, stored.bounds_runs, PARTIAL)
    owner = np.repeat(np.arange(num_q_blocks), np.diff(stored.pattern_offsets))
    other, pattern = stored.pattern_blocks.astype(np.int64).T
    order = np.argsort(other << 32 | owner, kind="stable")
    read = np.ones(num_kv_blocks * block_n, np.int32)
    for first, stop in stored.unread_runs:
        read[first:stop] = 0
    by_key = block_lists(
        num_kv_blocks,
        runs_of.transpose(full),
        runs_of.transpose(partial),
        other[order],
        owner[order],
        pattern[order],
    )
    lists = {name: getattr(stored, name) for name in BlockLists.__dataclass_fields__}
    bits = unpack_pattern(stored.patterns, block_n)
    return Descriptor(
        block_m=block_m,
        block_n=block_n,
        q_len=stored.q_len,
        kv_len=stored.kv_len,
        by_query=BlockLists(**lists),
        by_key=by_key,
        patterns=stored.patterns,
        key_patterns=pack_pattern(bits.transpose(0, 2, 1)),
        bounds=_bounds(parts.intervals, partial, num_q_blocks * block_m),
        key_is_read=read,
    )


def _stored_runs(offsets: Int32Array, pairs: Int32Array, kind: int) -> Runs:
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    first, stop = pairs.astype(np.int64).T
    return Runs(owner, first, stop, np.full(len(owner), kind, np.int64))


def block_lists(
    num_owners: int, full: Runs, partial: Runs, owner: Array, other: Array, pattern: Array
) -> BlockLists:
    """The lists of one direction, and the order of the owners: most work first."""
    lists = BlockLists(
        full_offsets=_offsets(full.owner, num_owners),
        full_runs=_pairs(full.first, full.stop),
        bounds_offsets=_offsets(partial.owner, num_owners),
        bounds_runs=_pairs(partial.first, partial.stop),
        pattern_offsets=_offsets(owner, num_owners),
        pattern_blocks=_pairs(other, pattern),
        order=np.zeros(0, np.int32),
    )
    order = np.argsort(-work_of(lists), kind="stable").astype(np.int32)
    return replace(lists, order=order)


def work_of(lists: BlockLists) -> NDArray[np.float64]:
    """The work of each owner, in full blocks."""
    work = PARTIAL_COST * np.diff(lists.pattern_offsets)
    for offsets, runs, cost in (
        (lists.full_offsets, lists.full_runs, 1.0),
        (lists.bounds_offsets, lists.bounds_runs, PARTIAL_COST),
    ):
        blocks = np.concatenate([[0], np.cumsum(runs[:, 1] - runs[:, 0], dtype=np.int64)])
        work += cost * np.diff(blocks[offsets])
    return work


def _offsets(owner: Array, num_owners: int) -> Int32Array:
    offsets = np.zeros(num_owners + 1, np.int32)
    np.cumsum(np.bincount(owner, minlength=num_owners), out=offsets[1:])
    return offsets


def _pairs(left: Array, right: Array) -> Int32Array:
    return np.ascontiguousarray(np.stack([left, right], axis=1).astype(np.int32))


def _bounds(intervals: RowIntervals, partial: Runs, num_rows: int) -> Int32Array:
    """Row bounds, only where some block is masked by them."""
    most = int(intervals.counts.max(initial=0))
    if not len(partial.owner) or not 0 < most <= MAX_BOUNDS:
        return np.zeros((0, num_rows), np.int32)
    return row_bounds(intervals, 1 << (most - 1).bit_length(), num_rows)


def _key_is_read(view: View, parts: Split, blocks: Blocks, block_n: int) -> Int32Array:
    num_kv_blocks = -(-view.kv_len // block_n)
    steps = np.zeros(num_kv_blocks * block_n + 1, np.int64)
    np.add.at(steps, parts.intervals.starts, 1)
    np.add.at(steps, parts.intervals.stops, -1)
    read = np.cumsum(steps[:-1]) > 0
    # what single patterns show, and blocks that only other clauses fill
    by_block = read.reshape(num_kv_blocks, block_n)
    columns: NDArray[np.bool_] = np.any(blocks.bits.bits, axis=1)
    np.logical_or.at(by_block, blocks.other, columns[blocks.pattern])
    steps = np.zeros(num_kv_blocks + 1, np.int64)
    np.add.at(steps, blocks.full.first, 1)
    np.add.at(steps, blocks.full.stop, -1)
    by_block[np.cumsum(steps[:-1]) > 0] = True
    if view.k_slots is not None:
        read[: view.kv_len] &= view.k_slots >= 0
    return read.astype(np.int32)
