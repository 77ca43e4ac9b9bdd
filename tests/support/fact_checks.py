"""What facts promise, checked against a dense mask."""

from __future__ import annotations

import pytest

from cmask.runtime.derive.bound import BoundMask
from cmask.runtime.derive.facts import facts_of
from support.descriptor_checks import Bools, blocks_by_kind, intervals_per_row, slots_view


def check_facts(bound: BoundMask, expected: Bools, block_m: int, block_n: int) -> None:
    """Every fact of a bound mask at one block shape."""
    facts = facts_of(bound, block_m, block_n)
    assert facts.visible_pairs == expected.sum()
    assert facts.density == pytest.approx(expected.mean() if expected.size else 0.0)
    if facts.max_intervals is not None:
        assert facts.max_intervals == intervals_per_row(expected).max(initial=0)
    counts = blocks_by_kind(slots_view(bound, expected), block_m, block_n, bound)
    assert facts.full_blocks == counts["full"]
    assert facts.partial_blocks == counts["partial"]
    assert facts.empty_blocks == counts["empty"]
    assert _unused(facts.empty_rows) == _by_region(bound, "q", ~expected.any(axis=1))
    assert _unused(facts.unread_keys) == _by_region(bound, "k", ~expected.any(axis=0))
    assert facts.looks_ahead == _looks_ahead(bound, expected)


def _unused(facts: object) -> dict[str, tuple[int, int]]:
    return {u.region: (u.count, u.total) for u in facts}  # type: ignore[attr-defined]


def _by_region(bound: BoundMask, side: str, unused: Bools) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for s in bound.segments:
        start, stop = (s.q_start, s.q_stop) if side == "q" else (s.k_start, s.k_stop)
        count, total = found.get(s.region, (0, 0))
        found[s.region] = (count + int(unused[start:stop].sum()), total + stop - start)
    return {region: counts for region, counts in found.items() if counts[0]}


def _looks_ahead(bound: BoundMask, expected: Bools) -> bool:
    """Whether a query that is a key itself sees a key behind its own."""
    return any(
        expected[s.q_start + i, s.k_start + i + 1 :].any()
        for s in bound.segments
        if s.q_stop > s.q_start and s.k_stop > s.k_start
        for i in range(s.q_stop - s.q_start)
    )
