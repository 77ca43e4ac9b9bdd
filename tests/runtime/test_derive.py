"""Every fast form of a mask says what the specification says, on random masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmask.compiler.close import close
from cmask.compiler.semantics import dense, key_count, query_count
from cmask.grammar.diagnostic import CmaskError
from cmask.runtime.derive.bound import BoundMask, bind
from cmask.runtime.derive.sizes import BindError
from support.compiled import bound as bound_text
from support.descriptor_checks import Bools, check_descriptor
from support.fact_checks import check_facts
from support.strategies import BoundCase, bound_masks, composed

BLOCK_SHAPES = ((8, 8), (16, 16), (16, 32), (32, 16), (8, 24), (64, 8), (128, 128))


def bound_of(case: BoundCase, rows: tuple[int, int] | None = None) -> BoundMask:
    return bind(close(case.mask), case.sizes, rows)


def everything(bound: BoundMask) -> Bools:
    return bound.visible(np.arange(bound.q_len), np.arange(bound.kv_len))


@composed
@given(case=bound_masks())
def test_the_closed_form_agrees_with_the_meaning_of_the_mask(case: BoundCase) -> None:
    bound = bound_of(case)
    assert bound.q_len == query_count(case.mask, case.sizes)
    assert bound.kv_len == key_count(case.mask, case.sizes)
    np.testing.assert_array_equal(everything(bound), dense(case.mask, case.sizes))


@composed
@given(case=bound_masks())
def test_intervals_agree_with_the_meaning_of_the_mask(case: BoundCase) -> None:
    bound = bound_of(case)
    intervals = bound.row_intervals()
    if intervals is None:
        return
    seen = np.zeros((bound.q_len, bound.kv_len), bool)
    for row in range(bound.q_len):
        each = slice(intervals.offsets[row], intervals.offsets[row + 1])
        starts, stops = intervals.starts[each], intervals.stops[each]
        assert (starts < stops).all(), "an interval is empty"
        assert (stops[:-1] < starts[1:]).all(), "intervals overlap, touch or descend"
        for start, stop in zip(starts, stops, strict=True):
            seen[row, start:stop] = True
    np.testing.assert_array_equal(seen, dense(case.mask, case.sizes))


@composed
@given(
    case=bound_masks(),
    shape=st.sampled_from(BLOCK_SHAPES),
    masking=st.sampled_from(("auto", "bounds", "pattern")),
)
def test_blocks_agree_with_the_meaning_of_the_mask(
    case: BoundCase, shape: tuple[int, int], masking: str
) -> None:
    bound = bound_of(case)
    try:
        descriptor = bound.descriptor(*shape, masking)
    except BindError:
        intervals = bound.row_intervals()
        assert masking == "bounds"
        assert bound.is_permuted or intervals is None or intervals.counts.max() > 4
        return
    check_descriptor(bound, descriptor, dense(case.mask, case.sizes))


@composed
@given(case=bound_masks(), data=st.data())
def test_rows_of_a_mask_are_a_slice_of_the_whole(case: BoundCase, data: st.DataObject) -> None:
    expected = dense(case.mask, case.sizes)
    stop = data.draw(st.integers(0, len(expected)))
    start = data.draw(st.integers(0, stop))
    bound = bound_of(case, (start, stop))
    assert (bound.q_len, bound.kv_len) == (stop - start, expected.shape[1])
    np.testing.assert_array_equal(everything(bound), expected[start:stop])
    check_descriptor(bound, bound.descriptor(16, 16), expected[start:stop])


@pytest.mark.parametrize("rows", [(0, 5), (-1, 2), (3, 2)])
def test_rows_that_do_not_exist_are_refused(rows: tuple[int, int]) -> None:
    from support.small import causal

    with pytest.raises(BindError, match="rows"):
        bind(close(causal()), {"text": 4}, rows)


@pytest.mark.parametrize(
    ("body", "sizes", "message"),
    [
        (
            "table t[row] region a at t[row] region b at end(a) all sees all: causal",
            {"a": 2, "b": 1, "t": [5, 7]},
            "places each token of `a`",
        ),
        (
            "table t[row] region a at t[row] query region q align end q sees a: causal",
            {"a": 2, "q": 1, "t": [5, 7]},
            "no start or end",
        ),
        (
            "query region q align end region b at end(q) all sees b: causal",
            {"q": 2, "b": 1},
            "depends on itself",
        ),
        (
            "table t[row] region a at t[row] + 1 a sees a: causal",
            {"a": 2, "t": [5, 7]},
            "only stand alone",
        ),
    ],
)
def test_places_that_do_not_exist_are_refused(
    body: str, sizes: dict[str, Any], message: str
) -> None:
    with pytest.raises((CmaskError, BindError), match=message):
        bound_text(body, **sizes)


@composed
@given(case=bound_masks())
def test_facts_are_exact(case: BoundCase) -> None:
    check_facts(bound_of(case), dense(case.mask, case.sizes), 16, 16)
