"""Tensors behind descriptors for the Hopper kernels: rows in a line, boxes of a grid, words."""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from cmask.runtime.derive.boxes import GridRows
from cmask.runtime.kernels.tensors import aligned_copy, checked_strides, is_aligned

_DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


class _Address:
    """What a launch reads of a descriptor's tensor."""

    __slots__ = ("_address",)

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        """In bytes."""
        return self._address


class Shape:
    """A tensor descriptor without its tensor."""

    def __init__(self, descriptor: TensorDescriptor, offset: int) -> None:
        """offset: of the descriptor's base in the tensor [bytes]."""
        self._fields = {**descriptor.__dict__, "base": None}
        self.offset = offset

    def at(self, start: int) -> TensorDescriptor:
        """The descriptor of a tensor that starts at an address; unchecked, it was checked once."""
        descriptor = object.__new__(TensorDescriptor)
        descriptor.__dict__.update(self._fields)
        descriptor.base = _Address(start + self.offset)
        return descriptor


def is_readable(x: Tensor, grid: GridRows | None) -> bool:
    """Whether tensor copies can read or write `x` where it lies."""
    merges = x.shape[0] == 1 or x.shape[1] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
    return is_aligned(x) and (merges or grid is None or grid.tile_frames == 0)


def readable(x: Tensor, grid: GridRows | None) -> Tensor:
    """`x` itself if tensor copies can read it where it lies, else a copy."""
    return x if is_readable(x, grid) else aligned_copy(x)


def line_of(x: Tensor, rows: int, dim: int, grid: GridRows | None) -> TensorDescriptor:
    """Rows of a head one after another; only the line's where there is a grid, too."""
    if grid is not None and grid.line_length:
        x = x[:, :, grid.line_first : grid.line_first + grid.line_length]
    return halves_of(x, (1, 1, rows, dim))


def boxes_of(x: Tensor, rows: int, dim: int, grid: GridRows | None) -> TensorDescriptor | None:
    """Boxes of a grid: [batch, heads, rows, columns, dim], or [batch * heads, frames, ...]."""
    if grid is None:
        return None
    length = grid.frames * grid.rows * grid.columns
    x = x[:, :, grid.first_token : grid.first_token + length]
    box = grid.box(rows)
    if len(box) == 2:
        return halves_of(_unflatten(x, grid.rows, grid.columns), (1, 1, *box, dim))
    x = _unflatten(x, grid.frames, grid.rows, grid.columns)
    heads = x.stride(0) if x.shape[1] == 1 else x.stride(1)
    x = x.as_strided((x.shape[0] * x.shape[1], *x.shape[2:]), (heads, *x.stride()[2:]))
    return halves_of(x, (1, *box, dim))


def _unflatten(x: Tensor, *sizes: int) -> Tensor:
    """The same memory with its tokens (dimension 2) as a grid."""
    batch, heads, _, dim = x.stride()
    token = x.stride(2)
    strides = [token]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * size)
    return x.as_strided((*x.shape[:2], *sizes, x.shape[3]), (batch, heads, *strides, dim))


def halves_of(x: Tensor, block: tuple[int, ...]) -> TensorDescriptor:
    """Blocks of bfloat16 or float16 in the layout that wgmma reads."""
    layout = gl.NVMMASharedLayout.get_default_for(list(block), _DTYPES[x.dtype])
    return TensorDescriptor(x, list(x.shape), checked_strides(x), list(block), layout)


def words_of(x: Tensor, block: list[int]) -> TensorDescriptor:
    """Blocks of 32-bit words as they lie in memory."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=x.ndim)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), block, layout)


def patterns_of(patterns: Tensor) -> TensorDescriptor:
    """One pattern at a time, 64 rows beside 64 rows: int32[num_patterns, rows, 4]."""
    halves = patterns.shape[1] // 64
    return words_of(patterns.view(-1, halves, 256), [1, halves, 256])
