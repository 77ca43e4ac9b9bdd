"""Parts of owners do the work of the owners, each block once, and none too much of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmask.runtime.kernels.config import KernelConfig
from cmask.runtime.kernels.device import PARTIAL_COST, DeviceDescriptor
from cmask.runtime.kernels.parts import BOUNDS, FULL, PATTERN, Lists, cut, whole
from support.compiled import planned


def blocks_of(lists: Lists, owner: int) -> list[tuple[int, int, int]]:
    """(kind, block, pattern or 0) of everything an owner walks."""
    found = []
    for kind in (FULL, BOUNDS, PATTERN):
        entries = lists.entries[lists.offsets[kind, owner] : lists.offsets[kind, owner + 1]]
        for first, second in entries.tolist():
            if kind == PATTERN:
                found.append((kind, first, second))
            else:
                found += [(kind, block, 0) for block in range(first, second)]
    return sorted(found)


def lists_of(owners: list[list[tuple[int, int, int]]]) -> Lists:
    """Lists of owners from (kind, first, stop or pattern)."""
    entries: list[tuple[int, int]] = []
    offsets = np.zeros((3, len(owners) + 1), np.int32)
    for kind in (FULL, BOUNDS, PATTERN):
        offsets[kind, 0] = len(entries)
        for i, owner in enumerate(owners):
            entries += [(a, b) for k, a, b in owner if k == kind]
            offsets[kind, i + 1] = len(entries)
    counts = [
        [sum(b - a for k, a, b in owner if k == kind) for owner in owners]
        for kind in (FULL, BOUNDS)
    ]
    costs = [
        sum((1.0 if k == FULL else PARTIAL_COST) * (1 if k == PATTERN else b - a) for k, a, b in o)
        for o in owners
    ]
    flat = np.array(entries, np.int32).reshape(-1, 2)
    order = np.argsort(-np.array(costs), kind="stable").astype(np.int32)
    return Lists(offsets, np.array(counts, np.int32).reshape(2, -1), flat, np.array(costs), order)


RUNS = st.tuples(st.sampled_from([FULL, BOUNDS]), st.integers(0, 50), st.integers(1, 80)).map(
    lambda run: (run[0], run[1], run[1] + run[2])
)
WORDS = st.tuples(st.just(PATTERN), st.integers(0, 90), st.integers(0, 5))


@settings(deadline=None)
@given(
    owners=st.lists(st.lists(RUNS | WORDS, max_size=6), min_size=1, max_size=5),
    limit=st.floats(1, 60),
)
def test_parts_walk_each_block_once(owners: list[list[tuple[int, int, int]]], limit: float) -> None:
    lists = lists_of(owners)
    parts = cut(lists, limit, PARTIAL_COST)
    for owner in range(len(owners)):
        mine = np.flatnonzero(parts.owners[:, 0] == owner)
        walked = [block for part in mine for block in blocks_of(parts.lists, part)]
        assert sorted(walked) == blocks_of(lists, owner)
        slots = parts.owners[mine, 1].tolist()
        if len(mine) == 1:
            assert slots == [-1]
        else:
            ((first, stop),) = [(a, b) for o, a, b in parts.heavy.tolist() if o == owner]
            assert slots == list(range(first, stop))
    assert parts.lists.costs.sum() == pytest.approx(lists.costs.sum())
    assert parts.lists.costs.max(initial=0) <= limit + 2 * PARTIAL_COST
    full_and_bounds = [
        [
            len([b for b in blocks_of(parts.lists, part) if b[0] == kind])
            for part in range(len(parts.owners))
        ]
        for kind in (FULL, BOUNDS)
    ]
    assert parts.lists.counts.tolist() == full_and_bounds
    assert parts.num_slots == sum(stop - first for _, first, stop in parts.heavy.tolist())


def test_nothing_is_cut_where_no_owner_is_heavy() -> None:
    lists = lists_of([[(FULL, 0, 10)], [(FULL, 3, 12)]])
    assert cut(lists, 20, PARTIAL_COST).heavy.shape == (0, 3)
    assert whole(lists).owners.tolist() == [[0, -1], [1, -1]]


def test_keys_that_every_query_sees_are_cut_for_the_hopper_backward_only() -> None:
    """A sink of 64 tokens before a window: its key block has the work of 64 others."""
    body = """region sink[64]; region text
        sink sees sink: causal
        text sees sink: all
        text sees text: window(255, 0)"""
    plan = planned(body, text=8000)
    by_kernel = {}
    for kernel in ("gluon", "triton"):
        config = KernelConfig(
            direction="dkdv", block_m=64, block_n=128, num_warps=8, num_stages=2, kernel=kernel
        )
        descriptor = DeviceDescriptor.from_host(plan.descriptor(64, 128), "cpu")
        object.__setattr__(descriptor, "_processors", 132)
        by_kernel[kernel] = descriptor.launch(
            config, num_heads=4, heads_per_walk=1, bytes_per_walk=1 << 20
        )
    assert by_kernel["triton"].num_slots == 0
    gluon = by_kernel["gluon"]
    assert gluon.heavy[:, 0].tolist() == [0]
    assert gluon.num_slots == len(gluon.owners) - plan.descriptor(64, 128).num_kv_blocks + 1 > 2
    assert len(gluon.items) == 4 * len(gluon.owners)
