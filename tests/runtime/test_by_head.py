"""Attention by a mask with rules for some heads: every head attends as by its own mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cmask.compiler.close import close
from cmask.compiler.semantics import dense
from cmask.runtime import attention, decode
from cmask.runtime.by_head import Part, parts_of
from cmask.runtime.derive.bound import bind_all
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.mask import load
from cmask.runtime.plan import Plan, PlanVariant
from cmask.runtime.variants import variants_of
from support.attending import DEVICE, on_every_kernel, plan_of, random_inputs
from support.budgets import Results, Upstream, cancelled, check_budget
from support.by_head import eager_by_head
from support.compiled import bound, compiled
from support.strategies import BoundCase, composed, masks_by_head

# heads 0 and 1 look back over a window, 2 to 4 over everything, 5 and up see nothing but themselves
BODY = """
    region text
    text sees text: self
    heads 0..1 { text sees text: window(40, 0) }
    heads 2..4 { text sees text: causal }"""
OWN = ("window(40, 0)", "window(40, 0)", "causal", "causal", "causal", "self")
TILED = """
    region text
    region image[height, width] order tile(4, 4)
    text sees text: causal
    heads 0..1 { image sees image: disc(3) }
    heads 1..2 { image sees text: all }
    sizes { text = 5; height = 7; width = 6 }"""
HEADS = ((6, 6), (6, 3), (6, 1))


def plan() -> Plan:
    return plan_of(BODY, text=100)


def alone(pattern: str) -> Plan:
    return plan_of(f"region text; text sees text: {pattern}", text=100)


def run(q: Tensor, k: Tensor, v: Tensor, plan: Plan, kernel: str | None) -> Results:
    """Forward and backward, by gradients of both results."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out, lse = attention(q, k, v, plan, return_lse=True, kernel=kernel)
    upstream = upstream_of(out)
    assert upstream.lse is not None
    loss = (out * upstream.out).sum() + torch.where(lse > -torch.inf, lse * upstream.lse, 0.0).sum()
    return Results(out.detach(), lse.detach(), *torch.autograd.grad(loss, (q, k, v)))


def upstream_of(out: Tensor) -> Upstream:
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(out.shape, generator=generator).to(out.device, out.dtype)
    return Upstream(grad, grad[..., 0].float())


def check(q: Tensor, k: Tensor, v: Tensor, plan: Plan, visible: Tensor, kernel: str) -> None:
    """visible: bool[heads, q_len, kv_len]."""
    found = run(q, k, v, plan, kernel)
    upstream = upstream_of(found.out)
    exact, plain = (
        eager_by_head(q, k, v, visible, upstream, dtype=dtype) for dtype in (torch.float64, q.dtype)
    )
    check_budget(found, plain, exact, cancelled=cancelled(q, k, exact, upstream))


# ---------------------------------------------------------------------------- results
def test_gradients_of_a_row_that_sees_one_key_are_differences_of_equals() -> None:
    """dQ is 1.8e-6 off, by the roundings of dP and delta; PyTorch's softmax makes exactly 0."""
    drawn = plan_of("region a; region b; b sees a: all", a=1, b=1)
    q, k, v = random_inputs(drawn, heads=(8, 8), dims=(16, 16))
    visible = torch.tensor([[False, False], [True, False]], device=DEVICE)
    check(q, k, v, drawn, visible.expand(8, 2, 2), "reference")


@settings(composed, max_examples=25)
@given(case=masks_by_head(), heads=st.sampled_from(((8, 8), (8, 2), (9, 3), (10, 1))))
def test_random_masks_attend_as_each_head_means(case: BoundCase, heads: tuple[int, int]) -> None:
    variants = variants_of(close(case.mask))
    each = bind_all([variant.form for variant in variants], case.sizes)
    plans = [PlanVariant(v.heads, Plan(b, DEVICE)) for v, b in zip(variants, each, strict=True)]
    drawn = Plan(each[0], DEVICE, variants=tuple(plans) if len(plans) > 1 else ())
    q, k, v = random_inputs(drawn, heads=heads, dims=(16, 16))
    seen = np.stack([dense(case.mask, case.sizes, head) for head in range(heads[0])])
    check(q, k, v, drawn, torch.from_numpy(seen).to(DEVICE), "reference")


@on_every_kernel
@pytest.mark.parametrize("heads", HEADS)
def test_heads_attend_as_they_mean(kernel: str, heads: tuple[int, int]) -> None:
    q, k, v = random_inputs(plan(), heads=heads, dims=(16, 32))
    rows, keys = np.arange(100)[:, None], np.arange(100)
    masks = {"window(40, 0)": (keys <= rows) & (keys >= rows - 40), "causal": keys <= rows}
    seen = np.stack([masks.get(own, keys == rows) for own in OWN])
    check(q, k, v, plan(), torch.from_numpy(seen).to(DEVICE), kernel)


@on_every_kernel
@pytest.mark.parametrize("heads", HEADS)
def test_every_bit_is_that_of_heads_that_attend_alone(kernel: str, heads: tuple[int, int]) -> None:
    """Gradients of k and v, too, as far as a key head serves one part alone."""
    q, k, v = random_inputs(plan(), heads=heads, dims=(16, 16))
    found, group = run(q, k, v, plan(), kernel), heads[0] // heads[1]
    parts = parts_of([variant.heads for variant in plan().variants], *heads)
    serving = [kv for part in parts for kv in range(*part.kv)]
    for part in parts:
        own, its = slice(*part.q), slice(*part.kv)
        grad_out = upstream_of(found.out)
        inputs = [x.detach().requires_grad_() for x in (q[:, own], k[:, its], v[:, its])]
        out, lse = attention(*inputs, alone(OWN[part.q[0]]), return_lse=True, kernel=kernel)
        assert grad_out.lse is not None
        loss = (out * grad_out.out[:, own]).sum() + (lse * grad_out.lse[:, own]).sum()
        dq, dk, dv = torch.autograd.grad(loss, inputs)
        assert torch.equal(found.out[:, own], out)
        assert torch.equal(found.lse[:, own], lse)
        assert torch.equal(found.dq[:, own], dq)
        for i, kv in enumerate(range(*part.kv)):
            if serving.count(kv) == 1:
                assert torch.equal(found.dk[:, kv], dk[:, i])
                assert torch.equal(found.dv[:, kv], dv[:, i])
    assert group > 1 or max(map(serving.count, serving)) == 1


@on_every_kernel
def test_a_grid_in_an_order_of_its_own_attends_alike_permuted_or_not(kernel: str) -> None:
    tiled = plan_of(TILED)
    assert tiled.is_permuted
    q, k, v = random_inputs(tiled, heads=(4, 2), dims=(16, 16))
    seen = np.stack([_dense(TILED, head) for head in range(4)])
    check(q, k, v, tiled, torch.from_numpy(seen).to(DEVICE), kernel)
    out = attention(q, k, v, tiled, kernel=kernel)
    moved = [tiled.permute(q), tiled.permute(k, "key"), tiled.permute(v, "key")]
    again = attention(*moved, tiled, kernel=kernel, permuted=True)
    assert torch.equal(tiled.unpermute(again), out)


@on_every_kernel
def test_rows_of_the_mask_attend_like_rows_of_the_whole(kernel: str) -> None:
    whole, mask = plan(), load(compiled(BODY, text=100).artifact)
    q, k, v = random_inputs(whole, heads=(6, 2), dims=(16, 16))
    some = mask.bind(rows=(50, 77), device=DEVICE)
    out = attention(q, k, v, whole, kernel=kernel)[:, :, 50:77]
    torch.testing.assert_close(attention(q[:, :, 50:77], k, v, some, kernel=kernel), out)


def test_keys_and_values_may_be_one_batch_for_all() -> None:
    q, k, v = random_inputs(plan(), batch=3, heads=(6, 2), dims=(16, 16))
    one = attention(q, k[:1], v[:1], plan())
    every = attention(q, k[:1].expand(3, -1, -1, -1), v[:1].expand(3, -1, -1, -1), plan())
    assert torch.equal(one, every)


def test_the_output_lies_in_memory_as_q_does() -> None:
    q, k, v = random_inputs(plan(), batch=2, heads=(6, 2), dims=(16, 16))
    packed = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    out = attention(*packed, plan())
    assert out.stride() == packed[0].stride()
    assert torch.equal(out, attention(q, k, v, plan()))
    assert attention(q, k, v, plan()).is_contiguous()


def test_torch_compile_takes_the_whole_of_it() -> None:
    own = plan()
    inputs = [x.requires_grad_() for x in random_inputs(own, heads=(6, 3), dims=(16, 16))]

    def model(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = attention(q * 2, k, v, own, return_lse=True)
        return out.sum() + lse.sum()

    expected = torch.autograd.grad(model(*inputs), inputs)  # the eager call that prepares
    torch._dynamo.reset()
    whole = torch.compile(model, fullgraph=True, backend="aot_eager")
    for f, e in zip(torch.autograd.grad(whole(*inputs), inputs), expected, strict=True):
        torch.testing.assert_close(f, e)


# ---------------------------------------------------------------------------- parts
@pytest.mark.parametrize(
    ("kv_heads", "parts"),
    [
        (8, [(0, (0, 3), (0, 3)), (1, (3, 6), (3, 6)), (0, (6, 8), (6, 8))]),
        (1, [(0, (0, 3), (0, 1)), (1, (3, 6), (0, 1)), (0, (6, 8), (0, 1))]),
        (
            4,
            [(0, (0, 2), (0, 1)), (0, (2, 3), (1, 2)), (1, (3, 4), (1, 2)), (1, (4, 6), (2, 3)),
             (0, (6, 8), (3, 4))],
        ),
    ],
)  # fmt: skip
def test_a_group_of_unlike_heads_is_cut(kv_heads: int, parts: list[Any]) -> None:
    variants = [((0, 3), (6, None)), ((3, 6),)]
    assert parts_of(variants, 8, kv_heads) == [Part(*part) for part in parts]


def test_heads_that_no_rule_names_need_not_be_there() -> None:
    q, k, v = random_inputs(plan(), heads=(5, 5), dims=(16, 16))
    whole = random_inputs(plan(), heads=(6, 6), dims=(16, 16))
    assert attention(q, k, v, plan()).shape == q.shape
    more = attention(*whole, plan())
    assert torch.equal(attention(*(x[:, :5] for x in whole), plan()), more[:, :5])


# ---------------------------------------------------------------------------- refusals
def test_a_call_without_a_head_that_a_rule_names_is_refused() -> None:
    q, k, v = random_inputs(plan(), heads=(4, 2), dims=(16, 16))
    words = "q must have at least 5 heads, as the mask has rules for heads 2..4, got 4"
    with pytest.raises(ValueError, match=words):
        attention(q, k, v, plan())


def test_tensors_that_do_not_fit_are_refused_as_the_caller_knows_them() -> None:
    q, k, v = random_inputs(plan(), heads=(6, 2), dims=(16, 16))
    with pytest.raises(ValueError, match="q must have the plan's 100 tokens, got 99"):
        attention(q[:, :, 1:], k, v, plan())
    with pytest.raises(ValueError, match="divides q's 6, got 4"):
        attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1), plan())


def test_what_does_not_know_heads_is_refused() -> None:
    q, k, v = random_inputs(plan(), heads=(6, 2), dims=(16, 16))
    lens = torch.tensor([100], dtype=torch.int32, device=q.device)
    words = "mask `case` has rules for some heads: only `attention` takes its plan as a whole"
    with pytest.raises(ValueError, match=words):
        decode(q[:, :, -1:], k, v, plan(), kv_lens=lens)
    with pytest.raises(ValueError, match=words):
        plan().descriptor(128, 128)
    mask = load(compiled(BODY, text=100).artifact)
    with pytest.raises(BindError, match="on the device: it has rules for some heads; use bind"):
        mask.plan(100)


def test_models_of_transformers_refuse_it() -> None:
    pytest.importorskip("transformers", reason="an extra: pip install cmask[transformers]")
    from cmask.runtime.integrations.transformers import register

    mask = load(compiled(BODY, text=100).artifact)
    with pytest.raises(ValueError, match="`case` has rules for some heads"):
        register("by_head", mask)


def _dense(body: str, head: int) -> np.ndarray:
    found = bound(body, head=head)
    return found.visible(np.arange(found.q_len), np.arange(found.kv_len))
