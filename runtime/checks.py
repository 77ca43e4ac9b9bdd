"""What `attention` and `decode` refuse, in words, before anything is launched."""

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
    _check_alike(q, k, v)
    for name, x in (("k", k), ("v", v)):
        if x.shape[0] not in (q.shape[0], 1):
            raise ValueError(f"{name} must have batch {q.shape[0]} like q or 1, got {x.shape[0]}")
    _check_heads(q, k, v)
    for name, x, length in (("q", q, lengths[0]), ("k", k, lengths[1]), ("v", v, lengths[1])):
        if x.shape[2] != length:
            raise ValueError(f"{name} must have the plan's {length} {order}, got {x.shape[2]}")


def check_cache(q: Tensor, k: Tensor, v: Tensor, page_table: Tensor | None) -> None:
    """Refuse a cache that does not fit q, or its pages.

    k, v: [batch or 1 or pages, heads, keys or page size, dim].
    """
    for name, x in (("q", q), ("k_cache", k), ("v_cache", v)):
        if x.ndim != 4:
            raise ValueError(f"{name} must have 4 dimensions, got {x.ndim}")
        if torch.is_grad_enabled() and x.requires_grad:
            raise ValueError(
                f"{name} must not require a gradient: decode gives none; call it under "
                "torch.no_grad(), or call attention"
            )
    _check_alike(q, k, v)
    _check_heads(q, k, v)
    if page_table is None:
        for name, x in (("k_cache", k), ("v_cache", v)):
            if x.shape[0] not in (q.shape[0], 1):
                raise ValueError(
                    f"{name} must have batch {q.shape[0]} like q or 1, got {x.shape[0]}"
                )
        if v.shape[2] != k.shape[2]:
            raise ValueError(f"v_cache must hold k_cache's {k.shape[2]} keys, got {v.shape[2]}")
        return
    if (v.shape[0], v.shape[2]) != (k.shape[0], k.shape[2]):
        raise ValueError(
            f"v_cache must have k_cache's {k.shape[0]} pages of {k.shape[2]} keys, got "
            f"{v.shape[0]} of {v.shape[2]}"
        )
    if page_table.ndim != 2:
        raise ValueError(f"page_table must have 2 dimensions, got {page_table.ndim}")
    check_list("page_table", page_table, (q.shape[0], page_table.shape[1]), q.device)


def check_list(name: str, x: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    """Refuse a tensor that is not int32 of this shape on the device."""
    if x.dtype != torch.int32 or tuple(x.shape) != shape or x.device != device:
        raise ValueError(
            f"{name} must be int32{list(shape)} on {device}, got "
            f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)} on {x.device}"
        )


def _check_alike(q: Tensor, k: Tensor, v: Tensor) -> None:
    """One dtype and one device."""
    if q.dtype not in DTYPES:
        raise ValueError(f"q must be one of {listed(DTYPES)}, got {q.dtype}")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise ValueError(f"{name} must have q's dtype {q.dtype}, got {x.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name} must be on q's device {q.device}, got {x.device}")


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
