"""Bug reports at sizes that only a GPU reaches: each must not happen here.

The number at the end of a name is the report's; `tests/test_bug_reports_masks.py` lists what does
not apply.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cmask.runtime import attention
from support.attending import (
    CAUSAL,
    DEVICE,
    FULL,
    REQUESTS,
    check,
    check_modalities,
    plan_of,
    random_inputs,
    results,
    same,
    visible_pairs,
)
from support.budgets import Results, Upstream, check_budget, eager


@pytest.mark.gpu
@pytest.mark.parametrize("dims", [(128, 128), (192, 128)])
def test_more_keys_than_queries_finish_and_repeat__CM_031(dims: tuple[int, int]) -> None:
    plan = plan_of(REQUESTS, q=[5000, 3192], k=[20_000, 13_792])
    q, k, v = random_inputs(plan, heads=(2, 1), dims=dims, dtype=torch.bfloat16)
    first = check(q, k, v, plan, "triton")
    for _ in range(9):
        again, _ = results(q, k, v, plan, "triton")
        assert same(first, again)


@pytest.mark.gpu
def test_one_mask_serves_any_number_of_heads__CM_064() -> None:
    plan = plan_of(CAUSAL, text=4096)
    q, k, v = random_inputs(plan, batch=8, heads=(28, 28), dims=(128, 128), dtype=torch.bfloat16)
    found, _ = results(q, k, v, plan, "triton")
    small, _ = results(q[-1:, -1:], k[-1:, -1:], v[-1:, -1:], plan, "triton")
    assert torch.equal(found.out[-1, -1], small.out[0, 0])
    assert torch.isfinite(found.dq).all()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("count", "heads", "dim"),
    [(n, (32, 2), 256) for n in (511, 512, 513)] + [(n, (128, 1), 128) for n in (255, 256, 257)],
)
def test_tokens_times_heads_times_dim_may_pass_two_billion__CM_065(
    count: int, heads: tuple[int, int], dim: int
) -> None:
    body = "group document* { region text; text sees text: causal }"
    plan = plan_of(body, text=[512] * count)
    q, k, v = _large(plan.q_len, heads, dim)
    last = plan_of(body, text=[512])
    out = attention(q, k, v, plan, kernel="triton")
    alone = attention(*(x[:, :, -512:].contiguous() for x in (q, k, v)), last, kernel="triton")
    assert torch.equal(out[:, :, -512:], alone)


def _large(tokens: int, heads: tuple[int, int], dim: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(0)
    shapes = [(1, h, tokens, dim) for h in (heads[0], heads[1], heads[1])]
    q, k, v = (
        torch.randn(s, generator=generator, device=DEVICE, dtype=torch.bfloat16) for s in shapes
    )
    return q, k, v


def _tail(size: int) -> int:
    """About 2,048 last tokens, from the start of a block on: the same blocks in both runs."""
    return size - (size - 2048) // 128 * 128


@pytest.mark.gpu
@pytest.mark.parametrize("size", [233_000, 233_100])
def test_a_row_times_its_stride_may_pass_two_billion__CM_066(size: int) -> None:
    body = "region text; text sees text: window(1023, 0)"
    plan = plan_of(body, text=size)
    generator = torch.Generator(DEVICE).manual_seed(0)
    fused = torch.randn(size, 3, 24, 128, generator=generator, device=DEVICE, dtype=torch.bfloat16)
    q, k, v = (x.transpose(0, 1)[None] for x in fused.unbind(1))
    out = attention(q, k, v, plan, kernel="triton")
    count = _tail(size)
    tail = (x[:, :, -count:].contiguous() for x in (q, k, v))
    expected = attention(*tail, plan_of(body, text=count), kernel="triton")
    assert torch.equal(out[:, :, -64:], expected[:, :, -64:])


@pytest.mark.gpu
def test_two_million_tokens_are_served__CM_066() -> None:
    size = 2_097_153
    body = "region text; text sees text: window(1023, 0)"
    q, k, v = _large(size, (8, 8), 128)
    out = attention(q, k, v, plan_of(body, text=size), kernel="triton")
    count = _tail(size)
    tail = (x[:, :, -count:].contiguous() for x in (q, k, v))
    expected = attention(*tail, plan_of(body, text=count), kernel="triton")
    assert torch.equal(out[:, :, -64:], expected[:, :, -64:])


@pytest.mark.gpu
def test_a_batch_of_many_short_sequences_has_gradients__CM_070() -> None:
    plan = plan_of(CAUSAL, text=160)
    generator = torch.Generator(DEVICE).manual_seed(0)
    q, k, v = (
        torch.randn(15_000, 16, 160, 64, generator=generator, device=DEVICE, dtype=torch.bfloat16)
        for _ in range(3)
    )
    found, grad_out = results(q, k, v, plan, "triton")
    assert torch.isfinite(found.dq).all()
    last = [x[-1:] for x in (q, k, v)]
    upstream = Upstream(grad_out[-1:])
    exact, plain = (
        eager(*last, visible_pairs(plan), upstream, dtype=dtype)
        for dtype in (torch.float64, torch.bfloat16)
    )
    check_budget(Results(*(x[-1:] for x in found)), plain, exact)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [704, 832, 640, 768])
def test_the_padded_half_of_a_later_tile_is_masked_in_backward__CM_076(size: int) -> None:
    plan = plan_of(FULL, text=size)
    q, k, v = random_inputs(plan, heads=(1, 1), dtype=torch.bfloat16)
    check(q * 0.1 + 6, k * 0.1 - 6, v, plan, "triton")


@pytest.mark.gpu
@pytest.mark.parametrize("documents", [[1000, 1, 2047, 1048], [4096]])
def test_gradients_are_the_same_in_twenty_runs__CM_081(documents: list[int]) -> None:
    body = "group document* { region text; text sees text: causal & window(1024, 0) }"
    plan = plan_of(body, text=documents)
    inputs = random_inputs(plan, batch=2, heads=(8, 2), dims=(128, 128), dtype=torch.bfloat16)
    first, _ = results(*inputs, plan, "triton")
    assert all(same(first, results(*inputs, plan, "triton")[0]) for _ in range(20))


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(50))
def test_long_batches_of_random_runs_never_give_nan__CM_084(seed: int) -> None:
    check_modalities("triton", seed, 400)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [2, 8, 32])
def test_a_row_has_the_same_bits_in_any_company__CM_121(batch: int) -> None:
    plan = plan_of("query region q align end; key region k; q sees k: causal", q=64, k=5000)
    inputs = random_inputs(plan, batch=batch, heads=(16, 1), dims=(128, 128), dtype=torch.bfloat16)
    together = attention(*inputs, plan, kernel="triton")
    alone = attention(*(x[:1].contiguous() for x in inputs), plan, kernel="triton")
    assert torch.equal(together[:1], alone)
