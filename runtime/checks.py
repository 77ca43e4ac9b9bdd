"""What `attention` refuses, in words, before anything is launched."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def check_tensors(q: Tensor, k: Tensor, v: Tensor, lengths: tuple[int, int], order: str) -> None:
    """Refuse tensors that no kernel or not this plan can take.

    lengths: of the plan's queries and keys, counted in `order` ("tokens" or "slots ...").
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise ValueError(
                f"{name} must be [batch, heads, tokens, head_dim], got {x.ndim} dimensions"
            )
    if q.dtype not in DTYPES:
        raise ValueError(f"q must be one of {listed(DTYPES)}, got {q.dtype}")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise ValueError(f"{name} must have q's dtype {q.dtype}, got {x.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name} must be on q's device {q.device}, got {x.device}")
        if x.shape[0] not in (q.shape[0], 1):
            raise ValueError(f"{name} must have batch {q.shape[0]} like q or 1, got {x.shape[0]}")
    _check_heads(q, k, v)
    for name, x, length in (("q", q, lengths[0]), ("k", k, lengths[1]), ("v", v, lengths[1])):
        if x.shape[2] != length:
            raise ValueError(f"{name} must have the plan's {length} {order}, got {x.shape[2]}")


def _check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.shape[-1] < 1 or v.shape[-1] < 1:
        raise ValueError(f"head_dim must be positive, got q {q.shape[-1]} and v {v.shape[-1]}")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k must have q's head_dim {q.shape[-1]}, got {k.shape[-1]}")
    if k.shape[1] < 1 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"k must have a number of heads that divides q's {q.shape[1]}, got {k.shape[1]}"
        )
    if v.shape[1] != k.shape[1]:
        raise ValueError(f"v must have k's {k.shape[1]} heads, got {v.shape[1]}")


def checked_scale(softmax_scale: float | None, head_dim: int) -> float:
    """The factor of q · k; 1 / sqrt(head_dim) if none is given."""
    if softmax_scale is None:
        return 1.0 / math.sqrt(head_dim)
    if isinstance(softmax_scale, Tensor) or not 0.0 < softmax_scale < math.inf:
        raise ValueError(f"softmax_scale must be a positive finite number, got {softmax_scale}")
    return float(softmax_scale)


def listed(names: Iterable[object]) -> str:
    """Names as a sentence lists them."""
    return ", ".join(str(name) for name in names)
