"""Parents of a table as walks, and what is no tree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmask.runtime.derive.sizes import BindError
from cmask.runtime.derive.trees import walk
from support.compiled import bound


@given(st.permutations(range(9)), st.lists(st.integers(-1, 7), min_size=9, max_size=9))
def test_a_subtree_is_an_interval_of_the_walk(order: list[int], drawn: list[int]) -> None:
    parents = np.full(9, -1)
    for place in range(1, 9):
        if 0 <= drawn[place] < place:
            parents[order[place]] = order[drawn[place]]
    entered, left = walk(parents, "parent")
    assert sorted(entered) == list(range(9))
    for node in range(9):
        above, at = {node}, node
        while parents[at] >= 0:
            at = int(parents[at])
            above.add(at)
        found = np.flatnonzero((entered <= entered[node]) & (entered[node] < left))
        assert set(found.tolist()) == above


@pytest.mark.parametrize(
    ("parents", "said"),
    [
        ([-1, 2, 1], "node 1 is its own ancestor, or below one"),
        ([0], "node 0 is its own ancestor"),
        ([-1, 2], "node 1 has the parent 2, but its region has 2 tokens"),
    ],
)
def test_what_is_no_tree_is_refused(parents: list[int], said: str) -> None:
    body = "table parent[row]; region node; node sees node: tree(parent[row])"
    with pytest.raises(BindError, match="`parent`: " + said):
        bound(body, node=len(parents), parent=parents)


def test_several_trees_in_one_scope_compare_offsets() -> None:
    """As `self` does: each draft's nodes see the ancestors of their offset in all drafts."""
    body = "table parent[row]; region draft*; draft sees draft: tree(parent[row])"
    form = bound(body, draft=[3, 2], parent=[-1, 0, 0, -1, 0])
    seen = form.visible(np.arange(5), np.arange(5)).astype(int).tolist()
    assert seen == [
        [1, 0, 0, 1, 0],
        [1, 1, 0, 1, 1],
        [1, 0, 1, 1, 0],
        [1, 0, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]
