"""What attention must give where heads differ: every query head alone, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from support.budgets import Results, Upstream, eager


def eager_by_head(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, upstream: Upstream, *, dtype: torch.dtype
) -> Results:
    """Plain attention in `dtype`; visible: bool[num_q_heads, q_len, kv_len]."""
    group = q.shape[1] // k.shape[1]
    outs, lses, grads = [], [], []
    sums = [torch.zeros_like(x, dtype=dtype) for x in (k, v)]
    for head in range(q.shape[1]):
        its, key_head = slice(head, head + 1), slice(head // group, head // group + 1)
        lse = None if upstream.lse is None else upstream.lse[:, its]
        found = eager(
            *(q[:, its], k[:, key_head], v[:, key_head], visible[head]),
            Upstream(upstream.out[:, its], lse),
            dtype=dtype,
        )
        outs.append(found.out)
        lses.append(found.lse)
        grads.append(found.dq)
        sums[0][:, key_head] += found.dk
        sums[1][:, key_head] += found.dv
    return Results(torch.cat(outs, 1), torch.cat(lses, 1), torch.cat(grads, 1), *sums)
