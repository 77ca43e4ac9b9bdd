"""Attention in plain PyTorch, from the same block lists as the kernels: any device, any dtype.

The numerical oracle of the kernels, and what runs on a CPU.  Each query block gathers the key
blocks that it touches, so that memory goes with what is visible, never with q_len × kv_len.
Half precision is computed in float32, float64 stays float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cmask.runtime.autocast import in_own_dtypes
from cmask.runtime.kernels.launch import Launch


@in_own_dtypes
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    launches: tuple[Launch, ...],
    softmax_scale: float,
    *,
    out: Tensor,
) -> Tensor:
    """Writes `out`, returns the log-sum-exp: float32, or float64 where q is."""
    (launch, *_) = launches
    q, k, v = (_upcast(x) for x in (q, k, v))
    out.zero_()
    lse = q.new_full(q.shape[:-1], -torch.inf)
    for chunk in _chunks(launch, q.shape[2], k.shape[2]):
        scores = _scores(q, k, chunk, softmax_scale)  # [batch, kv heads, group, rows, keys]
        values = _softmax(scores, chunk) @ _gather(v, chunk)
        out[:, :, chunk.rows] = values.flatten(1, 2)
        lse[:, :, chunk.rows] = torch.logsumexp(scores, -1).flatten(1, 2)
    return lse


@in_own_dtypes
def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    launches: tuple[Launch, ...],
    softmax_scale: float,
    *,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
) -> None:
    """Writes the gradients; sums are float32, or float64 where q is."""
    (launch, *_) = launches
    q, k, v, out, grad_out = (_upcast(x) for x in (q, k, v, out, grad_out))
    delta = (out * grad_out).sum(-1)
    if grad_lse is not None:
        delta = delta - grad_lse
    dq.zero_()
    sum_k, sum_v = torch.zeros_like(k), torch.zeros_like(v)
    num_kv_heads = k.shape[1]
    for chunk in _chunks(launch, q.shape[2], k.shape[2]):
        scores = _scores(q, k, chunk, softmax_scale)
        weights = _softmax(scores, chunk)
        sees = chunk.visible.any(-1)[:, None]
        grads = torch.where(sees, _grouped(grad_out[:, :, chunk.rows], num_kv_heads), 0.0)
        queries = torch.where(sees, _grouped(q[:, :, chunk.rows], num_kv_heads), 0.0)
        grad_weights = grads @ _gather(v, chunk).transpose(-1, -2)
        of_rows = _grouped(delta[:, :, chunk.rows], num_kv_heads)
        grad_scores = weights * (grad_weights - of_rows[..., None]) * softmax_scale
        grad_scores = torch.where(chunk.visible, grad_scores, 0.0)
        dq[:, :, chunk.rows] = (grad_scores @ _gather(k, chunk)).flatten(1, 2)
        sum_k.index_add_(2, chunk.keys, (grad_scores.transpose(-1, -2) @ queries).sum(2))
        sum_v.index_add_(2, chunk.keys, (weights.transpose(-1, -2) @ grads).sum(2))
    dk.copy_(sum_k)
    dv.copy_(sum_v)


@dataclass(frozen=True, eq=False)
class _Chunk:
    """One query block, and the keys of the key blocks that it touches.

    rows     the queries of the block
    keys     int64[keys]
    visible  bool[rows, keys]
    is_read  bool[keys]: whether any query of the mask sees the key
    """

    rows: slice
    keys: Tensor
    visible: Tensor
    is_read: Tensor


def _chunks(launch: Launch, q_len: int, kv_len: int) -> Iterator[_Chunk]:
    """The query blocks that see anything."""
    offsets, entries = launch.offsets.tolist(), launch.entries.tolist()
    m, n = launch.block_m, launch.block_n
    device = launch.offsets.device
    for block in range(len(offsets[0]) - 1):
        full, bounds, pattern = (entries[of[block] : of[block + 1]] for of in offsets)
        masked = [key for first, stop in bounds for key in range(first, stop)]
        blocks = [key for first, stop in full for key in range(first, stop)]
        num_full = len(blocks)
        blocks += masked + [key for key, _ in pattern]
        if not blocks:
            continue
        every = torch.tensor(blocks, device=device)[:, None] * n
        keys = (every + torch.arange(n, device=device)).reshape(-1)
        rows = torch.arange(block * m, (block + 1) * m, device=device)
        parts = [torch.ones(m, num_full * n, dtype=torch.bool, device=device)]
        inside = keys[num_full * n : (num_full + len(masked)) * n]
        parts.append(_in_intervals(launch, rows, inside))
        parts += [_pattern(launch.patterns[index], n) for _, index in pattern]
        visible = torch.cat(parts, dim=1)[: q_len - block * m]
        exists = keys < kv_len
        keys, visible = keys[exists], visible[:, exists]
        is_read = launch.key_is_read[keys] != 0
        yield _Chunk(slice(block * m, block * m + len(visible)), keys, visible, is_read)


def _in_intervals(launch: Launch, rows: Tensor, keys: Tensor) -> Tensor:
    """bool[rows, keys]: whether a key lies in an interval of the row."""
    visible = torch.zeros(len(rows), len(keys), dtype=torch.bool, device=keys.device)
    for i in range(launch.num_intervals if len(keys) else 0):
        start, stop = launch.bounds[2 * i, rows, None], launch.bounds[2 * i + 1, rows, None]
        visible |= (keys >= start) & (keys < stop)
    return visible


def _pattern(words: Tensor, columns: int) -> Tensor:
    """bool[rows, columns] of int32[rows, 4]; see `pack_pattern`."""
    shifts = torch.arange(columns // 4, device=words.device, dtype=torch.int32)
    bits = (words[:, :, None] >> shifts) & 1  # [rows, 4, columns / 4]
    bits = bits.reshape(len(words), 4, columns // 8, 2).transpose(1, 2)
    return bits.reshape(len(words), columns).bool()


def _scores(q: Tensor, k: Tensor, chunk: _Chunk, softmax_scale: float) -> Tensor:
    queries = _grouped(q[:, :, chunk.rows], k.shape[1])
    scores = (queries @ _gather(k, chunk).transpose(-1, -2)) * softmax_scale
    return torch.where(chunk.visible, scores, -torch.inf)


def _softmax(scores: Tensor, chunk: _Chunk) -> Tensor:
    """Zeros in rows that see nothing.  Made again in the backward: `lse` is rounded."""
    sees = chunk.visible.any(-1, keepdim=True)
    weights = torch.softmax(torch.where(sees, scores, 0.0), -1)
    return torch.where(chunk.visible, weights, 0.0)


def _gather(x: Tensor, chunk: _Chunk) -> Tensor:
    """[batch, kv heads, 1, keys, dim], zeros where no query sees the key."""
    return torch.where(chunk.is_read[:, None], x[:, :, chunk.keys], 0.0)[:, :, None]


def _grouped(x: Tensor, num_kv_heads: int) -> Tensor:
    """[batch, heads, ...] -> [batch, kv heads, group, ...]."""
    group = x.shape[1] // num_kv_heads
    return x.reshape(x.shape[0], num_kv_heads, group, *x.shape[2:])


def _upcast(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
