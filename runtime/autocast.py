"""What `torch.autocast` asks of attention: its dtype, as in PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., object])
_DEVICES = ("cpu", "cuda")  # of others torch may know no autocast


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype that tensors beside `x` are to be cast to; None outside of `torch.autocast`."""
    device = x.device.type
    if device not in _DEVICES or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def autocasted(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As torch casts for its own products of matrices: whatever is floating, but for float64."""
    dtype = autocast_dtype(q)
    return (q, k, v) if dtype is None else (cast(q, dtype), cast(k, dtype), cast(v, dtype))


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` in the dtype of autocast."""
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x


def in_own_dtypes(function: F) -> F:
    """A kernel of PyTorch's functions, whose products autocast must not round.

    function: of tensors of one device, the first argument one of them.
    """

    @wraps(function)
    def call(x: Tensor, *args: object, **kwargs: object) -> object:
        if autocast_dtype(x) is None:
            return function(x, *args, **kwargs)
        with torch.autocast(x.device.type, enabled=False):
            return function(x, *args, **kwargs)

    return call  # type: ignore[return-value]
