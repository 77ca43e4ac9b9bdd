"""Lengths as tensors, and what the host knows of them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cmask.runtime.derive.sizes import BindError


@dataclass(frozen=True, eq=False)
class CuSeqlens:
    """Lengths as the starts of segments and the end of the last: integers[segments + 1]."""

    tensor: Tensor


def shape_of(lengths: object) -> tuple[int, ...]:
    """How many lengths there are along each star; raises `BindError` for what are none."""
    tensor = lengths.tensor if isinstance(lengths, CuSeqlens) else lengths
    assert isinstance(tensor, Tensor)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        name = "cu_seqlens" if isinstance(lengths, CuSeqlens) else "lengths"
        raise BindError(f"{name} must be integers, got {tensor.dtype}")
    if isinstance(lengths, CuSeqlens):
        if tensor.ndim != 1 or len(tensor) < 1:
            raise BindError(f"cu_seqlens must be [segments + 1], got {list(tensor.shape)}")
        return (len(tensor) - 1,)
    return tuple(tensor.shape)


def zeros(shape: tuple[int, ...]) -> Any:
    """Lists of zeros of this shape, or 0."""
    return [zeros(shape[1:]) for _ in range(shape[0])] if shape else 0


def plain(value: Any) -> object:
    """Numbers and lists of them that nobody else can change."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def frozen(value: object) -> Hashable:
    """What `plain` gives as a key; equal only where it was written the same (1, 1.0, True)."""
    if isinstance(value, list):
        return tuple(map(frozen, value))
    return value if type(value) is int else (type(value), repr(value))
