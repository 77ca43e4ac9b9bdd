"""Sequences of different lengths, in pages or not: each as if it were decoded alone."""

from __future__ import annotations

import pytest
import torch

from cmask.runtime import decode
from support.attending import KERNELS, plan_of
from support.compiled import bound
from support.decoding import (
    CAUSAL,
    MASKS,
    SINK,
    WINDOW,
    Sequences,
    check_decoded,
    contiguous,
    lengths,
    paged,
    sequences,
)

RAGGED = [0, 1, 2, 200, 16, 97]
on_every_kernel = pytest.mark.parametrize("kernel", KERNELS)


@on_every_kernel
@pytest.mark.parametrize(
    ("mask", "page_size", "rows", "heads"),
    [
        ("causal", 16, 1, (8, 1)),
        ("causal", 64, 5, (4, 1)),
        ("causal", 256, 2, (2, 2)),
        ("window", 16, 5, (4, 1)),
        ("window", 64, 1, (1, 1)),
        ("window", 256, 64, (1, 1)),
        ("sink", 16, 2, (8, 2)),
        ("sink", 64, 5, (2, 1)),
        ("chunks", 16, 1, (2, 2)),
        ("chunks", 48, 3, (2, 1)),
        ("causal", 1, 1, (2, 1)),
    ],
)
def test_pages_in_any_order(
    kernel: str, mask: str, page_size: int, rows: int, heads: tuple[int, int]
) -> None:
    batch = sequences(MASKS[mask], RAGGED, rows=rows, heads=heads)
    max_pages = -(-max(RAGGED) // page_size) + 1
    k, v, table = paged(batch, page_size, max_pages)
    plan = plan_of(MASKS[mask], text=max_pages * page_size)
    found = decode(
        batch.q, k, v, plan, kv_lens=lengths(*RAGGED), page_table=table, return_lse=True,
        kernel=kernel,
    )  # fmt: skip
    check_decoded(batch, found)


@pytest.mark.parametrize("mask", ["causal", "window", "sink"])
@pytest.mark.parametrize("splits", [1, 2, 3, 8])
def test_shares_of_sequences_of_different_lengths(mask: str, splits: int) -> None:
    batch = sequences(MASKS[mask], RAGGED, rows=2, heads=(4, 1))
    k, v, table = paged(batch, 16, 14)
    plan = plan_of(MASKS[mask], text=14 * 16)
    call = {"kv_lens": lengths(*RAGGED), "page_table": table, "return_lse": True}
    found = decode(batch.q, k, v, plan, **call, kernel="triton", num_splits=splits)
    check_decoded(batch, found)
    again = decode(batch.q, k, v, plan, **call, kernel="triton", num_splits=splits)
    assert all(map(torch.equal, found, again))


@on_every_kernel
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_contiguous_cache_with_room_left(kernel: str, rows: int, dtype: torch.dtype) -> None:
    batch = sequences(WINDOW, RAGGED, rows=rows, dtype=dtype)
    k, v = contiguous(batch, 210)
    plan = plan_of(WINDOW, text=220)
    found = decode(
        batch.q, k, v, plan, kv_lens=lengths(*RAGGED), return_lse=True, kernel=kernel
    )  # fmt: skip
    check_decoded(batch, found)


@on_every_kernel
@pytest.mark.parametrize("mask", ["causal", "sink", "chunks"])
@pytest.mark.parametrize("rows", [1, 4])
def test_sequences_that_begin_anywhere__CM_124(kernel: str, mask: str, rows: int) -> None:
    """Left padding: positions count from where a sequence begins."""
    lens, starts = [100, 97, 36, 1, 0], [0, 3, 64, 129, 5]
    batch = sequences(MASKS[mask], lens, rows=rows)
    k, v = contiguous(batch, 140, starts)
    ends = [a + b for a, b in zip(lens, starts, strict=True)]
    plan = plan_of(MASKS[mask], text=140)
    found = decode(
        batch.q, k, v, plan, kv_lens=lengths(*ends), kv_starts=lengths(*starts), return_lse=True,
        kernel=kernel,
    )  # fmt: skip
    check_decoded(batch, found)


@on_every_kernel
def test_a_mask_that_sees_ahead_sees_the_keys_that_there_are(kernel: str) -> None:
    body = "region text; text sees text: window(9, 7)"
    drawn = sequences(CAUSAL, [50, 31], rows=4)
    whole = torch.from_numpy(bound(body, text=64).visible(*map(torch.arange, (64, 64))))
    visible = [whole[n - 4 : n, :n].to(drawn.q.device) for n in (50, 31)]
    batch = Sequences(drawn.q, drawn.keys, drawn.values, visible)
    k, v, table = paged(batch, 16, 4)
    found = decode(
        batch.q, k, v, plan_of(body, text=64), kv_lens=lengths(50, 31), page_table=table,
        return_lse=True, kernel=kernel,
    )  # fmt: skip
    check_decoded(batch, found)


@on_every_kernel
def test_pages_without_lengths_hold_the_plans_keys(kernel: str) -> None:
    batch = sequences(SINK, [75, 75], rows=75, heads=(2, 1))
    k, v, table = paged(batch, 16, 6)
    found = decode(
        batch.q, k, v, plan_of(SINK, text=75), page_table=table, return_lse=True, kernel=kernel
    )
    check_decoded(batch, found)


@on_every_kernel
def test_lengths_past_the_cache_stay_within_it(kernel: str) -> None:
    """A caller's error, whose results mean nothing: but nothing is read out of bounds."""
    batch = sequences(CAUSAL, [32, 32], rows=1)
    k, v, table = paged(batch, 16, 2)
    plan = plan_of(CAUSAL, text=32)
    call = {"page_table": table, "kernel": kernel, "return_lse": True}
    out, lse = decode(batch.q, k, v, plan, kv_lens=lengths(10**9, -7), **call)
    check_decoded(
        Sequences(batch.q[:1], batch.keys[:1], batch.values[:1], batch.visible[:1]),
        (out[:1], lse[:1]),
    )
    assert (lse[1] == -torch.inf).all()


@on_every_kernel
def test_steps_of_one_row_prepare_once__CM_124(kernel: str) -> None:
    """A row at a time, each by the mask at its length; the plan prepares once."""
    body, capacity = SINK, 48
    plan = plan_of(body, text=capacity)
    whole = sequences(body, [capacity], rows=capacity, heads=(2, 1), dims=(16, 16))
    k, v = (x[0][None] for x in (whole.keys, whole.values))
    steps = [
        decode(
            whole.q[:, :, n - 1 : n], k, v, plan, kv_lens=lengths(n), return_lse=True,
            kernel=kernel,
        )
        for n in range(1, capacity + 1)
    ]  # fmt: skip
    out, lse = (torch.cat(parts, 2) for parts in zip(*steps, strict=True))
    check_decoded(whole, (out, lse))
    assert len(plan.decoding) == 1
