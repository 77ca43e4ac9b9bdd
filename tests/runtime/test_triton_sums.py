"""dQ comes back in order from the order of the Hopper backward's accumulators."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cmask.runtime.kernels.triton_sums import write_dkdv_of_parts, write_dq_of_sums


def slot_tokens(num_slots: int, num_tokens: int) -> Tensor:
    """Every token in some slot, and -1 in the slots that are left."""
    random = np.random.default_rng(num_tokens)
    tokens = np.full(num_slots, -1, np.int32)
    tokens[random.permutation(num_slots)[:num_tokens]] = random.permutation(num_tokens)
    return torch.from_numpy(tokens)


def by_token(x: Tensor, tokens: Tensor, num_tokens: int) -> Tensor:
    """[…, slots, dim] -> […, tokens, dim]."""
    slots = torch.empty(num_tokens, dtype=torch.int64)
    slots[tokens[tokens >= 0].long()] = (tokens >= 0).nonzero()[:, 0]
    return x[..., slots.to(x.device), :]


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("q_len", [64, 100, 128])
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("is_grid", [False, True])
def test_sums_are_put_in_order(
    head_dim: int, q_len: int, is_transposed: bool, is_grid: bool, device: torch.device
) -> None:
    """Each half of the columns as [4 warps, 2 × 8 rows, columns / 8, 4 lanes, 2]: see wgmma."""
    random = np.random.default_rng(q_len)
    blocks = -(-q_len // 64)
    dq = random.standard_normal((2, 3, blocks * 64, head_dim)).astype(np.float32)
    halves = dq.reshape(6, blocks, 64, 2, head_dim // 2).transpose(0, 1, 3, 2, 4)
    threads = halves.reshape(6, blocks, 2, 4, 2, 8, head_dim // 16, 4, 2)
    sums = threads.transpose(0, 1, 2, 6, 3, 5, 7, 4, 8).reshape(6, blocks, 2, 32 * head_dim)
    found = torch.empty(2, 3, q_len, head_dim, dtype=torch.float16, device=device)
    if is_transposed:
        found = found.transpose(1, 2).contiguous().transpose(1, 2)
    tokens = slot_tokens(blocks * 64, q_len) if is_grid else None
    given = torch.from_numpy(np.ascontiguousarray(sums)).to(device)
    write_dq_of_sums(given, found, 0.5, None if tokens is None else tokens.to(device))
    whole = torch.from_numpy(dq).to(device) * 0.5
    expected = whole[:, :, :q_len] if tokens is None else by_token(whole, tokens, q_len)
    torch.testing.assert_close(found.float(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("kv_len", [256, 300])
def test_parts_are_added_where_their_block_lies(
    head_dim: int, kv_len: int, device: torch.device
) -> None:
    """Block 1 in three parts, block 2 in two; block 0 is nobody's business here."""
    random = np.random.default_rng(kv_len)
    parts = random.standard_normal((4, 5, 2, 2, 64, head_dim)).astype(np.float32)
    threads = parts.reshape(4, 5, 2, 2, 4, 2, 8, head_dim // 8, 4, 2)
    flat = threads.transpose(0, 1, 2, 3, 7, 4, 6, 8, 5, 9).reshape(4, 5, 2, 2, 64 * head_dim)
    heavy = torch.tensor([[1, 0, 3], [2, 3, 5]], dtype=torch.int32, device=device)
    dk = torch.full((2, 2, kv_len, head_dim), 7.0, dtype=torch.float32, device=device)
    dv = dk.clone()
    given = torch.from_numpy(np.ascontiguousarray(flat)).to(device)
    write_dkdv_of_parts(given, heavy, dk, dv, 0.5, None)
    for block, first, stop in heavy.tolist():
        added = torch.from_numpy(parts[:, first:stop].sum(axis=1)).to(device)
        rows = slice(block * 128, min(kv_len, (block + 1) * 128))
        for found, which, scale in ((dk, 0, 0.5), (dv, 1, 1.0)):
            expected = added[:, :, which].reshape(2, 2, 128, head_dim) * scale
            count = found[:, :, rows].shape[2]
            torch.testing.assert_close(found[:, :, rows], expected[:, :, :count])
    assert (dk[:, :, :128] == 7).all()
    assert (dv[:, :, :128] == 7).all()


def test_parts_of_a_grid_are_added_where_its_tokens_lie(device: torch.device) -> None:
    parts = torch.randn(1, 2, 2, 2, 64 * 64, generator=torch.Generator().manual_seed(0)).to(device)
    heavy = torch.tensor([[1, 0, 2]], dtype=torch.int32, device=device)
    lines = [torch.zeros(1, 1, 384, 64, device=device) for _ in range(2)]
    write_dkdv_of_parts(parts, heavy, *lines, 0.5, None)
    tokens = slot_tokens(384, 300)
    found = [torch.zeros(1, 1, 300, 64, device=device) for _ in range(2)]
    write_dkdv_of_parts(parts, heavy, *found, 0.5, tokens.to(device))
    for line, x in zip(lines, found, strict=True):
        assert torch.equal(x, by_token(line, tokens, 300))
