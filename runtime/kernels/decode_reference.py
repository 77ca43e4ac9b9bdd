"""Decoding in plain PyTorch, one sequence after the other: any device, any dtype.

The oracle of the decode kernel, and what runs on a CPU.  It reads lengths on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cmask.runtime.autocast import in_own_dtypes


@in_own_dtypes
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: Tensor,
    kv_lens: Tensor | None,
    kv_starts: Tensor | None,
    page_table: Tensor | None,
    softmax_scale: float,
    *,
    out: Tensor,
) -> Tensor:
    """Writes `out`, returns the log-sum-exp: float32, or float64 where q is.

    k, v: [batch or pages, kv heads, keys or page size, dim].
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    lse = q.new_full(q.shape[:-1], -torch.inf, dtype=wide)
    out.zero_()
    for b in range(q.shape[0]):
        visible = visible_keys(b, q.shape[2], k, bounds, kv_lens, kv_starts, page_table)
        seen = visible.any(0).nonzero()[:, 0]
        visible = visible[:, seen]
        keys, values = (_gather(x, b, seen, page_table).to(wide) for x in (k, v))
        queries = q[b].to(wide).reshape(k.shape[1], -1, *q.shape[2:])  # by kv head and group
        scores = (queries @ keys[:, None].transpose(-1, -2)) * softmax_scale
        scores = torch.where(visible, scores, -torch.inf)
        sees = visible.any(-1, keepdim=True)
        weights = torch.where(visible, torch.where(sees, scores, 0.0).softmax(-1), 0.0)
        out[b] = (weights @ values[:, None]).flatten(0, 1)
        lse[b] = torch.logsumexp(scores, -1).flatten(0, 1)
    return lse


def visible_keys(
    b: int,
    rows: int,
    k: Tensor,
    bounds: Tensor,
    kv_lens: Tensor | None,
    kv_starts: Tensor | None,
    page_table: Tensor | None,
) -> Tensor:
    """bool[rows, capacity]: which keys each row of a sequence sees."""
    capacity = k.shape[2] * (1 if page_table is None else page_table.shape[1])
    length, first, row = capacity, 0, torch.arange(rows, device=k.device)
    if kv_lens is not None:
        length = min(max(int(kv_lens[b]), 0), capacity)
        first = 0 if kv_starts is None else max(int(kv_starts[b]), 0)
        row = row + length - first - rows
    exists = (row >= 0) & (row < bounds.shape[1])
    table = bounds[:, row.clamp(0, bounds.shape[1] - 1)] + first  # [2 * intervals, rows]
    keys = torch.arange(capacity, device=k.device)
    starts, stops = table[0::2, :, None], table[1::2, :, None]
    return ((keys >= starts) & (keys < stops)).any(0) & (keys < length) & exists[:, None]


def _gather(x: Tensor, b: int, keys: Tensor, page_table: Tensor | None) -> Tensor:
    """[kv heads, keys, dim] of one sequence."""
    if page_table is None:
        return x[b][:, keys]
    page_size = x.shape[2]
    pages = page_table[b].long()[keys // page_size]
    return x[pages, :, keys % page_size].transpose(0, 1)
