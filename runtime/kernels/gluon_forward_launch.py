"""Launching the Hopper forward: what a call needs beyond its pointers is made once per kind.

A call of a kind that was seen before allocates its results and launches.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from cmask.runtime.kernels.budget import padded_dim
from cmask.runtime.kernels.config import pieces_of, programs_sharing, q_buffers
from cmask.runtime.kernels.cuda_launch import Relaunch
from cmask.runtime.kernels.gluon_descriptors import (
    Shape,
    boxes_of,
    is_readable,
    line_of,
    patterns_of,
    readable,
)
from cmask.runtime.kernels.gluon_forward_sm90 import attention_forward
from cmask.runtime.kernels.launch import Launch
from cmask.runtime.kernels.operator import empty_output
from cmask.runtime.kernels.tensors import ALIGNMENT, LOG2_E, aligned_zeros
from cmask.runtime.kernels.tickets import tickets_of

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
    if launch.has_holes:  # 0 * NaN would be NaN; keys themselves are masked
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
    if launch.has_holes or 0 in (k.stride(0), v.stride(0)):
        return None
    launcher = launcher_of(q, k, v, empty_output(q, v), launch)
    return ReadyCall(launcher, launch, softmax_scale * LOG2_E) if launcher.is_direct else None


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
    addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr())
    key = (
        q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(), out.stride(),
        q.dtype, q.device.index, launch.key, *(address % ALIGNMENT == 0 for address in addresses),
    )  # fmt: skip
    launcher = _launchers.get(key)
    if launcher is None:
        if len(_launchers) >= _MAX_LAUNCHERS:
            _launchers.clear()
        launcher = _launchers[key] = _Launcher(q, k, v, out, launch)
    return launcher


class _Launcher:
    """Calls of one kind: shapes, strides, alignments, dtype, lists of the same lengths.

    is_direct  whether the kernel reads and writes the tensors themselves: copies of others have
               strides of their own, which its descriptors hold
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, launch: Launch) -> None:
        """Compiles the kernel; of the tensors only what calls of this kind share is kept."""
        grid, warpgroups = launch.grid, launch.block_m // 64
        tensors = (q, k, v, out)
        self.is_direct = all(is_readable(x, grid) for x in tensors)
        q, k, v, out = (readable(x, grid) for x in tensors)
        starts = [x.data_ptr() for x in (q, k, v, out)] * 2 + [launch.patterns.data_ptr()]
        # copies by TMA are zeros past the ends of a tensor: what nobody reads may hold NaN
        k, v = (x[:, :, launch.first_key : launch.stop_key] for x in (k, v))
        (pieces, d), dv = pieces_of(q.shape[3]), padded_dim(v.shape[3])
        shapes = ((q, 64, d), (k, launch.block_n, d), (v, launch.block_n, dv), (out, 64, dv))
        lines = [line_of(x, rows, dim, grid) for x, rows, dim in shapes]
        boxes = [boxes_of(x, rows, dim, grid) for x, rows, dim in shapes]
        patterns = patterns_of(launch.patterns) if launch.has_patterns else None
        properties: Any = torch.cuda.get_device_properties(q.device)
        programs = properties.multi_processor_count * programs_sharing(launch.block_m)
        self._programs = min(len(launch.items), programs)
        self._tickets = tickets_of(q.device)
        self._integers = (
            len(launch.items),
            self._programs,
            launch.counts.shape[1],
            q.shape[1],
            q.shape[1] // k.shape[1],
            int(k.shape[0] > 1),
            q.shape[2],
            launch.bounds.shape[1],
            launch.first_key,
        )
        self._grid = None if grid is None else grid.geometry
        max_registers, registers = _REGISTERS[warpgroups]
        self._constants = (
            launch.num_intervals,
            warpgroups,
            launch.num_stages,
            q_buffers(pieces * d, dv),
            launch.block_n,
            pieces,
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
        self._descriptors = [
            None if d is None else Shape(d, d.base.data_ptr() - start)
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
        if self.is_direct:
            if (starts[0] | starts[1] | starts[2] | starts[3]) % ALIGNMENT:  # of another kind
                launcher_of(q, k, v, out, launch)(q, k, v, out, lse, launch, scale)
                return
        else:
            # the copies live until the launch is queued; the allocator keeps order on a stream
            q, k, v = (readable(x, launch.grid) for x in (q, k, v))
            target = out if is_readable(out, launch.grid) else aligned_zeros(out)
            starts = (q.data_ptr(), k.data_ptr(), v.data_ptr(), target.data_ptr())
        stream = torch._C._cuda_getCurrentRawStream(q.get_device())
        if self._relaunch is None or _is_watched():
            self._launch_by_triton(starts, lse, launch, stream, scale)
        else:
            patterns, *lists = launch.addresses
            bases = (*starts, *starts, patterns)
            maps = [bases[i] + offset for i, offset in self._offsets]
            address = 0 if lse is None else lse.data_ptr()
            tickets = self._tickets.take(stream)
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
        tickets = self._tickets.take(stream)
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


_launchers: dict[Hashable, _Launcher] = {}
