"""Tensors as the Triton kernels need them: aligned, and behind descriptors."""

from __future__ import annotations

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2_E = 1.4426950408889634
ALIGNMENT = 16  # [bytes] of addresses and strides; CUDA driver API, cuTensorMapEncodeTiled


def aligned(x: Tensor) -> Tensor:
    """`x` itself if kernels can read it where it lies, else a copy with padded rows."""
    return x if is_aligned(x) else aligned_copy(x)


def aligned_copy(x: Tensor) -> Tensor:
    """A contiguous copy, but for padding behind its rows."""
    copy = aligned_zeros(x)
    copy.copy_(x)
    return copy


def aligned_zeros(x: Tensor) -> Tensor:
    """A tensor shaped like `x` whose rows begin at aligned addresses, zeros between them."""
    return x.new_zeros(*x.shape[:-1], _whole_steps(x))[..., : x.shape[-1]]


def is_aligned(x: Tensor) -> bool:
    """Whether kernels can read or write `x` where it lies."""
    strides = [s for s, n in zip(x.stride()[:-1], x.shape[:-1], strict=True) if n > 1]
    steps = [stride * x.element_size() for stride in strides]
    return (
        (x.stride(-1) == 1 or x.shape[-1] == 1)
        and x.data_ptr() % ALIGNMENT == 0
        and (has_tma(x) or x.shape[-1] == _whole_steps(x))
        and all(step > 0 and step % ALIGNMENT == 0 for step in steps)
    )


def rows_of_heads(
    x: Tensor, rows: int, columns: int, tma: bool
) -> tuple[Tensor | TensorDescriptor, tuple[int, ...] | None]:
    """[batch, heads, tokens, dim] as `load_rows` takes it: by blocks [1, 1, rows, columns]."""
    if tma:
        return _descriptor(x, [1, 1, rows, columns]), None
    step = ALIGNMENT // x.element_size()
    strides = (stride // step for stride in x.stride()[:3])
    return x, (*strides, x.shape[2], _whole_steps(x) // step)


def piece_of_rows(x: Tensor, length: int, tma: bool) -> Tensor | TensorDescriptor:
    """A matrix as `load_piece` takes it: by blocks [1, length]."""
    return _descriptor(x, [1, length]) if tma else x


def _whole_steps(x: Tensor) -> int:
    """The last dimension, rounded up so that each row is a multiple of 16 bytes."""
    step = ALIGNMENT // x.element_size()
    return -(-x.shape[-1] // step) * step


def has_tma(x: Tensor) -> bool:
    """Whether blocks of `x` come by descriptor: halves on sm_90 to sm_110, and the interpreter.

    Elsewhere, and for float32 everywhere, products read their operands from registers: pointers
    put them there, and blocks by descriptor spill.
    """
    if x.dtype == torch.float32:
        return False
    return not x.is_cuda or (9, 0) <= torch.cuda.get_device_capability(x.device) < (12, 0)


def _descriptor(x: Tensor, block: list[int]) -> TensorDescriptor:
    return TensorDescriptor(x, list(x.shape), checked_strides(x), block)


def checked_strides(x: Tensor) -> list[int]:
    """The strides for a descriptor: those of dimensions of one are never used, but checked."""
    step = ALIGNMENT // x.element_size()
    strides = [s if n > 1 else step for s, n in zip(x.stride(), x.shape, strict=True)]
    return [*strides[:-1], 1]


def precision_of(dtype: torch.dtype) -> str:
    """Of matrix products: float32 stays float32; halves are exact anyway."""
    return "ieee" if dtype == torch.float32 else "tf32"
