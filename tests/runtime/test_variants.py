"""Rules for some heads: each head's mask is what its rules mean, and what is equal is shared."""

from __future__ import annotations

import hashlib
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given

from cmask.compiler.close import close
from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import bind_source, compile_source
from cmask.compiler.semantics import dense
from cmask.grammar.source import Source
from cmask.runtime.artifact import ArtifactError, read_artifact, write_artifact
from cmask.runtime.derive.bound import bind, bind_all
from cmask.runtime.derive.facts import facts_of
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.mask import load
from cmask.runtime.variants import form_of_head, variants_of
from support.descriptor_checks import check_descriptor
from support.strategies import BoundCase, composed, masks_by_head

HEADS = range(10)  # more than any rule is for
DUO = """
mask duo {
    param left = 3
    region text
    text sees text: window(left, 0)
    heads 2..3 { text sees text: causal }
    heads 6..6 { text sees text: causal }
    sizes { text = seq }
}
"""
PLAIN = "mask plain { region text; text sees text: causal; sizes { text = seq } }"


def artifact(text: str) -> bytes:
    return compile_source(Source("some.cmask", text), CompileOptions(seq=40)).artifact


# ------------------------------------------------------------------------------- meaning
@composed
@given(case=masks_by_head())
def test_every_head_has_one_variant_with_what_its_rules_mean(case: BoundCase) -> None:
    variants = variants_of(close(case.mask))
    bound = bind_all([variant.form for variant in variants], case.sizes)
    for head in HEADS:
        own = [
            b
            for variant, b in zip(variants, bound, strict=True)
            if any(a <= head and (z is None or head < z) for a, z in variant.heads)
        ]
        assert len(own) == 1
        expected = dense(case.mask, case.sizes, head)
        check_descriptor(own[0], own[0].descriptor(16, 16), expected)


@composed
@given(case=masks_by_head())
def test_a_variant_is_bound_as_it_would_be_alone(case: BoundCase) -> None:
    form = close(case.mask)
    variants = variants_of(form)
    bound = bind_all([variant.form for variant in variants], case.sizes)
    for variant, together in zip(variants, bound, strict=True):
        alone = bind(form_of_head(form, variant.heads[0][0]), case.sizes)
        assert facts_of(alone, 16, 16) == facts_of(together, 16, 16)
        rows, keys = np.arange(alone.q_len), np.arange(alone.kv_len)
        np.testing.assert_array_equal(alone.visible(rows, keys), together.visible(rows, keys))


def test_heads_with_the_same_rules_share_a_variant() -> None:
    made = compile_source(Source("duo.cmask", DUO), CompileOptions(seq=40))
    assert [variant.heads for variant in made.variants] == [
        ((0, 2), (4, 6), (7, None)),
        ((2, 4), (6, 7)),
    ]
    assert [facts.visible_pairs for facts in made.all_facts] == [4 * 40 - 6, 40 * 41 // 2]
    assert made.facts is None


def test_blocks_that_overlap_add_up() -> None:
    text = """
    mask sums {
        region text
        heads 0..2 { text sees text: self }
        heads 2..4 { text sees text: window(1, -1) }
        heads 1..3 { text sees text: first(1); }
        sizes { text = 4 }
    }"""
    source = Source("sums.cmask", text)
    rows = np.arange(4)
    own, before, first = np.eye(4, dtype=bool), np.eye(4, k=-1, dtype=bool), np.eye(4) > 2
    first[:, 0] = True
    nothing = np.zeros((4, 4), bool)
    expected = (own, own | first, own | before | first, before | first, before, nothing)
    for head, seen in enumerate(expected):
        found = bind_source(source, CompileOptions(), head).visible(rows, rows)
        np.testing.assert_array_equal(found, seen, err_msg=f"head {head}")


def test_a_mask_whose_heads_agree_after_all_has_one_variant() -> None:
    text = PLAIN.replace("causal;", "causal; heads 2..3 { text sees text: causal }")
    made = compile_source(Source("same.cmask", text), CompileOptions(seq=40))
    assert [variant.heads for variant in made.variants] == [((0, None),)]
    assert made.facts is not None
    assert load(made.artifact).bind().variants == ()


def test_who_wants_one_mask_for_all_heads_is_told() -> None:
    source = Source("duo.cmask", DUO)
    with pytest.raises(BindError, match="`duo` has rules for some heads"):
        bind_source(source, CompileOptions(seq=40))


# ------------------------------------------------------------------------------- artifact
def test_an_artifact_holds_each_variant_once() -> None:
    data = artifact(DUO)
    mask = load(data)
    assert msgpack.unpackb(data)["format_version"] == 2
    assert [v.heads for v in mask.variants] == [((0, 2), (4, 6), (7, None)), ((2, 4), (6, 7))]
    assert (mask.facts, mask.body.descriptors) == (None, ())
    assert [v.facts.visible_pairs for v in mask.body.variants] == [4 * 40 - 6, 40 * 41 // 2]
    assert mask.verify() == 2
    assert write_artifact(read_artifact(data)) == data
    assert [len(v.plan._descriptors) for v in mask.bind().variants] == [1, 1], "stored blocks serve"
    assert [len(v.plan._descriptors) for v in mask.bind(seq=50).variants] == [0, 0]


def test_a_mask_without_such_rules_keeps_the_first_version() -> None:
    assert msgpack.unpackb(artifact(PLAIN))["format_version"] == 1


def test_an_artifact_from_before_such_rules_loads() -> None:
    data = artifact(PLAIN)
    body = _body(data)
    for clause in body["closed_form"]["clauses"]:
        del clause["heads"]
    for golden in body["goldens"]:
        del golden["head"]
    del body["variants"]
    old, new = load(_sealed(data, body)), load(data)
    assert old.form == new.form
    assert old.facts == new.facts
    assert old.verify() == 1


@pytest.mark.parametrize(
    ("text", "version"), [(DUO, 1), (PLAIN, 2)], ids=["rules for some heads", "none"]
)
def test_a_version_that_does_not_go_with_the_rules_is_refused(text: str, version: int) -> None:
    data = artifact(text)
    outer = msgpack.unpackb(data)
    with pytest.raises(ArtifactError, match=f"version {version} does not go with its rules"):
        read_artifact(msgpack.packb({**outer, "format_version": version}))


def test_damaged_heads_are_refused() -> None:
    data = artifact(DUO)
    for heads in ([3, 3], [4, 2], [-1, 2]):
        body = _body(data)
        body["closed_form"]["clauses"][1]["heads"] = heads
        with pytest.raises(ArtifactError, match="a rule is for no head"):
            read_artifact(_sealed(data, body))
    body = _body(data)
    del body["variants"][0]
    with pytest.raises(ArtifactError, match="as many masks as their rules make"):
        read_artifact(_sealed(data, body))


def test_a_golden_vector_is_of_its_own_head() -> None:
    data = artifact(DUO)
    body = _body(data)
    first, second = body["goldens"]
    assert (first["head"], second["head"]) == (0, 2)
    first["head"], second["head"] = 2, 0
    with pytest.raises(ArtifactError, match="differs from its golden vector"):
        load(_sealed(data, body)).verify()


def _body(data: bytes) -> Any:
    return msgpack.unpackb(msgpack.unpackb(data)["body"])


def _sealed(data: bytes, body: Any) -> bytes:
    packed = msgpack.packb(body)
    checksum = hashlib.blake2b(packed, digest_size=16).digest()
    return msgpack.packb({**msgpack.unpackb(data), "checksum": checksum, "body": packed})
