"""Real masks, written in the language, are the masks that they are said to be."""

from __future__ import annotations

import numpy as np
import pytest

from cmask.compiler.close import close
from cmask.compiler.ir import ResolvedMask
from cmask.compiler.resolve import resolve
from cmask.compiler.semantics import key_count, meaning, query_count
from cmask.grammar.parser import parse
from cmask.grammar.source import Source
from cmask.runtime.derive.bound import bind
from cmask.runtime.derive.facts import facts_of
from cmask.runtime.derive.sizes import bind_names
from cmask.runtime.descriptor import to_dense
from cmask.runtime.expressions import Value
from support.mask_predicates import PREDICATES
from support.oracle_masks import TEXTS, tables_of

SAMPLES = 2000


def bound(name: str) -> tuple[ResolvedMask, dict[str, Value]]:
    source = Source(f"{name}.cmask", TEXTS[name])
    mask = resolve(parse(source), source)
    return mask, bind_names(close(mask), given=tables_of(name))


def test_every_predicate_is_written_in_the_language() -> None:
    assert TEXTS.keys() == PREDICATES.keys()


@pytest.mark.parametrize("name", TEXTS)
def test_the_meaning_of_a_real_mask_is_its_predicate(name: str) -> None:
    mask, names = bound(name)
    expected = PREDICATES[name].dense()
    assert (query_count(mask, names), key_count(mask, names)) == expected.shape
    random = np.random.default_rng(0)
    rows, keys = (random.integers(0, n, SAMPLES).tolist() for n in expected.shape)
    sees = meaning(mask, names)
    differ = [(q, k) for q, k in zip(rows, keys, strict=True) if sees(q, k) != expected[q, k]]
    assert not differ


@pytest.mark.parametrize("name", TEXTS)
def test_the_closed_form_of_a_real_mask_is_its_predicate(name: str) -> None:
    mask, names = bound(name)
    form = bind(close(mask), names)
    expected = PREDICATES[name].dense()
    seen = form.visible(np.arange(form.q_len), np.arange(form.kv_len))
    np.testing.assert_array_equal(seen, expected)
    facts = facts_of(form)
    assert facts.visible_pairs == expected.sum()
    assert facts.empty_blocks + facts.partial_blocks + facts.full_blocks == _blocks(expected)


@pytest.mark.parametrize("name", TEXTS)
def test_the_blocks_of_a_real_mask_are_its_predicate(name: str) -> None:
    mask, names = bound(name)
    form = bind(close(mask), names)
    expected = PREDICATES[name].dense()
    found = to_dense(form.descriptor(128, 128))
    if form.q_slots is not None:
        found = found[np.argsort(np.where(form.q_slots < 0, len(found), form.q_slots))]
    if form.k_slots is not None:
        width = found.shape[1]
        found = found[:, np.argsort(np.where(form.k_slots < 0, width, form.k_slots))]
    np.testing.assert_array_equal(found[: len(expected), : expected.shape[1]], expected)


def _blocks(expected: np.ndarray) -> int:
    return -(-expected.shape[0] // 128) * -(-expected.shape[1] // 128)
