"""Public bug reports about what kernels compute: each must not happen here.

The number at the end of a name is the report's.  Every test runs on the kernels that this machine
has; sizes that only a GPU reaches are marked.  What does not apply is listed in
`test_bug_reports_masks.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cmask.runtime import attention
from cmask.runtime.derive.bound import bind
from cmask.runtime.kernels.config import DIRECTIONS, choose_config
from cmask.runtime.mask import Plan, load
from support.compiled import bound, compiled, dense, interval_table, planned
from support.expected import (
    Results,
    assert_within_budget,
    dense_attention,
    dense_results,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CAUSAL = "region text; text sees text: causal"
FULL = "region text; text sees text: all"
ROWS = "table func[row]; query region q; key region k; q sees k: rows(func)"
REQUESTS = "group request* { query region q align end; key region k; q sees k: causal }"


def _is_interpreted() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)


KERNELS = ("reference", "triton") if DEVICE == "cuda" or _is_interpreted() else ("reference",)
on_every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def plan_of(body: str, **sizes: Any) -> Plan:
    return planned(body, DEVICE, **sizes)


def random_inputs(
    plan: Plan,
    *,
    batch: int = 1,
    heads: tuple[int, int] = (2, 2),
    dims: tuple[int, int] = (64, 64),
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(plan.q_len * 1000 + plan.kv_len)
    shapes = (
        (batch, heads[0], plan.q_len, dims[0]),
        (batch, heads[1], plan.kv_len, dims[0]),
        (batch, heads[1], plan.kv_len, dims[1]),
    )
    q, k, v = (torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes)
    return q, k, v


def results(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, kernel: str, scale: float | None = None
) -> tuple[Results, Tensor]:
    """Forward and backward, and the gradient that came in."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out, lse = attention(q, k, v, plan, return_lse=True, kernel=kernel, softmax_scale=scale)
    generator = torch.Generator().manual_seed(1)
    grad_out = torch.randn(out.shape, generator=generator).to(out.device, out.dtype)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), grad_out)
    return Results(out.detach(), lse.detach(), dq, dk, dv), grad_out


def check(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, kernel: str, scale: float | None = None
) -> Results:
    """All results are right; they are returned for what else a report says."""
    found, grad_out = results(q, k, v, plan, kernel, scale)
    visible = dense(plan.bound)
    exact = dense_results(q, k, v, visible, grad_out, scale=scale)
    plain = dense_results(q, k, v, visible, grad_out, dtype=q.dtype, scale=scale)
    assert_within_budget(found, exact, plain)
    return found


def same(a: Results, b: Results) -> bool:
    return all(torch.equal(getattr(a, n), getattr(b, n)) for n in ("out", "lse", "dq", "dk", "dv"))


# --------------------------------------------------------------------------- A
@on_every_kernel
def test_a_row_without_keys_gives_zero_and_minus_infinity__CM_001(kernel: str) -> None:
    body = "region text; query region pad; key region unused; text sees text: causal"
    plan = plan_of(body, text=5, pad=1, unused=5)
    found = check(*random_inputs(plan, dims=(8, 8)), plan, kernel)
    assert (found.out[:, :, 5] == 0).all()
    assert (found.lse[:, :, 5] == -torch.inf).all()
    assert (found.dq[:, :, 5] == 0).all()
    assert (found.dk[:, :, 5:] == 0).all()
    assert (found.dv[:, :, 5:] == 0).all()


@on_every_kernel
def test_the_lse_of_a_row_without_keys_weighs_nothing_in_a_merge__CM_002(kernel: str) -> None:
    body = "group item* { query region q; key region seen; key region rest; q sees seen: all }"
    plan = plan_of(body, q=1, seen=[0, 1024], rest=[1024, 0])
    q, k, v = random_inputs(plan, heads=(4, 4), dtype=torch.bfloat16)
    out, lse = attention(q * 0, k, v, plan, return_lse=True, kernel=kernel)
    assert (lse[:, :, 0] == -torch.inf).all()
    assert (out[:, :, 0] == 0).all()
    torch.testing.assert_close(lse[:, :, 1], torch.full_like(lse[:, :, 1], math.log(1024)))


@on_every_kernel
def test_starting_on_a_hidden_tile_is_harmless__CM_003(kernel: str) -> None:
    plan = plan_of("region hidden; region text; all sees text: all", hidden=128, text=313)
    check(*random_inputs(plan), plan, kernel)


@on_every_kernel
def test_scores_far_below_any_sentinel_are_scores__CM_007(kernel: str) -> None:
    body = "table end[row]; query region q; key region k; q sees k: until(end[row])"
    plan = plan_of(body, q=3, k=8, end=[1, 2, 0])
    _, _, v = random_inputs(plan, heads=(1, 1), dtype=torch.bfloat16)
    q = torch.full((1, 1, 3, 64), 40.0, dtype=torch.bfloat16, device=DEVICE)
    k = torch.full((1, 1, 8, 64), -40.0, dtype=torch.bfloat16, device=DEVICE)
    out, lse = attention(q, k, v, plan, softmax_scale=1 / 8, return_lse=True, kernel=kernel)
    expected = torch.tensor([-12_800.0, -12_800.0 + math.log(2), -math.inf], device=DEVICE)
    torch.testing.assert_close(lse[0, 0], expected)
    torch.testing.assert_close(out[0, 0, 0], v[0, 0, 0])
    torch.testing.assert_close(out[0, 0, 1], v[0, 0, :2].float().mean(0).bfloat16())
    assert (out[0, 0, 2] == 0).all()


@on_every_kernel
def test_the_lse_is_a_natural_logarithm__CM_010(kernel: str) -> None:
    plan = plan_of(FULL, text=128)
    q, k, v = random_inputs(plan, heads=(1, 1), dtype=torch.bfloat16)
    _, lse = attention(q * 0, k, v, plan, return_lse=True, kernel=kernel)
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(128)))


# --------------------------------------------------------------------------- B
@on_every_kernel
@pytest.mark.parametrize("size", [1, 31, 63, 64, 65, 127, 129, 192, 193])
def test_lengths_need_not_be_multiples_of_a_block__CM_015(kernel: str, size: int) -> None:
    plan = plan_of(FULL, text=size)
    check(*random_inputs(plan, dims=(16, 16), dtype=torch.bfloat16), plan, kernel)


@on_every_kernel
@pytest.mark.parametrize("size", [64, 512])
def test_chunks_with_a_limited_look_back_are_right__CM_016(kernel: str, size: int) -> None:
    plan = plan_of("region text; text sees text: window(pos / 32, 10, 0)", text=size)
    check(*random_inputs(plan, heads=(1, 1)), plan, kernel)


def _forward_error(size: int, kernel: str, body: str) -> float:
    plan = plan_of(body, text=size)
    q, k, v = random_inputs(plan, dtype=torch.float16)
    exact, _ = dense_attention(q.double(), k.double(), v.double(), dense(plan.bound))
    return (attention(q, k, v, plan, kernel=kernel).double() - exact).abs().max().item()


@on_every_kernel
@pytest.mark.parametrize("body", [FULL, CAUSAL])
@pytest.mark.parametrize("size", [256, pytest.param(4096, marks=pytest.mark.gpu)])
def test_one_token_less_does_not_change_the_error__CM_017(
    kernel: str, body: str, size: int
) -> None:
    errors = [_forward_error(n, kernel, body) for n in (size - 1, size, size + 1)]
    assert max(errors) <= 2 * min(errors)


@on_every_kernel
def test_marking_full_tiles_changes_no_bit__CM_019(kernel: str) -> None:
    from support.descriptor_edits import without_full_blocks

    plan = plan_of(CAUSAL, text=256)
    marked = {}
    unmarked = {}
    for m in (16, 32, 64, 128):
        for n in (16, 32, 64, 128):
            marked[m, n] = plan.bound.descriptor(m, n, "bounds")
            unmarked[m, n] = without_full_blocks(marked[m, n])
    q, k, v = random_inputs(plan, heads=(1, 1), dtype=torch.bfloat16)
    one, _ = results(q, k, v, Plan(plan.bound, DEVICE, marked), kernel)
    other, _ = results(q, k, v, Plan(plan.bound, DEVICE, unmarked), kernel)
    assert same(one, other)


@on_every_kernel
def test_a_large_cache_costs_only_what_is_seen__CM_021(kernel: str) -> None:
    plan = plan_of("query region q align start; key region k; q sees k: causal", q=16, k=262_144)
    q, _, _ = random_inputs(plan_of(CAUSAL, text=16), heads=(2, 2), dtype=torch.bfloat16)
    k = torch.zeros(1, 2, 262_144, 64, dtype=torch.bfloat16, device=DEVICE)
    out = attention(q, k, k, plan, kernel=kernel)
    assert (out == 0).all()


@on_every_kernel
@pytest.mark.parametrize("which", ["q", "k", "v", "kv", "heads"])
def test_a_broadcast_tensor_equals_its_copy__CM_025(kernel: str, which: str) -> None:
    plan = plan_of(FULL, text=8)
    q, k, v = random_inputs(plan, batch=2, dims=(16, 16))
    if which == "heads":
        q = q[:, :1].expand(-1, 2, -1, -1)
        k, v = (x[:, :1].expand(-1, 2, -1, -1) for x in (k, v))
    q = q[:1].expand(2, -1, -1, -1) if which == "q" else q
    k = k[:1].expand(2, -1, -1, -1) if "k" in which else k
    v = v[:1].expand(2, -1, -1, -1) if "v" in which else v
    broadcast, _ = results(q, k, v, plan, kernel)
    copied, _ = results(q.contiguous(), k.contiguous(), v.contiguous(), plan, kernel)
    assert same(broadcast, copied)


def test_a_batch_that_does_not_fit_is_refused_before_any_launch__CM_025() -> None:
    plan = plan_of(FULL, text=8)
    q, k, v = random_inputs(plan, batch=4)
    with pytest.raises(ValueError, match="k must have batch 4"):
        attention(q, k[:2], v[:2], plan)


@on_every_kernel
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_hidden_slots_may_hold_anything__CM_026(kernel: str, poison: float) -> None:
    body = "query region q at 300; key region cache; q sees cache: window(127, 0)"
    for plan in (
        plan_of(body, q=1, cache=512),
        plan_of("region hidden; region text; region rest; text sees text: causal",
                hidden=40, text=70, rest=30),
    ):  # fmt: skip
        q, k, v = random_inputs(plan, heads=(8, 2), dtype=torch.bfloat16)
        hidden = torch.from_numpy(~dense(plan.bound).any(0)).to(DEVICE)
        clean, _ = results(q, *(_filled(x, hidden, 0.0) for x in (k, v)), plan, kernel)
        poisoned, _ = results(q, *(_filled(x, hidden, poison) for x in (k, v)), plan, kernel)
        assert same(clean, poisoned)
        assert (poisoned.dk[:, :, hidden] == 0).all()
        assert (poisoned.dv[:, :, hidden] == 0).all()


def _filled(x: Tensor, where: Tensor, value: float) -> Tensor:
    return torch.where(where[:, None], torch.full_like(x, value), x)


@on_every_kernel
@pytest.mark.parametrize("heads", [(8, 2), (16, 1)])
@pytest.mark.parametrize("documents", [[256], [100, 100, 56]])
def test_all_heads_of_a_group_obey_the_same_limit__CM_027(
    kernel: str, heads: tuple[int, int], documents: list[int]
) -> None:
    body = "group document* { region text; text sees text: causal }"
    plan = plan_of(body, text=documents)
    check(*random_inputs(plan, heads=heads, dtype=torch.bfloat16), plan, kernel)


@on_every_kernel
def test_siblings_of_a_draft_tree_do_not_leak__CM_029(kernel: str) -> None:
    nodes = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4]]
    rows = [[(0, 100)] + [(100 + i, 101 + i) for i in row] for row in nodes]
    plan = plan_of(ROWS, q=5, k=105, func=interval_table(rows))
    check(*random_inputs(plan, heads=(8, 2), dtype=torch.bfloat16), plan, kernel)


@on_every_kernel
def test_few_leaves_see_a_long_prefix_and_some_nodes__CM_030(kernel: str) -> None:
    rows = [[(0, 7)], [(0, 6), (7, 8)], [(0, 5), (7, 9)], [(0, 6), (9, 10)]]
    plan = plan_of(ROWS, q=4, k=10, func=interval_table(rows))
    check(*random_inputs(plan, heads=(4, 1), dtype=torch.float16), plan, kernel)


@pytest.mark.gpu
@pytest.mark.parametrize("dims", [(128, 128), (192, 128)])
def test_more_keys_than_queries_finish_and_repeat__CM_031(dims: tuple[int, int]) -> None:
    plan = plan_of(REQUESTS, q=[5000, 3192], k=[20_000, 13_792])
    q, k, v = random_inputs(plan, heads=(2, 1), dims=dims, dtype=torch.bfloat16)
    first = check(q, k, v, plan, "triton")
    for _ in range(9):
        again, _ = results(q, k, v, plan, "triton")
        assert same(first, again)


# --------------------------------------------------------------------------- C
@on_every_kernel
@pytest.mark.parametrize("chunk", [16, 5, 1])
def test_chunked_prefill_equals_one_prefill__CM_033(kernel: str, chunk: int) -> None:
    plan = plan_of("region text; text sees text: window(7, 0)", text=32)
    q, k, v = random_inputs(plan, heads=(4, 2), dtype=torch.bfloat16)
    whole = attention(q, k, v, plan, kernel=kernel)
    parts = []
    for start in range(0, 32, chunk):
        rows = (start, min(start + chunk, 32))
        part = Plan(bind(plan.bound.form, plan.bound.names, rows), DEVICE)
        parts.append(attention(q[:, :, rows[0] : rows[1]], k, v, part, kernel=kernel))
    torch.testing.assert_close(torch.cat(parts, 2), whole)


# --------------------------------------------------------------------------- D
@on_every_kernel
@pytest.mark.parametrize("heads", [(64, 4), (48, 1)])
def test_any_ratio_of_heads_is_served__CM_049(kernel: str, heads: tuple[int, int]) -> None:
    plan = plan_of("query region q; key region k; q sees k: all", q=1, k=512)
    check(*random_inputs(plan, heads=heads, dims=(128, 128), dtype=torch.bfloat16), plan, kernel)


@pytest.mark.parametrize("heads", [(33, 2), (3, 2), (4, 0)])
def test_head_counts_that_do_not_divide_are_named__CM_051(heads: tuple[int, int]) -> None:
    plan = plan_of(CAUSAL, text=4)
    q, k, v = random_inputs(plan, heads=heads)
    with pytest.raises(ValueError, match=rf"{heads[0]}.*got {heads[1]}"):
        attention(q, k, v, plan)


@on_every_kernel
@pytest.mark.parametrize("dim", [8, 16, 24, 31, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256])
def test_any_head_dim_is_scaled_by_what_it_is__CM_052(kernel: str, dim: int) -> None:
    plan = plan_of(CAUSAL, text=37)
    check(*random_inputs(plan, heads=(1, 1), dims=(dim, dim)), plan, kernel)


@on_every_kernel
def test_a_head_dim_of_prefill_serves_decoding__CM_053(kernel: str) -> None:
    plan = plan_of("query region q align end; key region k; q sees k: causal", q=1, k=1088)
    check(*random_inputs(plan, dims=(96, 96), dtype=torch.bfloat16), plan, kernel)


@on_every_kernel
@pytest.mark.parametrize("body", [FULL, CAUSAL])
@pytest.mark.parametrize("dims", [(192, 128), (16, 256), (64, 256)])
def test_values_may_have_another_head_dim__CM_054(
    kernel: str, body: str, dims: tuple[int, int]
) -> None:
    plan = plan_of(body, text=65)
    found = check(*random_inputs(plan, heads=(1, 1), dims=dims, dtype=torch.bfloat16), plan, kernel)
    assert found.dv.shape[-1] == dims[1]


@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (192, 128), (256, 256), (96, 96)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_small_gpu_gets_tiles_that_fit__CM_055(dims: tuple[int, int], dtype: str) -> None:
    limit = 99 * 1024
    itemsize = 4 if dtype == "float32" else 2
    for direction in DIRECTIONS:
        config = choose_config(
            direction, dtype=dtype, head_dim=dims[0], v_head_dim=dims[1], shared_memory_limit=limit
        )
        used = config.shared_memory_bytes(head_dim=dims[0], v_head_dim=dims[1], itemsize=itemsize)
        assert used <= limit


@on_every_kernel
def test_views_of_one_fused_buffer_equal_their_copies__CM_059(kernel: str) -> None:
    plan = plan_of(CAUSAL, text=130)
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(130, 1, 18, 64, generator=generator).to(DEVICE, torch.float16)
    q, k, v = (x.permute(1, 2, 0, 3) for x in fused.split((16, 1, 1), 2))
    views, _ = results(q, k, v, plan, kernel)
    copies, _ = results(q.contiguous(), k.contiguous(), v.contiguous(), plan, kernel)
    assert same(views, copies)


@on_every_kernel
@pytest.mark.parametrize(
    ("size", "dim", "dtype"), [(43, 8, torch.float32), (77, 64, torch.float16)]
)
def test_a_dense_mask_of_odd_length_needs_no_padding__CM_063(
    kernel: str, size: int, dim: int, dtype: torch.dtype
) -> None:
    wanted = np.random.default_rng(size).random((size, size)) < 0.5
    edges = [np.flatnonzero(np.diff(np.r_[0, row.astype(int), 0])) for row in wanted]
    table = interval_table([[tuple(pair) for pair in e.reshape(-1, 2).tolist()] for e in edges])
    plan = plan_of(ROWS, q=size, k=size, func=table)
    check(*random_inputs(plan, dims=(dim, dim), dtype=dtype), plan, kernel)


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


@pytest.mark.gpu
@pytest.mark.parametrize("size", [233_000, 233_100])
def test_a_row_times_its_stride_may_pass_two_billion__CM_066(size: int) -> None:
    body = "region text; text sees text: window(1023, 0)"
    plan = plan_of(body, text=size)
    generator = torch.Generator(DEVICE).manual_seed(0)
    fused = torch.randn(size, 3, 24, 128, generator=generator, device=DEVICE, dtype=torch.bfloat16)
    q, k, v = (x.transpose(0, 1)[None] for x in fused.unbind(1))
    out = attention(q, k, v, plan, kernel="triton")
    tail = plan_of(body, text=2048)
    expected = attention(*(x[:, :, -2048:].contiguous() for x in (q, k, v)), tail, kernel="triton")
    torch.testing.assert_close(out[:, :, -64:], expected[:, :, -64:])


@pytest.mark.gpu
def test_two_million_tokens_are_served__CM_066() -> None:
    size = 2_097_153
    body = "region text; text sees text: window(1023, 0)"
    q, k, v = _large(size, (8, 8), 128)
    out = attention(q, k, v, plan_of(body, text=size), kernel="triton")
    tail = (x[:, :, -2048:].contiguous() for x in (q, k, v))
    expected = attention(*tail, plan_of(body, text=2048), kernel="triton")
    torch.testing.assert_close(out[:, :, -64:], expected[:, :, -64:])


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
    exact = dense_results(q[-1:], k[-1:], v[-1:], dense(plan.bound), grad_out[-1:])
    low = dense_results(
        q[-1:], k[-1:], v[-1:], dense(plan.bound), grad_out[-1:], dtype=torch.bfloat16
    )
    last = Results(*(getattr(found, n)[-1:] for n in ("out", "lse", "dq", "dk", "dv")))
    assert_within_budget(last, exact, low)


@on_every_kernel
def test_sequences_of_one_query_or_none_are_served__CM_071(kernel: str) -> None:
    plan = plan_of(REQUESTS, q=[1, 0, 1], k=[3, 0, 5])
    found = check(*random_inputs(plan, heads=(9, 3), dtype=torch.bfloat16), plan, kernel)
    assert found.out.shape == (1, 9, 2, 64)


@on_every_kernel
@pytest.mark.parametrize(
    ("q_sizes", "k_sizes", "unread"),
    [
        ([150, 0, 150], [100, 100, 100], slice(100, 200)),
        ([0, 60, 42, 0], [127, 87, 42, 153], slice(0, 127)),
    ],
)
def test_keys_without_queries_get_zero_gradients__CM_072(
    kernel: str, q_sizes: list[int], k_sizes: list[int], unread: slice
) -> None:
    plan = plan_of(REQUESTS, q=q_sizes, k=k_sizes)
    inputs = random_inputs(plan, heads=(4, 1), dims=(256, 256), dtype=torch.bfloat16)
    found = check(*inputs, plan, kernel)
    assert (found.dk[:, :, unread] == 0).all()
    assert (found.dv[:, :, unread] == 0).all()


@on_every_kernel
@pytest.mark.parametrize(("q_len", "kv_len", "batch"), [(4, 0, 2), (0, 4, 2), (4, 4, 0), (0, 0, 1)])
@pytest.mark.parametrize("pattern", ["all", "causal"])
def test_nothing_to_attend_to_is_no_crash__CM_073(
    kernel: str, q_len: int, kv_len: int, batch: int, pattern: str
) -> None:
    body = f"query region q align end; key region k; q sees k: {pattern}"
    plan = plan_of(body, q=q_len, k=kv_len)
    q, k, v = random_inputs(plan, batch=batch, heads=(8, 2), dims=(128, 128))
    found, _ = results(q, k, v, plan, kernel)
    assert found.out.shape == (batch, 8, q_len, 128)
    if kv_len == 0:
        assert (found.out == 0).all()
        assert (found.lse == -torch.inf).all()
        assert (found.dq == 0).all()


# --------------------------------------------------------------------------- E
@on_every_kernel
@pytest.mark.parametrize("size", [64, 192, 320, 256])
def test_the_padded_half_of_the_last_tile_is_masked_in_backward__CM_076(
    kernel: str, size: int
) -> None:
    plan = plan_of(FULL, text=size)
    q, k, v = random_inputs(plan, heads=(1, 1), dtype=torch.bfloat16)
    found = check(q * 0.1 + 6, k * 0.1 - 6, v, plan, kernel)
    assert (found.lse < -88.7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("size", [704, 832, 640, 768])
def test_the_padded_half_of_a_later_tile_is_masked_in_backward__CM_076(size: int) -> None:
    plan = plan_of(FULL, text=size)
    q, k, v = random_inputs(plan, heads=(1, 1), dtype=torch.bfloat16)
    check(q * 0.1 + 6, k * 0.1 - 6, v, plan, "triton")


@on_every_kernel
def test_gradients_flow_through_the_lse__CM_077(kernel: str) -> None:
    plan = plan_of(FULL, text=1)
    q, k, v, sink = (
        torch.tensor(x, device=DEVICE, requires_grad=True) for x in (1.0, 1.0, 2.0, 0.0)
    )
    out, lse = attention(
        *(x.reshape(1, 1, 1, 1) for x in (q, k, v)),
        plan,
        softmax_scale=1.0,
        return_lse=True,
        kernel=kernel,
    )
    result = out * torch.sigmoid(lse - sink)[..., None]
    result.sum().backward()
    assert result.item() == pytest.approx(1.46212, abs=1e-4)
    assert q.grad.item() == pytest.approx(0.39322, abs=1e-4)
    assert k.grad.item() == pytest.approx(0.39322, abs=1e-4)
    assert v.grad.item() == pytest.approx(0.73106, abs=1e-4)
    assert sink.grad.item() == pytest.approx(-0.39322, abs=1e-4)


@on_every_kernel
def test_a_sink_by_the_lse_is_one_more_logit__CM_078(kernel: str) -> None:
    body = "region text; query region blind; text sees text: causal"
    plan = plan_of(body, text=4, blind=1)
    q, k, v = (x.requires_grad_() for x in random_inputs(plan, dims=(16, 16)))
    sinks = torch.tensor([0.0, 3.0], device=DEVICE, requires_grad=True)
    out, lse = attention(q, k, v, plan, return_lse=True, kernel=kernel)
    found = out * torch.sigmoid(lse - sinks[:, None])[..., None]
    hidden = torch.from_numpy(~dense(plan.bound)).to(DEVICE)
    scores = (q @ k.transpose(-1, -2) / 4).masked_fill(hidden, -torch.inf)
    column = sinks[:, None, None].expand(1, 2, 5, 1)
    weights = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
    expected = weights @ v
    torch.testing.assert_close(found, expected)
    assert (found[:, :, 4] == 0).all()
    torch.testing.assert_close(torch.logaddexp(lse, sinks[:, None])[0, :, 4], sinks)
    inputs = (q, k, v, sinks)
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@on_every_kernel
@pytest.mark.parametrize(
    ("body", "sizes"),
    [
        ("group document* { region text; text sees text: causal }", {"text": [60, 1, 100, 39]}),
        ("region text; text sees text: window(31, 0)", {"text": 200}),
    ],
)
def test_gradients_are_the_same_in_every_run__CM_081(
    kernel: str, body: str, sizes: dict[str, Any]
) -> None:
    plan = plan_of(body, **sizes)
    inputs = random_inputs(plan, heads=(4, 1), dtype=torch.bfloat16)
    first, _ = results(*inputs, plan, kernel)
    assert all(same(first, results(*inputs, plan, kernel)[0]) for _ in range(2))


@pytest.mark.gpu
@pytest.mark.parametrize("documents", [[1000, 1, 2047, 1048], [4096]])
def test_gradients_are_the_same_in_twenty_runs__CM_081(documents: list[int]) -> None:
    body = "group document* { region text; text sees text: causal & window(1024, 0) }"
    plan = plan_of(body, text=documents)
    inputs = random_inputs(plan, batch=2, heads=(8, 2), dims=(128, 128), dtype=torch.bfloat16)
    first, _ = results(*inputs, plan, "triton")
    assert all(same(first, results(*inputs, plan, "triton")[0]) for _ in range(20))


MODALITIES = """
    group sample* {
        group part* { region text; region image }
        all sees all: causal
        image sees image: all
    }"""


@on_every_kernel
@pytest.mark.parametrize("seed", range(3))
def test_batches_of_random_runs_never_give_nan__CM_084(kernel: str, seed: int) -> None:
    _check_modalities(kernel, seed, 40)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(50))
def test_long_batches_of_random_runs_never_give_nan__CM_084(seed: int) -> None:
    _check_modalities("triton", seed, 400)


def _check_modalities(kernel: str, seed: int, longest: int) -> None:
    random = np.random.default_rng(seed)
    text, image = (random.integers(0, longest, (2, 4)).tolist() for _ in range(2))
    plan = plan_of(MODALITIES, text=text, image=image)
    check(*random_inputs(plan, heads=(1, 1), dtype=torch.bfloat16), plan, kernel)


# --------------------------------------------------------------------------- G
def test_a_loaded_mask_attends_like_the_compiled_one__CM_104() -> None:
    body = "region text; text sees text: window(pos / 32, 10, 0)"
    data = compiled(body, text=100).artifact
    plan = load(data).bind(device=DEVICE)
    fresh = Plan(bound(body, text=100), DEVICE)
    q, k, v = random_inputs(plan)
    assert torch.equal(attention(q, k, v, plan), attention(q, k, v, fresh))


@on_every_kernel
def test_cross_attention_has_no_block_size_for_its_user__CM_107(kernel: str) -> None:
    body = "group document* { query region q; key region k; q sees k: all }"
    plan = plan_of(body, q=[3, 5, 4], k=[7, 2, 6])
    check(*random_inputs(plan), plan, kernel)


@on_every_kernel
@pytest.mark.parametrize("layout", ["bshd", "bhsd", "fused", "last dimension strided"])
def test_the_contract_on_strides_and_lse__CM_108(kernel: str, layout: str) -> None:
    plan = plan_of(CAUSAL, text=50)
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(2, 50, 3, 4, 32, generator=generator).to(DEVICE)
    q, k, v = (x.transpose(1, 2) for x in fused.unbind(2))
    match layout:
        case "bshd":
            q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
        case "bhsd":
            q, k, v = (x.contiguous() for x in (q, k, v))
        case "last dimension strided":
            q, k, v = (x.mT.contiguous().mT for x in (q, k, v))
    found = check(q, k, v, plan, kernel)
    assert found.lse.shape == (2, 4, 50)
    assert found.lse.dtype == torch.float32


# --------------------------------------------------------------------------- I
@on_every_kernel
def test_scores_and_sums_are_kept_in_float32__CM_119(kernel: str) -> None:
    hidden = np.zeros(1000, bool)
    hidden[np.random.default_rng(0).choice(1000, 420, replace=False)] = True
    for seen in (~hidden, hidden):
        edges = np.flatnonzero(np.diff(np.r_[0, seen.astype(int), 0])).reshape(-1, 2)
        table = interval_table([[tuple(pair) for pair in edges.tolist()]])
        plan = plan_of(ROWS, q=1, k=1000, func=table)
        inputs = random_inputs(plan, heads=(1, 1), dtype=torch.bfloat16)
        q, k, v = inputs
        out = attention(q, k, v, plan, kernel=kernel).double()
        exact, _ = dense_attention(q.double(), k.double(), v.double(), dense(plan.bound))
        rounding = (exact.bfloat16().double() - exact).abs().max()
        assert (out - exact).abs().max() <= 4 * rounding
        check(*inputs, plan, kernel)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [2, 8, 32])
def test_a_row_has_the_same_bits_in_any_company__CM_121(batch: int) -> None:
    plan = plan_of("query region q align end; key region k; q sees k: causal", q=64, k=5000)
    inputs = random_inputs(plan, batch=batch, heads=(16, 1), dims=(128, 128), dtype=torch.bfloat16)
    together = attention(*inputs, plan, kernel="triton")
    alone = attention(*(x[:1].contiguous() for x in inputs), plan, kernel="triton")
    assert torch.equal(together[:1], alone)
