"""An artifact holds the whole mask, byte for byte, and a damaged one is refused in a sentence."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmask.compiler.close import close
from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.compiler.semantics import dense
from cmask.grammar.source import Source
from cmask.runtime.artifact import ArtifactError, read_artifact, store, write_artifact
from cmask.runtime.derive.bound import bind
from cmask.runtime.derive.facts import facts_of
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.descriptor import Descriptor
from cmask.runtime.mask import load
from cmask.runtime.schema import Body, StoredBlocks
from support.descriptor_checks import check_descriptor
from support.strategies import BoundCase, bound_masks, composed

SHAPES = ((16, 16), (32, 16))
OPTIONS = CompileOptions(seq=32, sizes={"cut": [4] * 30})
SMALL = """
mask small {
    param reach = 3
    table cut[row]
    group sample* {
        region prompt
        region image[h, w] order tile(2, 2)
        prompt sees prompt: causal & window(reach, 0)
        image sees prompt: until(cut[row])
        image sees image: disc(2)
    }
    sizes { sample = 2; prompt = seq / 4; h = 3; w = 5 }
}
"""


def body_of(case: BoundCase) -> Body:
    bound = bind(close(case.mask), case.sizes)
    source = "mask drawn {}"
    return Body(
        source=source,
        source_sha256=hashlib.sha256(source.encode()).digest(),
        closed_form=bound.form,
        names=dict(case.sizes),
        facts=facts_of(bound),
        descriptors=tuple(store(bound.descriptor(m, n)) for m, n in SHAPES),
        configs=(),
        given=tuple(sorted(case.sizes)),
    )


@composed
@given(case=bound_masks())
def test_an_artifact_gives_back_the_mask_that_was_written(case: BoundCase) -> None:
    body = body_of(case)
    data = write_artifact(body)
    again = read_artifact(data)
    assert again.closed_form == body.closed_form
    assert again.names == body.names
    assert again.facts == body.facts
    assert write_artifact(again) == data


@composed
@given(case=bound_masks())
def test_a_loaded_mask_has_the_blocks_of_the_mask_that_was_written(case: BoundCase) -> None:
    plan = load(write_artifact(body_of(case))).bind()
    expected = dense(case.mask, case.sizes)
    for m, n in SHAPES:
        check_descriptor(plan.bound, plan.descriptor(m, n), expected)


@composed
@given(case=bound_masks(), data=st.data())
def test_a_truncated_artifact_is_refused(case: BoundCase, data: st.DataObject) -> None:
    whole = write_artifact(body_of(case))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ArtifactError):
        read_artifact(whole[:cut])


@pytest.fixture(scope="module")
def small() -> bytes:
    return compile_source(Source("small.cmask", SMALL), OPTIONS).artifact


@composed
@given(data=st.data())
def test_a_flipped_bit_is_noticed(small: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(small) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ArtifactError):
        read_artifact(small[:at] + bytes([small[at] ^ bit]) + small[at + 1 :])


def test_the_same_source_gives_the_same_bytes(small: bytes) -> None:
    assert compile_source(Source("other/place.cmask", SMALL), OPTIONS).artifact == small


def test_an_artifact_of_another_version_says_which(small: bytes) -> None:
    outer = msgpack.unpackb(small)
    newer = msgpack.packb({**outer, "format_version": 3})
    with pytest.raises(ArtifactError, match=r"version 3.*compile the mask again"):
        read_artifact(newer)


def _by_bounds(blocks: StoredBlocks, first: int) -> StoredBlocks:
    """Pattern blocks of query blocks from `first` on as runs masked by row bounds."""
    kept = int(blocks.pattern_offsets[first])
    moved = blocks.pattern_blocks[kept:, :1]
    return replace(
        blocks,
        bounds_offsets=np.maximum(blocks.pattern_offsets - np.int32(kept), np.int32(0)),
        bounds_runs=np.concatenate([moved, moved + np.int32(1)], axis=1),
        pattern_offsets=np.minimum(blocks.pattern_offsets, np.int32(kept)),
        pattern_blocks=blocks.pattern_blocks[:kept],
        patterns=blocks.patterns[: None if kept else 0],
    )


def test_blocks_masked_in_two_ways_are_refused(small: bytes) -> None:
    """The Hopper forward masked the first of them by the bounds of another block."""
    body = read_artifact(small)
    mixed = [_by_bounds(blocks, 1) for blocks in body.descriptors]
    assert all(len(b.pattern_blocks) and len(b.bounds_runs) for b in mixed)
    with pytest.raises(ArtifactError, match="row bounds or by patterns, not by both"):
        read_artifact(write_artifact(replace(body, descriptors=tuple(mixed))))


def test_row_bounds_that_a_mask_does_not_have_are_refused(small: bytes) -> None:
    """Blocks of a disc, which rows see no intervals of, were dropped."""
    body = read_artifact(small)
    assert any(blocks.pattern_offsets[-1] for blocks in body.descriptors)
    moved = tuple(_by_bounds(blocks, 0) for blocks in body.descriptors)
    mask = load(write_artifact(replace(body, descriptors=moved)))
    with pytest.raises(BindError, match="row bounds, which this mask has not"):
        mask.bind()


HOSTILE = (-1, -(2**31), 2**31 - 1, 2**63, 10**6, None, "x", b"", [], {}, True, float("nan"))


@composed
@given(data=st.data())
def test_a_hostile_artifact_is_refused_or_harmless(small: bytes, data: st.DataObject) -> None:
    """With any leaf changed and a right checksum, no block leaves the mask's bounds."""
    body = _changed(_body(small), data)
    try:
        mask = load(_sealed(small, body))
        plans = [mask.bind()]
    except ValueError:  # ArtifactError and BindError are both
        return
    for plan in plans:
        for m, n in ((128, 128), (64, 128)):
            _check_bounds(plan.descriptor(m, n))


@composed
@given(data=st.data())
def test_hostile_block_lists_are_refused_or_harmless(small: bytes, data: st.DataObject) -> None:
    """The same, in the arrays of the descriptors, where a kernel would follow them."""
    body = _body(small)
    blocks = data.draw(st.sampled_from(body["descriptors"]))
    name = data.draw(st.sampled_from([n for n, v in sorted(blocks.items()) if isinstance(v, dict)]))
    array = np.frombuffer(blocks[name]["data"], "<i4").copy()
    if not array.size:
        return
    array[data.draw(st.integers(0, array.size - 1))] = data.draw(
        st.sampled_from((-1, 0, 1, 2, 7, 2**31 - 1, -(2**31)))
    )
    blocks[name]["data"] = array.tobytes()
    try:
        plan = load(_sealed(small, body)).bind()
    except ValueError:
        return
    for m, n in ((128, 128), (64, 128)):
        _check_bounds(plan.descriptor(m, n))


def _body(data: bytes) -> Any:
    return msgpack.unpackb(msgpack.unpackb(data)["body"])


def _sealed(data: bytes, body: Any) -> bytes:
    packed = msgpack.packb(body)
    checksum = hashlib.blake2b(packed, digest_size=16).digest()
    return msgpack.packb({**msgpack.unpackb(data), "checksum": checksum, "body": packed})


def _changed(value: Any, data: st.DataObject) -> Any:
    """A value with one part, somewhere inside, replaced."""
    children = list(value.items()) if isinstance(value, dict) else []
    children += list(enumerate(value)) if isinstance(value, list) else []
    if not children or data.draw(st.integers(0, 5)) == 0:
        return data.draw(st.sampled_from(HOSTILE))
    key, child = data.draw(st.sampled_from(children))
    value[key] = _changed(child, data)
    return value


def _check_bounds(d: Descriptor) -> None:
    """No index of a descriptor leads outside its arrays or its tokens."""
    sides = (
        (d.by_query, d.num_q_blocks, d.num_kv_blocks),
        (d.by_key, d.num_kv_blocks, d.num_q_blocks),
    )
    for lists, owners, others in sides:
        assert sorted(lists.order) == list(range(owners))
        for offsets, entries in (
            (lists.full_offsets, lists.full_runs),
            (lists.bounds_offsets, lists.bounds_runs),
            (lists.pattern_offsets, lists.pattern_blocks),
        ):
            assert offsets.shape == (owners + 1,)
            assert (np.diff(offsets) >= 0).all()
            assert offsets[0] == 0
            assert offsets[-1] == len(entries)
        for runs in (lists.full_runs, lists.bounds_runs):
            assert ((runs >= 0) & (runs <= others)).all()
        assert (lists.pattern_blocks >= 0).all()
        assert (lists.pattern_blocks[:, 0] < others).all()
        assert (lists.pattern_blocks[:, 1] < len(d.patterns)).all()
    assert d.patterns.shape[1:] == (d.block_m, 4)
    assert d.key_patterns.shape == (len(d.patterns), d.block_n, 4)
    assert d.bounds.shape[1] in (0, d.num_q_blocks * d.block_m)
    assert ((d.bounds >= 0) & (d.bounds <= d.kv_len)).all()
    assert d.key_is_read.shape == (d.num_kv_blocks * d.block_n,)
