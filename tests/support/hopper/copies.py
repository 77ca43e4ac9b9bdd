"""TMA: blocks of a tensor in global memory, to and from shared memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor as Array

from support.hopper.machine import GpuError, machine
from support.hopper.shared import Shared
from support.hopper.values import whole


@dataclass(frozen=True)
class _BlockType:
    nbytes: int


class DeviceDescriptor:
    """A tensor descriptor as a kernel has it; of the tensor, only the address is read."""

    layout = None

    def __init__(self, descriptor: Any, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.block = list(descriptor.block_shape)
        self.shape = list(descriptor.shape)
        strides = list(descriptor.strides)
        last = sum((n - 1) * s for n, s in zip(self.shape, strides, strict=True))
        size = (last + 1) * dtype.itemsize
        memory = (ctypes.c_uint8 * size).from_address(descriptor.base.data_ptr())
        flat = torch.frombuffer(memory, dtype=dtype)
        self._tensor = flat.as_strided(self.shape, strides)
        elements = 1
        for n in self.block:
            elements *= n
        self.block_type = _BlockType(elements * dtype.itemsize)

    def block_at(self, place: Sequence[int]) -> tuple[Array, tuple[slice, ...]]:
        """What of a block lies in the tensor, and where in the block that is."""
        ranges = [
            (max(0, min(start, n)), max(0, min(start + size, n)))
            for start, size, n in zip(place, self.block, self.shape, strict=True)
        ]
        inside = self._tensor[tuple(slice(*ends) for ends in ranges)]
        within = tuple(
            slice(first - start, stop - start)
            for (first, stop), start in zip(ranges, place, strict=True)
        )
        return inside, within

    def _place(self, coordinates: Sequence[Any], buffer: Shared) -> list[int]:
        if buffer.shape != self.block or buffer.dtype != self.dtype:
            raise GpuError(f"{buffer.dtype} {buffer.shape} for blocks of {self.dtype} {self.block}")
        return [whole(n) for n in coordinates]


def load_block(descriptor: DeviceDescriptor, coordinates: Any, barrier: Any, buffer: Any) -> None:
    """Start a copy; zeros from outside of the tensor.  It arrives whenever it likes."""
    place = descriptor._place(coordinates, buffer)
    buffer.check_arrived("loaded twice")
    buffer.check_fenced("a load on top")
    buffer.spoil()
    full = barrier.barrier()

    def arrive() -> None:
        inside, within = descriptor.block_at(place)
        block = torch.zeros(descriptor.block, dtype=descriptor.dtype)
        block[within] = inside
        buffer.memory.arriving.remove(buffer)
        buffer.data.copy_(block)
        full.bring(descriptor.block_type.nbytes)

    machine().copies.append(arrive)
    machine().maybe_switch()


@dataclass(frozen=True)
class _Store:
    """A copy out of shared memory that is under way."""

    descriptor: DeviceDescriptor
    place: list[int]
    buffer: Shared
    block: Array  # as it was when the copy began
    adds: bool

    def finish(self) -> None:
        now, then = (x.contiguous().view(torch.uint8) for x in (self.buffer.data, self.block))
        if not torch.equal(now, then):
            raise GpuError("a buffer is overwritten while it is being stored")
        inside, within = self.descriptor.block_at(self.place)
        if self.adds:
            inside += self.block[within]
        else:
            inside.copy_(self.block[within])


def _begin_store(descriptor: DeviceDescriptor, coordinates: Any, buffer: Any, adds: bool) -> None:
    place = descriptor._place(coordinates, buffer)
    buffer.check_arrived("stored")
    buffer.check_fenced("a copy")
    block = buffer.data.clone()
    machine().current.stores.append(_Store(descriptor, place, buffer, block, adds))
    machine().maybe_switch()


def store_block(descriptor: DeviceDescriptor, coordinates: Any, buffer: Any) -> None:
    """Start a copy to global memory; what lies outside of the tensor is dropped."""
    _begin_store(descriptor, coordinates, buffer, adds=False)


def add_block(descriptor: DeviceDescriptor, coordinates: Any, buffer: Any) -> None:
    """The same, added to what is there."""
    _begin_store(descriptor, coordinates, buffer, adds=True)


def store_wait(pendings: int) -> None:
    """All but the last so many stores of this partition are done."""
    stores = machine().current.stores
    while len(stores) > pendings:
        stores.pop(0).finish()
    machine().maybe_switch()
