"""dQ comes back in order from the order of the Hopper backward's accumulators."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cmask.runtime.kernels.triton_sums import write_dkdv_of_parts, write_dq_of_sums


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("q_len", [64, 100, 128])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_sums_are_put_in_order(
    head_dim: int, q_len: int, is_transposed: bool, device: torch.device
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
    write_dq_of_sums(torch.from_numpy(np.ascontiguousarray(sums)).to(device), found, 0.5)
    expected = torch.from_numpy(dq[:, :, :q_len]).to(device) * 0.5
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
    write_dkdv_of_parts(given, heavy, dk, dv, 0.5)
    for block, first, stop in heavy.tolist():
        added = torch.from_numpy(parts[:, first:stop].sum(axis=1)).to(device)
        rows = slice(block * 128, min(kv_len, (block + 1) * 128))
        for found, which, scale in ((dk, 0, 0.5), (dv, 1, 1.0)):
            expected = added[:, :, which].reshape(2, 2, 128, head_dim) * scale
            count = found[:, :, rows].shape[2]
            torch.testing.assert_close(found[:, :, rows], expected[:, :, :count])
    assert (dk[:, :, :128] == 7).all()
    assert (dv[:, :, :128] == 7).all()
