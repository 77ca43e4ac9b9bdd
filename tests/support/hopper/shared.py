"""Shared memory of a program: views of one buffer, and marks of who may read what.

Memory that a copy is bringing holds ones in every bit until it arrives: NaN, or -1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor as Array

from support.hopper.barriers import MBarrier
from support.hopper.machine import GpuError, machine
from support.hopper.values import Tensor, whole

CAPACITY = 232448  # bytes of a program; CUDA programming guide, compute capability 9.0
_ALIGNMENT = 1024


class SharedMemory:
    """The buffer; `marks` is as large and not zero where a generic write has no fence yet."""

    def __init__(self) -> None:
        self.data = torch.full((CAPACITY,), 0xFF, dtype=torch.uint8)
        self.marks = torch.zeros(CAPACITY, dtype=torch.uint8)
        self.used = 0
        self.arriving: list[Shared] = []
        self.barriers: dict[int, MBarrier] = {}

    def allocate(self, dtype: torch.dtype, shape: Sequence[int]) -> Shared:
        """A new view."""
        start = -(-self.used // _ALIGNMENT) * _ALIGNMENT
        sizes = [whole(n) for n in shape]
        size = dtype.itemsize
        for n in sizes:
            size *= n
        self.used = start + size
        if self.used > CAPACITY:
            raise GpuError(f"{self.used} bytes of shared memory, there are {CAPACITY}")
        views = (x[start : start + size].view(dtype).view(sizes) for x in (self.data, self.marks))
        return Shared(self, *views)


@dataclass(frozen=True, eq=False)
class Shared:
    """A view: what lies there, and its marks."""

    memory: SharedMemory
    data: Array
    marks: Array

    @property
    def dtype(self) -> torch.dtype:
        return self.data.dtype

    @property
    def shape(self) -> list[int]:
        return list(self.data.shape)

    def _like(self, change: Any) -> Shared:
        return Shared(self.memory, change(self.data), change(self.marks))

    def index(self, place: Any) -> Shared:
        n = whole(place)
        if not 0 <= n < self.data.shape[0]:
            raise GpuError(f"buffer {n} of {self.data.shape[0]}")
        return self._like(lambda x: x[n])

    def slice(self, start: Any, length: int, dim: int = 0) -> Shared:
        return self._like(lambda x: x.narrow(dim, whole(start), length))

    def reshape(self, shape: Sequence[int]) -> Shared:
        return self._like(lambda x: x.view([whole(n) for n in shape]))

    def permute(self, order: Sequence[int]) -> Shared:
        return self._like(lambda x: x.permute(*order))

    def reinterpret(self, dtype: torch.dtype, shape: Sequence[int]) -> Shared:
        sizes = [whole(n) for n in shape]  # as much of the memory as they are
        return self._like(lambda x: x.view(-1).view(dtype)[: math.prod(sizes)].view(sizes))

    def load(self, _layout: Any = None) -> Tensor:
        """Into registers."""
        machine().maybe_switch()
        self.check_arrived("read")
        return Tensor(self.data.clone())

    def store(self, x: Tensor) -> None:
        """From registers, through the generic proxy."""
        machine().maybe_switch()
        self.check_arrived("written")
        if self.data.dtype != x.data.dtype:
            raise GpuError(f"{x.data.dtype} stored as {self.data.dtype}")
        self.data.copy_(x.data.view(self.data.shape))
        self.marks.copy_(torch.ones_like(self.marks))
        machine().current.unfenced.append(self.marks)

    def check_arrived(self, what: str) -> None:
        """Nothing that a copy is bringing may be touched."""
        first, stop = self._range()
        for other in self.memory.arriving:
            begin, end = other._range()
            if first < end and begin < stop:
                raise GpuError(f"shared memory is {what} while a copy is on its way there")

    def check_fenced(self, what: str) -> None:
        """What the async proxy reads was written by it, or is behind a fence."""
        if bool(self.marks.any()):
            raise GpuError(f"{what} of what was stored without fence_async_shared")

    def spoil(self) -> None:
        """A copy is on its way here."""
        self.memory.arriving.append(self)
        size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[self.dtype.itemsize]
        self.data.view(size).fill_(-1)

    def barrier(self) -> MBarrier:
        """The one that was initialised here."""
        return self.memory.barriers[self._range()[0]]

    def begin_barrier(self, count: int) -> None:
        first = self._range()[0]
        self.memory.barriers[first] = MBarrier(count, f"mbarrier at {first}")

    def _range(self) -> tuple[int, int]:
        """Bytes from the first to behind the last."""
        size = self.data.element_size()
        first = self.data.storage_offset() * size
        last = sum((n - 1) * s for n, s in zip(self.data.shape, self.data.stride(), strict=True))
        return first, first + (last + 1) * size


def fence() -> None:
    """What this partition has stored may now be read by copies and products."""
    task = machine().current
    for marks in task.unfenced:
        marks.zero_()
    task.unfenced.clear()
