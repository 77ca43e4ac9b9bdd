"""Descriptors and plans from a dense matrix: slow, and independent of the product's builder."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cmask.runtime.descriptor import BlockLists, Descriptor, Int32Array, pack_pattern
from cmask.runtime.kernels.device import DeviceDescriptor
from cmask.runtime.kernels.prepare import CallKind, Prepared

Bools = NDArray[np.bool_]
Masking = Literal["bounds", "pattern"]


def descriptor_of(visible: Bools, block_m: int, block_n: int, masking: Masking) -> Descriptor:
    """The descriptor of bool[q_len, kv_len]; bounds need at most 4 intervals in a row."""
    q_len, kv_len = visible.shape
    rows, columns = -(-q_len // block_m), -(-kv_len // block_n)
    padded = np.zeros((rows * block_m, columns * block_n), bool)
    padded[:q_len, :kv_len] = visible
    kinds: dict[tuple[int, int], tuple[str, int]] = {}
    found: dict[bytes, int] = {}
    patterns: list[Bools] = []
    for i in range(rows):
        for j in range(columns):
            block = padded[i * block_m : (i + 1) * block_m, j * block_n : (j + 1) * block_n]
            real = block[: q_len - i * block_m]
            if real.all():
                kinds[i, j] = ("full", 0)
            elif real.any() and masking == "bounds":
                kinds[i, j] = ("bounds", 0)
            elif real.any():
                if block.tobytes() not in found:
                    found[block.tobytes()] = len(patterns)
                    patterns.append(block)
                kinds[i, j] = ("pattern", found[block.tobytes()])
    bits = np.array(patterns, bool).reshape(-1, block_m, block_n)
    transposed = {(j, i): kind for (i, j), kind in kinds.items()}
    read = np.zeros(columns * block_n, np.int32)
    read[:kv_len] = visible.any(axis=0)
    return Descriptor(
        block_m=block_m,
        block_n=block_n,
        q_len=q_len,
        kv_len=kv_len,
        by_query=_lists(kinds, rows),
        by_key=_lists(transposed, columns),
        patterns=pack_pattern(bits),
        key_patterns=pack_pattern(bits.transpose(0, 2, 1)),
        bounds=_bounds(padded) if masking == "bounds" else np.zeros((0, len(padded)), np.int32),
        key_is_read=read,
    )


def _lists(kinds: dict[tuple[int, int], tuple[str, int]], owners: int) -> BlockLists:
    listed: dict[str, list[list[tuple[int, int]]]] = {
        name: [[] for _ in range(owners)] for name in ("full", "bounds", "pattern")
    }
    for (owner, block), (name, pattern) in sorted(kinds.items()):
        entries = listed[name][owner]
        if name == "pattern":
            entries.append((block, pattern))
        elif entries and entries[-1][1] == block:
            entries[-1] = (entries[-1][0], block + 1)
        else:
            entries.append((block, block + 1))
    counts = np.bincount([owner for owner, _ in kinds], minlength=owners)
    flat = {name: _flat(entries) for name, entries in listed.items()}
    return BlockLists(
        *flat["full"],
        *flat["bounds"],
        *flat["pattern"],
        order=np.argsort(-counts, kind="stable").astype(np.int32),
    )


def _flat(entries: list[list[tuple[int, int]]]) -> tuple[Int32Array, Int32Array]:
    offsets = np.cumsum([0, *(len(e) for e in entries)], dtype=np.int32)
    flat = np.array([e for each in entries for e in each], np.int32).reshape(-1, 2)
    return offsets, flat


def _bounds(padded: Bools) -> Int32Array:
    edges = np.diff(np.pad(padded, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    starts = [np.flatnonzero(e == 1) for e in edges]
    stops = [np.flatnonzero(e == -1) for e in edges]
    most = max((len(s) for s in starts), default=0)
    assert most <= 4, "more than 4 intervals in a row"
    bounds = np.zeros((2 * (0, 1, 2, 4, 4)[most], len(padded)), np.int32)
    for row in range(len(padded)):
        bounds[0 : 2 * len(starts[row]) : 2, row] = starts[row]
        bounds[1 : 2 * len(starts[row]) : 2, row] = stops[row]
    return bounds


@dataclass(frozen=True, eq=False)
class DensePlan:
    """A plan of one dense mask in the caller's order."""

    visible: Bools
    masking: Masking = "pattern"
    device: str | torch.device = "cpu"
    prepared: dict[CallKind, Prepared] = field(default_factory=dict)
    ready: dict[Hashable, Callable[..., Any]] = field(default_factory=dict)
    _on_device: dict[tuple[int, int], DeviceDescriptor] = field(default_factory=dict)

    is_permuted = False
    grid_rows = None
    measured = ()
    variants = ()
    forward_shape = (128, 128)

    @property
    def q_len(self) -> int:
        return self.visible.shape[0]

    @property
    def kv_len(self) -> int:
        return self.visible.shape[1]

    @property
    def num_q_slots(self) -> int:
        return self.q_len

    @property
    def num_kv_slots(self) -> int:
        return self.kv_len

    def permute(self, x: Tensor, side: str = "query", *, dim: int = -2) -> Tensor:
        return x

    def unpermute(self, x: Tensor, side: str = "query", *, dim: int = -2) -> Tensor:
        return x

    def read_tokens(self, block_m: int, block_n: int) -> Tensor:
        raise NotImplementedError("slots are tokens")

    def device_descriptor(self, block_m: int, block_n: int) -> DeviceDescriptor:
        key = (block_m, block_n)
        if key not in self._on_device:
            descriptor = descriptor_of(self.visible, block_m, block_n, self.masking)
            self._on_device[key] = DeviceDescriptor.from_host(descriptor, self.device)
        return self._on_device[key]


# ------------------------------------------------------------------ masks as matrices
def full(q_len: int, kv_len: int) -> Bools:
    return np.ones((q_len, kv_len), bool)


def causal(q_len: int, kv_len: int) -> Bools:
    """The last query sees the last key."""
    return np.tri(q_len, kv_len, kv_len - q_len, dtype=bool)


def window(q_len: int, kv_len: int, size: int) -> Bools:
    return causal(q_len, kv_len) & ~np.tri(q_len, kv_len, kv_len - q_len - size, dtype=bool)


def documents(q_len: int, kv_len: int, length: int) -> Bools:
    rows, keys = np.arange(q_len)[:, None], np.arange(kv_len)
    return causal(q_len, kv_len) & (rows // length == keys // length)


def holes(q_len: int, kv_len: int, num_intervals: int, seed: int = 0) -> Bools:
    """Random rows of so many intervals; one in six sees nothing."""
    random = np.random.default_rng(seed)
    keys = np.arange(kv_len)
    cuts = np.sort(random.integers(0, kv_len + 1, (2 * num_intervals, q_len, 1)), axis=0)
    visible = np.zeros((q_len, kv_len), bool)
    for i in range(num_intervals):
        visible |= (keys >= cuts[2 * i]) & (keys < cuts[2 * i + 1])
    visible[random.random(q_len) < 1 / 6] = False
    return visible


def scattered(q_len: int, kv_len: int, density: float = 0.3, seed: int = 0) -> Bools:
    """Random pairs, in blocks that are empty, full or mixed."""
    random = np.random.default_rng(seed)
    visible = random.random((q_len, kv_len)) < density
    coarse = random.integers(0, 3, (-(-q_len // 32), -(-kv_len // 32))).repeat(32, 0).repeat(32, 1)
    coarse = coarse[:q_len, :kv_len]
    return (visible | (coarse == 2)) & (coarse != 0)


def padded_batch(q_len: int, kv_len: int, real: int) -> Bools:
    """The first `real` queries and keys see each other; the rest is padding."""
    visible = np.zeros((q_len, kv_len), bool)
    visible[:real, :real] = True
    return visible
