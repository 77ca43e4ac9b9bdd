"""Rows of many intervals, at block shapes of kernels: lists and dictionary stay exact.

Random masks are too small for more than a few intervals a row; here a row has dozens.
"""

from __future__ import annotations

import numpy as np
import pytest

from cmask.compiler.close import close
from cmask.compiler.resolve import resolve
from cmask.compiler.semantics import meaning
from cmask.grammar.parser import parse
from cmask.grammar.source import Source
from cmask.runtime.derive.bound import BoundMask, bind
from cmask.runtime.derive.facts import facts_of
from cmask.runtime.expressions import Value
from support.descriptor_checks import Bools, check_descriptor, intervals_per_row

SHAPES = ((128, 128), (64, 128), (16, 32), (8, 8))
PARTS = 30

MASKS = {
    "text of all parts, never an image": "text sees text: all",
    "causal text, images in one part": "text sees text: causal; image sees image: same(part)",
    "a sink of each part": "image, text sees text: first(2) & upto(part)",
    "a window over parts": "text sees text: window(part, 12, 3); image sees text: causal",
    "residues of a part": "text sees text: same(part % 3) & causal",
    "every image of the past, in another order": "image sees image: causal",
}


def bound_and_seen(rules: str, order: str) -> tuple[BoundMask, Bools]:
    body = f"group part* {{ region text; region image{order} }}; {rules}"
    source = Source("many.cmask", f"mask many {{ {body} }}")
    mask = resolve(parse(source), source)
    random = np.random.default_rng(7)
    sizes: dict[str, Value] = {
        "text": random.integers(0, 15, PARTS).tolist(),
        "image": random.integers(0, 12, PARTS).tolist(),
    }
    bound = bind(close(mask), sizes)
    seen = bound.visible(np.arange(bound.q_len), np.arange(bound.kv_len))
    sees = meaning(mask, sizes)
    for q, k in random.integers(0, bound.q_len, (2000, 2)).tolist():
        assert seen[q, k] == sees(q, k)
    return bound, seen


@pytest.mark.parametrize("order", ["", " order mod(3)"])
@pytest.mark.parametrize("rules", MASKS.values(), ids=MASKS)
def test_rows_of_many_intervals_are_exact(rules: str, order: str) -> None:
    bound, seen = bound_and_seen(rules, order)
    counts = intervals_per_row(seen)
    assert counts.max() > 8
    intervals = bound.row_intervals()
    if intervals is not None:
        np.testing.assert_array_equal(intervals.counts, counts)
    for shape in SHAPES:
        check_descriptor(bound, bound.descriptor(*shape), seen)
        facts = facts_of(bound, *shape)
        assert facts.visible_pairs == seen.sum()
        assert facts.max_intervals in (None, counts.max())


@pytest.mark.parametrize("rules", MASKS.values(), ids=MASKS)
def test_some_rows_of_many_intervals_are_exact(rules: str) -> None:
    bound, seen = bound_and_seen(rules, "")
    start, stop = bound.q_len // 3, bound.q_len // 2
    part = bind(bound.form, bound.names, (start, stop))
    check_descriptor(part, part.descriptor(64, 64), seen[start:stop])
