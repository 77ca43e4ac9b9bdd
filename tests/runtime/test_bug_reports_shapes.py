"""Bug reports about head counts, head dims, strides and sizes: each must not happen here.

The number at the end of a name is the report's; `tests/test_bug_reports_masks.py` lists what does
not apply.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cmask.runtime import attention
from cmask.runtime.kernels.config import DIRECTIONS, choose_config
from cmask.runtime.mask import Plan, load
from support.attending import (
    CAUSAL,
    DEVICE,
    FULL,
    REQUESTS,
    ROWS,
    check,
    on_every_kernel,
    plan_of,
    random_inputs,
    results,
    same,
)
from support.compiled import bound, compiled, interval_table


@on_every_kernel
@pytest.mark.parametrize(
    ("heads", "keys"), [((16, 1), 70), pytest.param((64, 4), 512, marks=pytest.mark.gpu)]
)
def test_any_ratio_of_heads_is_served__CM_049(
    kernel: str, heads: tuple[int, int], keys: int
) -> None:
    plan = plan_of("query region q; key region k; q sees k: all", q=1, k=keys)
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
    plan = plan_of(CAUSAL, text=70)
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(70, 1, 18, 64, generator=generator).to(DEVICE, torch.float16)
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


@on_every_kernel
def test_sequences_of_one_query_or_none_are_served__CM_071(kernel: str) -> None:
    plan = plan_of(REQUESTS, q=[1, 0, 1], k=[3, 0, 5])
    found = check(*random_inputs(plan, heads=(3, 1), dtype=torch.bfloat16), plan, kernel)
    assert found.out.shape == (1, 3, 2, 64)


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
    inputs = random_inputs(plan, heads=(2, 1), dims=(256, 256), dtype=torch.bfloat16)
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
