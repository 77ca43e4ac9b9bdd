"""Corners that random masks reach rarely: each mask's fast forms against its meaning."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from numpy.typing import NDArray

from cmask.compiler.close import close
from cmask.compiler.resolve import resolve
from cmask.compiler.semantics import dense
from cmask.grammar.parser import parse
from cmask.grammar.source import Source
from cmask.runtime.derive.bound import bind
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.descriptor import BlockLists
from cmask.runtime.expressions import Value
from support.descriptor_checks import check_descriptor
from support.fact_checks import check_facts

SHAPES = ((8, 8), (8, 16), (16, 8), (32, 32))
NATTEN = "region image[h, w]{}; image sees image: window(h, {}, edge=shift{}) & window(w, 1, 1)"
RAGGED = "region line*[x]; line sees line: same(line) & window(x, {}, edge=shift{})"
LEVELS = "group a* {{ group b* {{ region t }}; t sees t: {} }}"

CORNERS: dict[str, tuple[str, dict[str, Value]]] = {
    "a moved window": (NATTEN.format("", "1, 1", ""), {"h": 7, "w": 4}),
    "a moved window that reaches one way": (NATTEN.format("", "3, 0", ""), {"h": 7, "w": 4}),
    "a moved window larger than its axis": (NATTEN.format("", "3, 4", ""), {"h": 5, "w": 3}),
    "a shared window whose last leader lies outside": (
        NATTEN.format("", "1, 1", ", stride=4"),
        {"h": 9, "w": 3},
    ),
    "a shared window in tiles": (
        NATTEN.format(" order tile(4, 4)", "2, 1", ", stride=3"),
        {"h": 10, "w": 6},
    ),
    "moved windows in lines of many lengths": (
        RAGGED.format("1, 1", ""),
        {"x": [5, 1, 9, 0, 3, 2]},
    ),
    "shared windows in lines of many lengths": (
        RAGGED.format("2, 1", ", stride=2"),
        {"x": [5, 1, 9, 0, 3, 2]},
    ),
    "residues of a level in its group": (
        LEVELS.format("same(b % 2)"),
        {"t": [[1, 2, 1], [2, 1, 2, 1], [], [1]]},
    ),
    "pairs of a level in its group": (
        LEVELS.format("upto(b / 2)"),
        {"t": [[1, 2, 1], [2, 1, 2, 1], [], [1, 3]]},
    ),
    "the end of what stands at one place": (
        "group g* { region c at 4; region h from end(c); h sees c, h: window(2, 1) }",
        {"c": [3, 1, 0], "h": [4, 2, 5]},
    ),
    "the end of nothing": (
        "region c at 2; region h from end(c); region t; t sees h: causal",
        {"c": 0, "h": 3, "t": 8},
    ),
    "places in the second group": (
        "group g* { region a from 3; region b at start(a); region c from end(a) + 1; "
        "all sees all: window(1, 2) }",
        {"a": [2, 3], "b": [1, 2], "c": [3, 1]},
    ),
    "places by a table in the second group": (
        "table t[row]; group g* { region pad; region a at t[row]; a sees all: causal } "
        "pad sees a: window(2, 2)",
        {"pad": [2, 1], "a": [3, 4], "t": [0, 2, 1, 3, 0, 1, 4]},
    ),
    "a table of queries whose keys lie elsewhere": (
        "table t[row]; key region k; query region q align start; region a at t[row]; "
        "q, a sees k, a: causal",
        {"k": 5, "q": 3, "a": 4, "t": [3, 0, 6, 1]},
    ),
    "a table of keys behind more queries": (
        "table t[row]; query region q at 4; region a at t[row]; q, a sees a: causal",
        {"q": 5, "a": 4, "t": [3, 0, 6, 1]},
    ),
    "the end of keys that stand at one place": (
        "group g* { key region k at 5; query region q align end; q sees k: window(1, 0) }",
        {"k": [3, 2], "q": [2, 4]},
    ),
    "the end of keys that are none": (
        "region x; group g* { key region k; query region q align end } q sees x, k: window(1, inf)",
        {"x": 3, "k": [0, 2, 0], "q": [2, 1, 3]},
    ),
    "blocks that differ only by their scope": (
        "group g* { region a; a sees a: all }; group h* { region b; b sees b: causal }",
        {"a": [8, 8, 16], "b": [8, 8, 3]},
    ),
    "residues in blocks that differ only by their scope": (
        "group g* { region a; a sees a: same(offset % 2) }",
        {"a": [4, 4, 8, 8, 16]},
    ),
    "blocks at the end of a clipped range": (
        "region a; a sees a: same(offset % 2) & window(offset, -12, 24)",
        {"a": 40},
    ),
    "members that change from block to block": (
        "region a; region b; region c; a sees a, c: same(offset % 3); c sees a: same(offset % 2)",
        {"a": 19, "b": 6, "c": 15},
    ),
    "a grid that ends inside a block": (
        "region a[h, w]; region b; a sees a: disc(h, 2); b sees b: self",
        {"h": 3, "w": 12, "b": 4},
    ),
    "a window that ends at the last key, and one beyond it": (
        "key region a; query region q at 27; query region before_q at 26; "
        "query region r at 28; query region before_r at 26; "
        "all sees a: window(-12, inf) & same(offset % 4)",
        {"a": 40, "q": 4, "before_q": 4, "r": 4, "before_r": 4},
    ),
    "what lies ahead fills its blocks": (
        "region a[h, w] order tile(4, 8); region b; a sees b: all; a sees a: causal & same(w)",
        {"h": 8, "w": 16, "b": 32},
    ),
    "nothing lies ahead": (
        "region a; a sees a: causal & same(offset % 3)",
        {"a": 29},
    ),
    "tiles that fill whole blocks": (
        "region a[h, w] order tile(4, 8); region b; a sees a: same(h / 4); a sees b: all",
        {"h": 8, "w": 16, "b": 5},
    ),
    "tiles that hang over the edge, all visible": (
        "region a[h, w] order tile(2, 4); a sees a: all",
        {"h": 3, "w": 6},
    ),
    "tiles that hang over the edge, by rows": (
        "region a[h, w] order tile(2, 4); region b; a, b sees b: causal; b sees a: all",
        {"h": 3, "w": 6, "b": 9},
    ),
    "grids, one larger than the other": (
        "region a[h, w]; region b[h, x]; a sees b: upto(h); b sees a: same(h / 2)",
        {"h": 5, "w": 3, "x": 4},
    ),
}


@pytest.mark.parametrize(("body", "sizes"), CORNERS.values(), ids=CORNERS)
def test_a_corner_means_what_it_says(body: str, sizes: dict[str, Value]) -> None:
    source = Source("corner.cmask", f"mask corner {{ {body} }}")
    mask = resolve(parse(source), source)
    expected = dense(mask, sizes)
    bound = bind(close(mask), sizes)
    seen = bound.visible(np.arange(bound.q_len), np.arange(bound.kv_len))
    np.testing.assert_array_equal(seen, expected)
    assert expected.any()
    for shape in SHAPES:
        for masking in ("auto", "pattern", "bounds"):
            with suppress(BindError):  # rows that bounds cannot hold
                check_descriptor(bound, bound.descriptor(*shape, masking), expected)
        check_facts(bound, expected, *shape)


def test_the_owner_with_the_most_work_comes_first() -> None:
    source = Source("causal.cmask", "mask causal { region text; text sees text: causal }")
    bound = bind(close(resolve(parse(source), source)), {"text": 200})
    descriptor = bound.descriptor(16, 16)
    for lists in (descriptor.by_query, descriptor.by_key):
        blocks = _blocks(lists)
        assert (np.diff(blocks[lists.order]) <= 0).all()
        assert blocks.sum() == 13 * 14 // 2


def _blocks(lists: BlockLists) -> NDArray[np.int64]:
    """The blocks of each owner."""
    counts = np.diff(lists.pattern_offsets).astype(np.int64)
    for offsets, runs in (
        (lists.full_offsets, lists.full_runs),
        (lists.bounds_offsets, lists.bounds_runs),
    ):
        before = np.concatenate([[0], np.cumsum(runs[:, 1] - runs[:, 0])])
        counts += np.diff(before[offsets])
    return counts
