"""What a descriptor promises, checked against a dense mask."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cmask.runtime.derive.bound import BoundMask
from cmask.runtime.descriptor import BlockLists, Descriptor, to_dense, unpack_pattern

Bools = NDArray[np.bool_]


def slots_view(bound: BoundMask, expected: Bools) -> Bools:
    """The dense mask in the order that kernels work in; padding sees and shows nothing."""
    if bound.q_slots is not None:
        expected = np.where((bound.q_slots >= 0)[:, None], expected[bound.q_slots], False)
    if bound.k_slots is not None:
        expected = np.where(bound.k_slots >= 0, expected[:, bound.k_slots], False)
    return expected


def check_descriptor(bound: BoundMask, descriptor: Descriptor, expected: Bools) -> None:
    """Everything that `Descriptor` promises about a dense mask in the caller's order."""
    for slots, count in ((bound.q_slots, bound.q_len), (bound.k_slots, bound.kv_len)):
        if slots is not None:
            assert sorted(slots[slots >= 0]) == list(range(count)), "slots are no permutation"
    in_slots = slots_view(bound, expected)
    assert (descriptor.q_len, descriptor.kv_len) == in_slots.shape
    real = _real_rows(bound)
    np.testing.assert_array_equal(to_dense(descriptor)[real], in_slots[real])
    read = np.zeros(descriptor.num_kv_blocks * descriptor.block_n, np.int32)
    read[: descriptor.kv_len] = in_slots.any(axis=0)
    np.testing.assert_array_equal(descriptor.key_is_read, read)
    kinds = _kinds(descriptor.by_query, descriptor.num_q_blocks)
    assert kinds == _transposed(_kinds(descriptor.by_key, descriptor.num_kv_blocks))
    _check_kinds(bound, descriptor, in_slots, kinds)
    for lists in (descriptor.by_query, descriptor.by_key):
        _check_lists(lists)
    m, n = descriptor.block_m, descriptor.block_n
    patterns = unpack_pattern(descriptor.patterns, n)
    np.testing.assert_array_equal(
        patterns, unpack_pattern(descriptor.key_patterns, m).transpose(0, 2, 1)
    )
    assert len({p.tobytes() for p in patterns}) == len(patterns), "a pattern stands twice"
    assert descriptor.num_intervals in (0, 1, 2, 4)


def _real_rows(bound: BoundMask) -> Bools:
    return np.ones(bound.q_len, bool) if bound.q_slots is None else bound.q_slots >= 0


Kinds = dict[tuple[int, int], tuple[str, int]]


def _kinds(lists: BlockLists, owners: int) -> Kinds:
    """Each listed block of an owner: how it is masked, and its pattern."""
    found: Kinds = {}
    for owner, block, kind in _listed(lists, owners):
        assert (owner, block) not in found, "a block is listed twice"
        found[owner, block] = kind
    return found


def _listed(lists: BlockLists, owners: int) -> Iterator[tuple[int, int, tuple[str, int]]]:
    named = (
        ("full", lists.full_offsets, lists.full_runs),
        ("bounds", lists.bounds_offsets, lists.bounds_runs),
    )
    for owner in range(owners):
        for kind, offsets, runs in named:
            for first, stop in runs[offsets[owner] : offsets[owner + 1]]:
                yield from ((owner, block, (kind, -1)) for block in range(first, stop))
        patterns = lists.pattern_blocks[
            lists.pattern_offsets[owner] : lists.pattern_offsets[owner + 1]
        ]
        yield from ((owner, int(b), ("pattern", int(p))) for b, p in patterns)


def _transposed(kinds: Kinds) -> Kinds:
    return {(other, owner): kind for (owner, other), kind in kinds.items()}


def _check_kinds(bound: BoundMask, d: Descriptor, in_slots: Bools, kinds: Kinds) -> None:
    for i in range(d.num_q_blocks):
        for j in range(d.num_kv_blocks):
            kind = kinds.get((i, j), ("empty", -1))[0]
            assert (kind == "empty", kind == "full") in _allowed(bound, d, in_slots, i, j)


def _allowed(
    bound: BoundMask, d: Descriptor, in_slots: Bools, i: int, j: int
) -> set[tuple[bool, bool]]:
    """(is empty, is full) of a block; one with padded queries may be called either way."""
    rows = slice(i * d.block_m, (i + 1) * d.block_m)
    real = _real_rows(bound)[rows]
    block = in_slots[rows, j * d.block_n : (j + 1) * d.block_n]
    if not block.any():
        return {(True, False)}
    if not block[real].all() or block.shape[1] < d.block_n:
        return {(False, False)}
    return {(False, True)} if real.all() else {(False, True), (False, False)}


def _check_lists(lists: BlockLists) -> None:
    owners = len(lists.full_offsets) - 1
    for offsets, entries in (
        (lists.full_offsets, lists.full_runs),
        (lists.bounds_offsets, lists.bounds_runs),
        (lists.pattern_offsets, lists.pattern_blocks),
    ):
        assert entries.dtype == offsets.dtype == np.int32
        assert offsets[0] == 0
        assert offsets[-1] == len(entries)
        assert (np.diff(offsets) >= 0).all()
    for offsets, runs in (
        (lists.full_offsets, lists.full_runs),
        (lists.bounds_offsets, lists.bounds_runs),
    ):
        for owner in range(owners):
            mine = runs[offsets[owner] : offsets[owner + 1]]
            assert (mine[:, 0] < mine[:, 1]).all(), "a run is empty"
            assert (mine[:-1, 1] < mine[1:, 0]).all(), "runs could be joined, or descend"
    work = np.zeros(owners, int)
    for owner, _, _ in _listed(lists, owners):
        work[owner] += 1
    assert sorted(lists.order) == list(range(owners))


def blocks_by_kind(in_slots: Bools, m: int, n: int, bound: BoundMask) -> dict[str, int]:
    """Exact counts; blocks with padded queries count as the descriptor has them."""
    d = bound.descriptor(m, n)
    kinds = _kinds(d.by_query, d.num_q_blocks)
    counts = {"full": 0, "partial": 0, "empty": 0}
    for i in range(d.num_q_blocks):
        for j in range(d.num_kv_blocks):
            allowed = _allowed(bound, d, in_slots, i, j)
            kind = kinds.get((i, j), ("empty", -1))[0]
            empty, full = allowed.pop() if len(allowed) == 1 else (False, kind == "full")
            counts["empty" if empty else "full" if full else "partial"] += 1
    return counts


def intervals_per_row(expected: Bools) -> NDArray[np.int64]:
    """Maximal runs of visible keys in each row."""
    before = np.pad(expected, ((0, 0), (1, 0)))[:, :-1]
    return (expected & ~before).sum(axis=1)
