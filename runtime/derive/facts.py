"""What is true of a mask at its sizes: counts, shares, empty rows, unread keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cmask.runtime.closed_form import ClosedForm
from cmask.runtime.derive.bound import BoundMask
from cmask.runtime.derive.grid import grid_of
from cmask.runtime.derive.tokens import Array, Side
from cmask.runtime.descriptor import BlockLists, Descriptor, unpack_pattern

_BLOCKS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Unused:
    """Tokens of one region that see nothing, or that nothing sees, and why."""

    region: str
    count: int
    total: int
    reason: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a bound mask; blocks are of `block_m` queries × `block_n` keys.

    density          visible pairs / all pairs
    max_intervals    most key intervals of a row in the caller's order; None where some rule is
                     no row interval (grids, residues)
    useful_share     visible pairs / pairs in visited blocks
    descriptor_bytes the block lists of both directions and the dictionary [bytes]; its transposed
                     copy follows from it and does not count
    looks_ahead      whether any query sees a key that lies behind it in the sequence
    """

    q_len: int
    kv_len: int
    visible_pairs: int
    density: float
    max_intervals: int | None
    block_m: int
    block_n: int
    full_blocks: int
    partial_blocks: int
    empty_blocks: int
    useful_share: float
    num_patterns: int
    descriptor_bytes: int
    empty_rows: tuple[Unused, ...]
    unread_keys: tuple[Unused, ...]
    looks_ahead: bool


def facts_of(bound: BoundMask, block_m: int = 128, block_n: int = 128) -> Facts:
    """The facts of a bound mask."""
    descriptor = bound.descriptor(block_m, block_n)
    lists = descriptor.by_query
    full = int((lists.full_runs[:, 1] - lists.full_runs[:, 0]).sum())
    by_bounds = int((lists.bounds_runs[:, 1] - lists.bounds_runs[:, 0]).sum())
    partial = by_bounds + len(lists.pattern_blocks)
    bits = unpack_pattern(descriptor.patterns, block_n)
    pairs = visible_pairs(bound, descriptor, bits)
    visited = (full + partial) * block_m * block_n
    intervals = bound.row_intervals()
    blocks = descriptor.num_q_blocks * descriptor.num_kv_blocks
    return Facts(
        q_len=bound.q_len,
        kv_len=bound.kv_len,
        visible_pairs=pairs,
        density=pairs / (bound.q_len * bound.kv_len) if bound.q_len and bound.kv_len else 0.0,
        max_intervals=None if intervals is None else int(intervals.counts.max(initial=0)),
        block_m=block_m,
        block_n=block_n,
        full_blocks=full,
        partial_blocks=partial,
        empty_blocks=blocks - full - partial,
        useful_share=pairs / visited if visited else 1.0,
        num_patterns=len(descriptor.patterns),
        descriptor_bytes=descriptor_bytes(descriptor),
        empty_rows=_unused(bound, "q", _sees_something(bound, descriptor, bits)),
        unread_keys=_unused(bound, "k", _is_read(bound, descriptor)),
        looks_ahead=_looks_ahead(bound, descriptor, bits),
    )


def visible_pairs(bound: BoundMask, descriptor: Descriptor, bits: NDArray[np.bool_]) -> int:
    """How many pairs are visible, exactly."""
    intervals = bound.row_intervals()
    if intervals is not None:
        return int((intervals.stops.astype(np.int64) - intervals.starts).sum())
    lists = descriptor.by_query
    rows = _real_rows(bound, descriptor.block_m)
    lengths = (lists.full_runs[:, 1] - lists.full_runs[:, 0]).astype(np.int64)
    full = lengths * np.repeat(rows, np.diff(lists.full_offsets)) * descriptor.block_n
    each = bits.sum(axis=(1, 2))
    return int(full.sum() + each[lists.pattern_blocks[:, 1]].sum())


def descriptor_bytes(descriptor: Descriptor) -> int:
    """Bytes of the lists of both directions and of the dictionary, taken once."""
    lists = (descriptor.by_query, descriptor.by_key)
    arrays = [getattr(side, name) for side in lists for name in BlockLists.__dataclass_fields__]
    return sum(array.nbytes for array in (*arrays, descriptor.patterns))


def _real_rows(bound: BoundMask, block_m: int) -> Array:
    blocks = grid_of(bound.q_len, bound.q_slots, block_m)
    return (blocks >= 0).sum(axis=1)


def _sees_something(
    bound: BoundMask, descriptor: Descriptor, bits: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """bool[q_len]: which queries see a key."""
    intervals = bound.row_intervals()
    if intervals is not None:
        return intervals.counts > 0
    lists, block_m = descriptor.by_query, descriptor.block_m
    owners = np.arange(descriptor.num_q_blocks)
    sees = np.zeros((descriptor.num_q_blocks, block_m), bool)
    sees[np.repeat(owners, np.diff(lists.full_offsets))] = True
    rows: NDArray[np.bool_] = np.any(bits, axis=2)
    owner = np.repeat(owners, np.diff(lists.pattern_offsets))
    np.logical_or.at(sees, owner, rows[lists.pattern_blocks[:, 1]])
    return _of_tokens(sees.reshape(-1), bound.q_slots, bound.q_len)


def _is_read(bound: BoundMask, descriptor: Descriptor) -> NDArray[np.bool_]:
    """bool[kv_len]: which keys some query sees."""
    return _of_tokens(descriptor.key_is_read.astype(bool), bound.k_slots, bound.kv_len)


def _of_tokens(per_slot: NDArray[np.bool_], slots: Array | None, count: int) -> NDArray[np.bool_]:
    if slots is None:
        return per_slot[:count]
    per_token = np.zeros(count, bool)
    real = np.flatnonzero(slots >= 0)
    per_token[slots[real]] = per_slot[real]
    return per_token


def _unused(bound: BoundMask, side: Side, used: NDArray[np.bool_]) -> tuple[Unused, ...]:
    """The unused tokens by region, in layout order."""
    first = bound.rows[0] if side == "q" else 0
    counts: dict[str, list[int]] = {}
    for s in bound.segments:
        start, stop = (s.q_start, s.q_stop) if side == "q" else (s.k_start, s.k_stop)
        start, stop = (min(max(x - first, 0), len(used)) for x in (start, stop))
        count = counts.setdefault(s.region, [0, 0])
        count[0] += int((~used[start:stop]).sum())
        count[1] += stop - start
    return tuple(
        Unused(region, unused, total, _reason(bound.form, region, side, unused == total))
        for region, (unused, total) in counts.items()
        if unused
    )


def _reason(form: ClosedForm, region: str, side: Side, whole: bool) -> str:
    named = any(region in (c.queries if side == "q" else c.keys) for c in form.clauses)
    if not named:
        return f"no rule has `{region}` as {'a query' if side == 'q' else 'a key'}"
    some = "" if whole else "some of "
    if side == "q":
        return f"the rules show nothing to {some}its tokens at these sizes"
    return f"the rules show {some}its tokens to no query at these sizes"


def _looks_ahead(bound: BoundMask, descriptor: Descriptor, bits: NDArray[np.bool_]) -> bool:
    own = _own_key(bound)
    intervals = bound.row_intervals()
    if intervals is not None:
        rows = intervals.rows
        return bool((intervals.stops - 1 > own[rows])[own[rows] >= 0].any())
    block_m, block_n = descriptor.block_m, descriptor.block_n
    queries = grid_of(bound.q_len, bound.q_slots, block_m)
    keys = grid_of(bound.kv_len, bound.k_slots, block_n)
    behind = np.where(queries >= 0, own[np.maximum(queries, 0)], -1)
    lists = descriptor.by_query
    far = 1 << 40
    earliest = np.where(behind >= 0, behind, far).min(axis=1, initial=far)
    owner = np.repeat(np.arange(descriptor.num_q_blocks), np.diff(lists.full_offsets))
    for o, (first, stop) in zip(owner, lists.full_runs, strict=True):
        if keys[first:stop].max(initial=-1) > earliest[o]:
            return True
    owner = np.repeat(np.arange(descriptor.num_q_blocks), np.diff(lists.pattern_offsets))
    for at in range(0, len(owner), _BLOCKS_AT_ONCE):
        blocks = lists.pattern_blocks[at : at + _BLOCKS_AT_ONCE]
        q = behind[owner[at : at + _BLOCKS_AT_ONCE]][:, :, None]
        if (bits[blocks[:, 1]] & (q >= 0) & (keys[blocks[:, 0]][:, None, :] > q)).any():
            return True
    return False


def _own_key(bound: BoundMask) -> Array:
    """int64[q_len]: the key index of each query's own token; -1 for a query that is no key."""
    own = np.full(bound.tokens.length("q"), -1, np.int64)
    for s in bound.layout.segments:
        if s.q_start >= 0 and s.k_start >= 0:
            own[s.q_start : s.q_start + s.length] = np.arange(s.k_start, s.k_start + s.length)
    return own[bound.rows[0] : bound.rows[1]]
