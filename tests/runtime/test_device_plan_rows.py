"""Lengths bound on the device give the same rows and blocks as on the host, bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cmask import masks
from cmask.compiler.close import close
from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.grammar.source import Source
from cmask.runtime.derive.bound import bind
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.mask import Mask, load
from cmask.runtime.on_device import lists as lists_of_plans
from cmask.runtime.on_device import sides
from cmask.runtime.on_device.lengths import CuSeqlens
from cmask.runtime.on_device.lists import CapacityDescriptor
from cmask.runtime.on_device.plan import CapacityError
from support.attending import DEVICE
from support.device_masks import bindable_masks, check_lists, check_rows, device_plan
from support.strategies import BoundCase

SHAPES = ((16, 16), (16, 32), (32, 16), (64, 32), (128, 128))
thorough = settings(
    max_examples=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@thorough
@given(case=bindable_masks(), instances=st.sampled_from((3, 4)), shape=st.sampled_from(SHAPES))
def test_a_device_plan_is_the_host_plan(
    case: BoundCase, instances: int, shape: tuple[int, int]
) -> None:
    form = close(case.mask)
    bound = bind(form, case.sizes)
    intervals = bound.row_intervals()
    assume(intervals is not None)
    try:
        plan = device_plan(form, (64, 80), instances).bind_(**case.sizes)
    except BindError as error:  # one of few masks that only the host binds
        assume("without a place of their own" not in str(error))
        raise
    if intervals.counts.max(initial=0) > 4:
        with pytest.raises(CapacityError, match="intervals"):
            plan.check()
        return
    plan.check()
    check_rows(plan, bound)
    check_lists(plan, bound, *shape)


def shipped(name: str) -> Mask:
    source = Source(name, masks.path(name).read_text(encoding="utf-8"))
    return load(compile_source(source, CompileOptions(symbolic=True)).artifact)


def lengths(*numbers: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype, device=DEVICE)


def scalar(number: int) -> torch.Tensor:
    return torch.tensor(number, device=DEVICE)


def as_numbers(value: Any) -> Any:
    if isinstance(value, CuSeqlens):
        return value.tensor.diff().tolist()
    return value.tolist() if isinstance(value, torch.Tensor) else value


CASES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "causal": ({}, {"text": scalar(100)}),
    "sliding_window": ({}, {"text": scalar(150), "left": 20}),
    "sink_window": ({}, {"text": scalar(150), "left": 20, "sink": 3}),
    "causal_documents": ({"document": 6}, {"text": lengths(10, 0, 33, 1, dtype=torch.int64)}),
    "windowed_documents": (
        {"document": 6},
        {"text": CuSeqlens(lengths(0, 40, 40, 41, 108)), "reach": 7},
    ),
    "prefix_lm_documents": ({"document": 3}, {"prefix": lengths(5, 0), "body": lengths(30, 21)}),
    "prefix_lm": ({}, {"prefix": scalar(50), "body": 60}),
    "shared_prompt": (
        {"sample": 3, "answer": 4},
        {"prompt": lengths(20, 11), "answer": lengths([5, 7, 0], [3, 9, 40])},
    ),
    "shared_prompt_packed": (
        {"sample": 3, "answer": 4},
        {"prompt": lengths(20, 11), "answer": [[5, 7], [3, 9, 1, 20]]},
    ),
    "hstu": (
        {"user": 3},
        {"context": 3, "target": lengths(3, 5), "history": lengths(20, 40), "max_attn_len": 9},
    ),
    "hstu_target_groups": (
        {"user": 3, "target": 3},
        {"context": 3, "target": lengths([3, 5], [2, 2]), "history": lengths(20, 40)},
    ),
    "block_diffusion": ({}, {"noisy": scalar(50), "clean": scalar(60), "block": 7}),
    "chunked_causal": ({}, {"text": scalar(100), "chunk": 24}),
    "cross_attention": ({"pair": 3}, {"target": lengths(3, 5, 40), "source": lengths(20, 40, 0)}),
    "image_blocks": ({"part": 4}, {"text": lengths(3, 5, 40), "image": lengths(20, 40, 0)}),
}


@pytest.mark.parametrize("name", CASES)
def test_lengths_may_be_tensors(name: str) -> None:
    instances, sizes = CASES[name]
    mask = shipped(name)
    bound = mask.bind(**{n: as_numbers(v) for n, v in sizes.items()}).bound
    plan = mask.plan(160, instances=instances, runs_per_block=16, device=DEVICE)
    for _ in range(2):  # the second time, the host has nothing to copy
        plan.bind_(**sizes)
        plan.check()
        check_rows(plan, bound)
    check_lists(plan, bound, 32, 32)


def test_one_length_for_all_instances_goes_to_those_that_are_there() -> None:
    mask = shipped("shared_prompt")
    plan = mask.plan(200, instances={"sample": 4, "answer": 3}, device=DEVICE)
    plan.bind_(sample=2, prompt=scalar(20), answer=lengths(7, 9))
    plan.check()
    check_rows(plan, mask.bind(sample=2, prompt=20, answer=[7, 9]).bound)


def test_a_plan_forgets_what_was_bound_before() -> None:
    """Buffers are the same, and hold nothing of an older binding."""
    mask = shipped("causal_documents")
    plan = mask.plan(300, instances={"document": 8}, device=DEVICE)
    addresses = None
    for text in ([100, 90, 80], [5], [1] * 8, [], [0, 250]):
        plan.bind_(text=text)
        check_rows(plan, mask.bind(text=text).bound)
        check_lists(plan, mask.bind(text=text).bound, 64, 32)
        found = plan.device_descriptor(64, 32)
        lists = (found.by_query, found.by_key)
        now = [t.data_ptr() for side in lists for t in (side.counts, side.offsets, side.entries)]
        assert addresses in (None, [*now, plan.bounds.data_ptr()])
        addresses = [*now, plan.bounds.data_ptr()]


def test_new_block_shapes_are_filled_with_what_is_bound() -> None:
    mask = shipped("causal_documents")
    plan = mask.plan(300, instances={"document": 3}, device=DEVICE).bind_(text=lengths(100, 90, 80))
    for shape in ((16, 16), (128, 64)):
        check_lists(plan, mask.bind(text=[100, 90, 80]).bound, *shape)


def test_lists_by_key_are_made_when_they_are_asked_for() -> None:
    """A plan that is not trained binds without; one that is from then on keeps them up to date."""
    mask = shipped("causal_documents")
    plan = mask.plan(300, instances={"document": 3}, device=DEVICE).bind_(text=lengths(100, 90, 80))
    found = plan.device_descriptor(16, 16)
    assert isinstance(found, CapacityDescriptor)
    plan.bind_(text=lengths(10, 20, 30))
    assert not found.has_lists_by_key
    assert not found.by_key.counts.any()
    check_lists(plan, mask.bind(text=[10, 20, 30]).bound, 16, 16)
    plan.bind_(text=lengths(200, 0, 90))
    check_lists(plan, mask.bind(text=[200, 0, 90]).bound, 16, 16)


def test_lists_that_a_captured_graph_does_not_fill_are_refused() -> None:
    """They would be those of an older binding after each replay: wrong gradients."""
    plan = shipped("causal").plan(64, device=DEVICE).bind_(text=scalar(50))
    found = plan.device_descriptor(16, 16)
    plan._rows.captured.append(torch.zeros(1))  # as a capture does
    with pytest.raises(BindError, match="no lists of a backward: attend once"):
        found._walk(True, False, 1, 1)
    with pytest.raises(BindError, match="no lists of blocks of 16 × 32"):
        plan.device_descriptor(16, 32)
    assert plan.device_descriptor(16, 16) is found
    assert not copy.deepcopy(plan)._rows.captured


def test_runs_of_many_blocks_are_placed_by_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "_FEW", 4)
    mask = shipped("causal_documents")
    plan = mask.plan(400, instances={"document": 8}, device=DEVICE)
    for text in ([100, 90, 80, 0, 60], [5], [1] * 8, [], [0, 400]):
        plan.bind_(text=text)
        check_lists(plan, mask.bind(text=text).bound, 16, 16)
    plan = shipped("sink_window").plan(128, runs_per_block=1, device=DEVICE)
    lists = plan.device_descriptor(16, 16)
    plan.bind_(text=128, left=40, sink=3)
    with pytest.raises(CapacityError, match="runs_per_block"):
        plan.check()
    assert not lists.by_query.counts.any()


def test_more_bits_than_kernels_count_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = shipped("causal").plan(1000, device=DEVICE).bind_(text=scalar(50))
    found = plan.device_descriptor(16, 16)
    monkeypatch.setattr(lists_of_plans, "_MOST_WORDS", 2 * 63 * 2)
    with pytest.raises(BindError, match="bind on the host"):
        found.fill_by_key()
    monkeypatch.setattr(lists_of_plans, "_MOST_WORDS", 2 * 63 * 2 + 1)
    found.fill_by_key()


def test_a_key_block_is_seen_by_more_queries_than_a_word_has_bits() -> None:
    mask = shipped("prefix_lm")
    tokens = 16 * 70
    plan = mask.plan(tokens, device=DEVICE)
    for prefix in (0, 16 * 33 + 5, 16 * 64):
        plan.bind_(prefix=prefix, body=tokens - prefix)
        check_lists(plan, mask.bind(prefix=prefix, body=tokens - prefix).bound, 16, 16)


def test_keys_that_nobody_sees_are_not_read() -> None:
    """In the middle of a block, over several, and behind the last one that is bound."""
    mask = shipped("cross_attention")
    plan = mask.plan((200, 600), instances={"pair": 3}, device=DEVICE)
    for target, source in (
        ([3, 0, 5], [130, 7, 37]),
        ([3, 0, 50], [127, 300, 37]),
        ([0, 1, 0], [256, 128, 128]),
        ([0, 0, 0], [20, 30, 40]),
        ([60, 60, 60], [200, 200, 200]),
    ):
        plan.bind_(target=lengths(*target), source=lengths(*source))
        plan.check()
        bound = mask.bind(target=target, source=source).bound
        check_rows(plan, bound)
        check_lists(plan, bound, 64, 32)


def test_rows_find_their_instances_among_many() -> None:
    """More than are looked at together, empty ones and a long one among them."""
    random = np.random.default_rng(5)
    mask = shipped("causal_documents")
    plan = mask.plan(700, instances={"document": 300}, device=DEVICE)
    for high in (3, 2, 1):
        text = random.integers(0, high, 300)
        text[200] += 90
        plan.bind_(text=torch.from_numpy(text).to(DEVICE))
        plan.check()
        check_rows(plan, mask.bind(text=text.tolist()).bound)


def test_rows_see_instances_far_apart() -> None:
    """Of one group, whose instances stand behind those of the groups before."""
    random = np.random.default_rng(6)
    mask = shipped("shared_prompt")
    plan = mask.plan(900, instances={"sample": 9, "answer": 40}, device=DEVICE)
    prompt, answer = random.integers(0, 30, 9), random.integers(0, 3, (9, 40))
    plan.bind_(
        prompt=torch.from_numpy(prompt).to(DEVICE), answer=torch.from_numpy(answer).to(DEVICE)
    )
    plan.check()
    check_rows(plan, mask.bind(prompt=prompt.tolist(), answer=answer.tolist()).bound)


@pytest.mark.parametrize(
    ("room", "text", "reason"),
    [
        ({}, lengths(60, 60), "more queries"),
        ({}, lengths(2**31 - 1, 2**31 - 1), "more keys"),
        ({}, lengths(3, -1), "negative"),
    ],
)
def test_what_does_not_fit_is_told_when_asked(
    room: dict[str, int], text: torch.Tensor, reason: str
) -> None:
    plan = shipped("causal_documents").plan(100, instances={"document": 2}, **room, device=DEVICE)
    plan.device_descriptor(16, 16)
    plan.bind_(text=text).bind_(text=lengths(3, 4))
    with pytest.raises(CapacityError, match=reason):
        plan.check()
    plan.check()  # told once
    check_rows(plan, shipped("causal_documents").bind(text=[3, 4]).bound)


def test_lists_that_do_not_fit_are_empty() -> None:
    """A list that is cut would set what kernels count at odds with what they walk."""
    mask = shipped("sink_window")
    plan = mask.plan(128, runs_per_block=1, device=DEVICE)
    lists = plan.device_descriptor(16, 16)
    assert isinstance(lists, CapacityDescriptor)
    lists.fill_by_key()
    plan.bind_(text=128, left=40, sink=3)
    with pytest.raises(CapacityError, match="runs_per_block"):
        plan.check()
    assert lists.by_query.counts.abs().max() == 0
    assert (lists.by_query.offsets[:2] == lists.by_query.offsets[:2, :1]).all()
    assert lists.by_key.counts.abs().max() == 0
    plan.bind_(text=96, left=200, sink=3).check()  # whole blocks: fewer runs
    check_lists(plan, mask.bind(text=96, left=200, sink=3).bound, 16, 16)


def test_rows_that_see_more_intervals_than_there_is_room_for() -> None:
    plan = shipped("sink_window").plan(100, intervals=1, device=DEVICE)
    plan.bind_(text=100, left=5, sink=2)
    with pytest.raises(CapacityError, match="intervals"):
        plan.check()
    first = plan.bounds[:, 50].tolist()
    assert first == [0, 2]
    plan.bind_(text=100, left=200, sink=2).check()


@pytest.mark.parametrize(
    ("name", "sizes", "reason"),
    [
        ("causal_documents", {"text": [1, 2, 3]}, "exceeds the plan's room"),
        ("causal_documents", {"text": lengths(1, 2, 3)}, "at most"),
        ("causal_documents", {"text": torch.tensor([1.0], device=DEVICE)}, "integers"),
        ("prefix_lm_documents", {"prefix": lengths(1, 2)}, "`body` follows from lengths"),
        ("sink_window", {"text": 10, "left": scalar(3)}, "must be a number"),
    ],
)
def test_what_the_host_can_know_is_refused(name: str, sizes: dict[str, Any], reason: str) -> None:
    source = Source(name, masks.path(name).read_text(encoding="utf-8"))
    mask = load(compile_source(source, CompileOptions(seq=1000)).artifact)
    room = {item.name: 2 for item in mask.form.layout if item.level is not None}
    plan = mask.plan(100, instances=room, device=DEVICE)
    with pytest.raises(BindError, match=reason):
        plan.bind_(**sizes)


@pytest.mark.parametrize(
    ("name", "reason"), [("clear_r16", "grid"), ("causal_documents", "room is needed")]
)
def test_plans_that_cannot_be_made(name: str, reason: str) -> None:
    with pytest.raises(BindError, match=reason):
        shipped(name).plan(100, device=DEVICE)


def test_no_pair_of_buffers_is_written_by_a_bind_that_fails() -> None:
    plan = (
        shipped("causal_documents")
        .plan(100, instances={"document": 2}, device=DEVICE)
        .bind_(text=[5, 6])
    )
    before = plan.bounds.clone()
    with pytest.raises(BindError):
        plan.bind_(text=[1, 2, 3])
    np.testing.assert_array_equal(plan.bounds.cpu().numpy(), before.cpu().numpy())
