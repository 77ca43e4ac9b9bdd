"""Decoding on a GPU: graphs that are replayed with other lengths, long caches, no waiting."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cmask.runtime import attention, decode
from support.attending import plan_of
from support.decoding import (
    CAUSAL,
    MASKS,
    check_decoded,
    contiguous,
    lengths,
    paged,
    sequences,
)
from support.gpu import waits_for_nothing

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mask", ["causal", "window", "sink"])
@pytest.mark.parametrize("page_size", [16, 64])
def test_a_graph_serves_other_lengths_and_pages__CM_115(mask: str, page_size: int) -> None:
    """Captured once at a batch of 16, replayed with fewer sequences: the others have length 0."""
    capacity, max_pages = 4096, 4096 // page_size
    plan = plan_of(MASKS[mask], text=capacity)
    q = torch.zeros(16, 16, 1, 128, dtype=torch.bfloat16, device="cuda")
    pool = torch.zeros(2, 16 * max_pages, page_size, 2, 128, dtype=q.dtype, device="cuda")
    table = torch.zeros(16, max_pages, dtype=torch.int32, device="cuda")
    kv_lens = lengths(*[capacity] * 16)

    def step() -> tuple[Tensor, Tensor]:
        k, v = pool.unbind(0)
        return decode(q, k, v, plan, kv_lens=kv_lens, page_table=table, return_lse=True)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = step()
    for lens in ([4096], [1, 2000, 17], [300 * i for i in range(13)], [4000] * 16):
        lens = lens + [0] * (16 - len(lens))
        batch = sequences(MASKS[mask], lens, heads=(16, 2), dims=(128, 128))
        k, v, pages = paged(batch, page_size, max_pages)
        pool.fill_(torch.nan)
        pool[0, : len(k)], pool[1, : len(v)] = k, v
        q.copy_(batch.q)
        table.copy_(pages)
        kv_lens.copy_(lengths(*lens))
        graph.replay()
        check_decoded(batch, held)
        assert all(map(torch.equal, held, step()))


def test_steps_neither_wait_nor_grow() -> None:
    plan = plan_of(CAUSAL, text=2048)
    q = torch.randn(4, 8, 1, 64, dtype=torch.float16, device="cuda")
    k, v = torch.randn(2, 4, 2, 2048, 64, dtype=torch.float16, device="cuda")
    steps = [lengths(*row) for row in torch.randint(1, 2049, (100, 4)).tolist()]
    decode(q, k, v, plan, kv_lens=steps[0])
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with waits_for_nothing():
        for kv_lens in steps:
            decode(q, k, v, plan, kv_lens=kv_lens)
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (192, 128), (256, 256)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("page_size", [0, 16, 64, 256])
def test_every_shape_of_block(
    page_size: int, dtype: torch.dtype, dims: tuple[int, int], rows: int
) -> None:
    lens = [2048, 0, 1, 700]
    batch = sequences(MASKS["sink"], lens, rows=rows, heads=(16, 2), dims=dims, dtype=dtype)
    plan = plan_of(MASKS["sink"], text=2048)
    call = {"kv_lens": lengths(*lens), "return_lse": True}
    if page_size:
        k, v, call["page_table"] = paged(batch, page_size, 2048 // page_size)
    else:
        k, v = contiguous(batch, 2048)
    for splits in (None, 1, 7):
        check_decoded(batch, decode(batch.q, k, v, plan, **call, num_splits=splits))


def test_few_rows_of_a_long_mask_agree_with_the_ordinary_kernel() -> None:
    body = "query region q align end; key region k; q sees k: window(4095, 0)"
    plan = plan_of(body, q=8, k=100_000)
    q = torch.randn(2, 16, 8, 128, dtype=torch.bfloat16, device="cuda")
    k, v = torch.randn(2, 2, 2, 100_000, 128, dtype=torch.bfloat16, device="cuda")
    k[:, :, :95_000], v[:, :, :95_000] = torch.nan, torch.nan
    found = attention(q, k, v, plan, return_lse=True)
    assert [prepared.kernel for prepared in plan.prepared.values()] == ["decode"]
    others = attention(q, k, v, plan, return_lse=True, kernel="triton")
    torch.testing.assert_close(found[0].float(), others[0].float(), atol=4e-3, rtol=2e-2)
    torch.testing.assert_close(found[1], others[1], atol=1e-3, rtol=1e-4)


def test_a_cache_of_more_than_two_billion_numbers() -> None:
    """The last sequence and the last page lie beyond what an int32 counts."""
    keys, heads = 1 << 15, 8
    k = torch.zeros(66, heads, keys, 128, dtype=torch.bfloat16, device="cuda")
    assert k.numel() > 1 << 31
    k[-1].normal_()
    q = torch.randn(66, heads, 1, 128, dtype=torch.bfloat16, device="cuda")
    plan = plan_of(CAUSAL, text=keys)
    lens = lengths(*[keys] * 66)
    whole = decode(q, k, k, plan, kv_lens=lens, num_splits=4)
    alone = decode(q[-1:], k[-1:].clone(), k[-1:].clone(), plan, kv_lens=lens[:1], num_splits=4)
    assert torch.equal(whole[-1], alone[0])
    pool = k.transpose(1, 2).reshape(-1, 64, heads, 128)  # a copy: pages of 64 keys
    table = torch.arange(len(pool), dtype=torch.int32, device="cuda").reshape(66, -1)
    paged_out = decode(q, pool, pool, plan, kv_lens=lens, page_table=table, num_splits=4)
    torch.testing.assert_close(paged_out[-1], alone[0])
