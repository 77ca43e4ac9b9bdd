"""Launching the Hopper forward: what a call needs beyond its pointers is made once per kind.

A call of a kind that was seen before allocates its results and launches.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from cmask.runtime.derive.boxes import GridRows
from cmask.runtime.kernels.config import programs_sharing, q_buffers
from cmask.runtime.kernels.cuda_launch import Relaunch
from cmask.runtime.kernels.device import Launch
from cmask.runtime.kernels.gluon_forward_sm90 import attention_forward
from cmask.runtime.kernels.operator import empty_output
from cmask.runtime.kernels.tensors import aligned_zeros, is_aligned, padded_dim

LOG2_E = 1.4426950408889634
_ALIGNMENT = 16  # [bytes]
GLUON_DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}
# (registers a thread at launch, registers of a consumer's thread): 64K registers hold two
# warpgroups and the producer, or two programs of one warpgroup and a producer each
_REGISTERS = {2: (168, 240), 1: (128, 232)}
_knobs = triton.knobs.runtime
_MAX_LAUNCHERS = 4096  # kinds of calls remembered


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    launches: tuple[Launch, ...],
    softmax_scale: float,
    *,
    out: Tensor,
) -> Tensor:
    """Writes `out`, returns the log-sum-exp; no dimension may be empty.

    With `launch.grid`, tensors are in the caller's order, else in slots.
    """
    launch = launches[0]
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    if launch.has_unread_keys:  # 0 * NaN would be NaN; keys themselves are masked
        read = launch.key_is_read[: v.shape[2]] != 0
        v = torch.where(read[:, None], v, 0.0)
    if k.stride(0) == 0 == v.stride(0):  # all batches share them
        k, v = k[:1], v[:1]
    launcher_of(q, k, v, out, launch)(q, k, v, out, lse, launch, softmax_scale * LOG2_E)
    return lse


def ready_call(
    q: Tensor, k: Tensor, v: Tensor, launches: tuple[Launch, ...], softmax_scale: float
) -> ReadyCall | None:
    """A short way for calls with tensors like these; None where more is to be done each time."""
    launch = launches[0]
    if launch.has_unread_keys or 0 in (k.stride(0), v.stride(0)):
        return None
    out = empty_output(q, v)
    return ReadyCall(launcher_of(q, k, v, out, launch), launch, softmax_scale * LOG2_E)


class ReadyCall:
    """Calls with tensors of one kind by one plan: everything is known but their addresses."""

    def __init__(self, launcher: _Launcher, launch: Launch, scale: float) -> None:
        self._launcher, self._launch, self._scale = launcher, launch, scale

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, return_lse: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Output, and the log-sum-exp if it is asked for."""
        out = empty_output(q, v)
        lse = q.new_empty(q.shape[:3], dtype=torch.float32) if return_lse else None
        self._launcher(q, k, v, out, lse, self._launch, self._scale)
        return out if lse is None else (out, lse)


def launcher_of(q: Tensor, k: Tensor, v: Tensor, out: Tensor, launch: Launch) -> _Launcher:
    """The launcher of calls like this one, made once."""
    key = (
        q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(), out.stride(),
        q.dtype, q.device.index, launch.key,
    )  # fmt: skip
    launcher = _launchers.get(key)
    if launcher is None:
        if len(_launchers) >= _MAX_LAUNCHERS:
            _launchers.clear()
        launcher = _launchers[key] = _Launcher(q, k, v, out, launch)
    return launcher


class _Launcher:
    """Calls of one kind: shapes, strides, dtype, lists of the same lengths."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, launch: Launch) -> None:
        """Compiles the kernel; of the tensors only what calls of this kind share is kept."""
        grid, warpgroups = launch.grid, launch.block_m // 64
        tensors = (q, k, v, out)
        self._is_readable = all(_is_readable(x, grid) for x in tensors)
        q, k, v, out = (_readable(x, grid) for x in tensors)
        d, dv = padded_dim(q.shape[3]), padded_dim(v.shape[3])
        shapes = ((q, 64, d), (k, launch.block_n, d), (v, launch.block_n, dv), (out, 64, dv))
        lines = [_line(x, rows, dim, grid) for x, rows, dim in shapes]
        boxes = [_boxes(x, rows, dim, grid) for x, rows, dim in shapes]
        patterns = _patterns(launch, warpgroups) if launch.has_patterns else None
        properties: Any = torch.cuda.get_device_properties(q.device)
        programs = properties.multi_processor_count * programs_sharing(launch.block_m)
        self._programs = min(len(launch.items), programs)
        self._tickets = _tickets_of(q.device)
        self._integers = (
            len(launch.items),
            self._programs,
            launch.counts.shape[1],
            q.shape[1],
            q.shape[1] // k.shape[1],
            int(k.shape[0] > 1),
            q.shape[2],
            launch.bounds.shape[1],
        )
        self._grid = None if grid is None else GridRows.integers(grid)[:10]
        max_registers, registers = _REGISTERS[warpgroups]
        self._constants = (
            launch.num_intervals,
            warpgroups,
            launch.num_stages,
            q_buffers(d, dv),
            launch.block_n,
            d,
            dv,
            () if grid is None else grid.box(64),
            1 if grid is None else grid.volume // 64,
            () if grid is None else grid.box(launch.block_n),
            1 if grid is None else grid.volume // launch.block_n,
            registers,
        )
        descriptors = (*lines, *boxes, patterns)
        lse = q.new_empty(1, dtype=torch.float32)  # stands for the tickets, too
        arguments = self._arguments(descriptors, lse, launch, lse.view(torch.int32), 1.0)
        self._compiled = attention_forward.warmup(
            *arguments,
            grid=(self._programs,),
            num_warps=4,
            maxnreg=max_registers,
            enable_fp_fusion=True,
        )
        starts = [x.data_ptr() for x in (q, k, v, out)] * 2 + [launch.patterns.data_ptr()]
        self._descriptors = [
            None if d is None else _Shape(d, d.base.data_ptr() - start)
            for d, start in zip(descriptors, starts, strict=True)
        ]
        self._offsets = [
            (i, shape.offset) for i, shape in enumerate(self._descriptors) if shape is not None
        ]
        self._relaunch = Relaunch.of(self._compiled, self._programs, arguments)

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor | None,
        launch: Launch,
        scale: float,
    ) -> None:
        """One launch; nothing is read back.  lse: None where it is not wanted."""
        target = out
        starts = (q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr())
        if not self._is_readable or (starts[0] | starts[1] | starts[2] | starts[3]) % _ALIGNMENT:
            # the copies live until the launch is queued; the allocator keeps order on a stream
            q, k, v = (_readable(x, launch.grid) for x in (q, k, v))
            target = out if _is_readable(out, launch.grid) else aligned_zeros(out)
            starts = (q.data_ptr(), k.data_ptr(), v.data_ptr(), target.data_ptr())
        stream = torch._C._cuda_getCurrentRawStream(q.get_device())
        if self._relaunch is None or _is_watched():
            self._launch_by_triton(starts, lse, launch, stream, scale)
        else:
            patterns, *lists = launch.addresses
            bases = (*starts, *starts, patterns)
            maps = [bases[i] + offset for i, offset in self._offsets]
            address = 0 if lse is None else lse.data_ptr()
            capturing = torch.cuda.is_current_stream_capturing()
            tickets = self._tickets.take(stream, is_capturing=capturing)
            pointers = [address, *lists, tickets.data_ptr()]
            self._relaunch(stream, maps, pointers, scale)
        if target is not out:
            out.copy_(target)

    def _launch_by_triton(
        self,
        starts: tuple[int, ...],
        lse: Tensor | None,
        launch: Launch,
        stream: int,
        scale: float,
    ) -> None:
        bases = (*starts, *starts, launch.patterns.data_ptr())
        descriptors = [
            None if shape is None else shape.at(start)
            for shape, start in zip(self._descriptors, bases, strict=True)
        ]
        capturing = torch.cuda.is_current_stream_capturing()
        tickets = self._tickets.take(stream, is_capturing=capturing)
        arguments = self._arguments(descriptors, 0 if lse is None else lse, launch, tickets, scale)
        self._compiled[(self._programs, 1, 1)](*arguments, stream=stream)

    def _arguments(
        self, descriptors: Sequence[Any], lse: Tensor | int, launch: Launch, tickets: Tensor,
        scale: float,
    ) -> tuple[Any, ...]:  # fmt: skip
        return (
            *descriptors,
            lse,
            launch.items,
            launch.offsets,
            launch.counts,
            launch.entries,
            launch.bounds,
            tickets,
            *self._integers,
            self._grid,
            scale,
            *self._constants,
        )


def _is_watched() -> bool:
    """Whether a profiler hooks into Triton's launches."""
    hook = _knobs.launch_enter_hook
    return bool(getattr(hook, "calls", hook))


# ------------------------------------------------------------------------------ descriptors


class _Address:
    """What a launch reads of a descriptor's tensor."""

    __slots__ = ("_address",)

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        """In bytes."""
        return self._address


class _Shape:
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


def _is_readable(x: Tensor, grid: GridRows | None) -> bool:
    """Whether tensor copies can read or write `x` where it lies."""
    merges = x.shape[0] == 1 or x.shape[1] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
    return is_aligned(x) and (merges or grid is None or grid.tile_frames == 0)


def _readable(x: Tensor, grid: GridRows | None) -> Tensor:
    if _is_readable(x, grid):
        return x
    copy = aligned_zeros(x)
    copy.copy_(x)
    return copy


def _line(x: Tensor, rows: int, dim: int, grid: GridRows | None) -> TensorDescriptor:
    """Rows of a head one after another; only the line's where there is a grid, too."""
    if grid is not None and grid.line_length:
        x = x[:, :, grid.line_first : grid.line_first + grid.line_length]
    return _descriptor(x, (1, 1, rows, dim))


def _boxes(x: Tensor, rows: int, dim: int, grid: GridRows | None) -> TensorDescriptor | None:
    """Boxes of a grid: [batch, heads, rows, columns, dim], or [batch * heads, frames, ...]."""
    if grid is None:
        return None
    length = grid.frames * grid.rows * grid.columns
    x = x[:, :, grid.first_token : grid.first_token + length]
    box = grid.box(rows)
    if len(box) == 2:
        return _descriptor(_unflatten(x, grid.rows, grid.columns), (1, 1, *box, dim))
    x = _unflatten(x, grid.frames, grid.rows, grid.columns)
    heads = x.stride(0) if x.shape[1] == 1 else x.stride(1)
    x = x.as_strided((x.shape[0] * x.shape[1], *x.shape[2:]), (heads, *x.stride()[2:]))
    return _descriptor(x, (1, *box, dim))


def _unflatten(x: Tensor, *sizes: int) -> Tensor:
    """The same memory with its tokens (dimension 2) as a grid."""
    batch, heads, _, dim = x.stride()
    token = x.stride(2)
    strides = [token]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * size)
    return x.as_strided((*x.shape[:2], *sizes, x.shape[3]), (batch, heads, *strides, dim))


def _descriptor(x: Tensor, block: tuple[int, ...]) -> TensorDescriptor:
    step = _ALIGNMENT // x.element_size()
    # the stride of a dimension of one is never used, but it is checked
    strides = [s if n > 1 else step for s, n in zip(x.stride(), x.shape, strict=True)]
    layout = gl.NVMMASharedLayout.get_default_for(list(block), GLUON_DTYPES[x.dtype])
    return TensorDescriptor(x, list(x.shape), [*strides[:-1], 1], list(block), layout)


def _patterns(launch: Launch, warpgroups: int) -> TensorDescriptor:
    words = launch.patterns.view(-1, warpgroups, 256)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=3)
    block = [1, warpgroups, 256]
    return TensorDescriptor(words, list(words.shape), list(words.stride()), block, layout)


# ------------------------------------------------------------------------------ tickets


class Tickets:
    """Counters of the queue of work: a pair for each stream, which orders its launches.

    A captured launch gets a pair of its own, since graphs may be replayed side by side.  Kernels
    leave zeros behind.
    """

    _PAIRS = 256
    _WORDS = 4  # a pair and its padding to 16 bytes

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._by_stream: dict[int, Tensor] = {}
        self._pool: list[Tensor] = []

    def take(self, stream: int, *, is_capturing: bool) -> Tensor:
        """int32[2] of zeros that no other launch uses at the same time."""
        if is_capturing:
            # zeros made now would be zeros only when the graph runs: then for this launch alone
            return self._pool.pop() if self._pool else self._zeros(1)[0]
        pair = self._by_stream.get(stream)
        if pair is None:
            if not self._pool:
                self._pool = list(self._zeros(self._PAIRS).unbind(0))
            pair = self._by_stream[stream] = self._pool.pop()
        return pair

    def _zeros(self, pairs: int) -> Tensor:
        return torch.zeros(pairs, self._WORDS, dtype=torch.int32, device=self._device)


_launchers: dict[Hashable, _Launcher] = {}
_tickets: dict[torch.device, Tickets] = {}


def _tickets_of(device: torch.device) -> Tickets:
    if device not in _tickets:
        _tickets[device] = Tickets(device)
    return _tickets[device]


def current_tickets(device: torch.device) -> Tensor:
    """Tickets for one launch on the current stream."""
    stream = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())
    capturing = torch.cuda.is_current_stream_capturing()
    return _tickets_of(device).take(stream, is_capturing=capturing)
