"""A descriptor's arrays as tensors of a device, and the launches made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cmask.runtime.derive.describe import PARTIAL_COST, work_of
from cmask.runtime.descriptor import BlockLists, Descriptor, Int32Array, pack_pattern
from cmask.runtime.kernels.config import KernelConfig
from cmask.runtime.kernels.launch import Launch
from cmask.runtime.kernels.parts import Lists, cut, whole
from cmask.runtime.kernels.schedule import heads_in_flight, work_items

SHORT_RUN = 4  # blocks; filling the pipeline for a shorter run costs more than a mask
_LEAST_PART = 16  # full blocks; a part costs its program the loading of keys and a partial sum


@dataclass(frozen=True, eq=False)
class Side:
    """The block lists of one side on the host, and its patterns."""

    lists: Lists
    patterns: Tensor


@dataclass(frozen=True, eq=False)
class Walk:
    """What programs walk, and in which order: the lists of a launch on the device."""

    offsets: Tensor
    counts: Tensor
    entries: Tensor
    items: Tensor
    owners: Tensor
    heavy: Tensor
    num_slots: int


@dataclass(frozen=True, eq=False)
class DeviceDescriptor:
    """One descriptor on one device.

    Portable kernels find short runs of full blocks among the patterns of owners that have some,
    with a pattern of ones: to the mask it is the same, and it spares them a loop.
    """

    host: Descriptor
    num_intervals: int
    has_patterns: bool
    has_unread_keys: bool
    read: tuple[int, int, bool]  # first_key, stop_key, has_holes of `Launch`
    has_empty_rows: bool
    bounds: Tensor
    key_is_read: Tensor
    _sides: dict[tuple[bool, int], Side] = field(default_factory=dict)
    _walks: dict[tuple[bool, bool, int, int], Walk] = field(default_factory=dict)

    @staticmethod
    def from_host(descriptor: Descriptor, device: str | torch.device) -> DeviceDescriptor:
        """The tensors of a descriptor on a device."""
        d = descriptor
        bounds = d.bounds
        if d.num_intervals == 0:
            bounds = np.zeros((2, d.num_q_blocks * d.block_m), np.int32)
        return DeviceDescriptor(
            host=d,
            num_intervals=d.num_intervals if len(d.by_query.bounds_runs) else 0,
            has_patterns=len(d.patterns) > 0,
            has_unread_keys=not d.every_key_is_read,
            read=_read_keys(d),
            has_empty_rows=not _every_row_sees(d),
            bounds=_tensor(bounds, device),
            key_is_read=_tensor(d.key_is_read, device),
        )

    def launch(
        self, config: KernelConfig, *, num_heads: int, heads_per_walk: int, bytes_per_walk: int
    ) -> Launch:
        """What the kernel of `config` takes for this many heads (batch included).

        bytes_per_walk: bytes of the tensors that `heads_per_walk` heads walk together.
        """
        by_key = config.direction == "dkdv"
        is_gluon = config.kernel == "gluon"
        group = heads_in_flight(num_heads, heads_per_walk, bytes_per_walk, config.l2_mib)
        walk = self._walk(by_key, is_gluon, num_heads, group)
        return Launch(
            offsets=walk.offsets,
            counts=walk.counts,
            entries=walk.entries,
            patterns=self.side(by_key, is_gluon).patterns,
            bounds=self.bounds,
            key_is_read=self.key_is_read,
            items=walk.items,
            owners=walk.owners,
            heavy=walk.heavy,
            tokens=self.key_is_read[:0],
            block_m=self.host.block_m,
            block_n=self.host.block_n,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            num_intervals=self.num_intervals,
            has_patterns=int(self.has_patterns),
            has_unread_keys=int(self.has_unread_keys),
            has_empty_rows=int(self.has_empty_rows),
            is_gluon=int(is_gluon),
            num_slots=walk.num_slots,
            first_key=self.read[0],
            stop_key=self.read[1],
            has_holes=int(self.read[2]),
        )

    def side(self, by_key: bool, is_gluon: bool) -> Side:
        """The lists of one side; Hopper kernels take short runs of full blocks as they are."""
        key = (by_key, is_gluon)
        if key not in self._sides:
            d, device = self.host, self.key_is_read.device
            lists = d.by_key if by_key else d.by_query
            patterns = d.key_patterns if by_key else d.patterns
            columns = d.block_m if by_key else d.block_n
            short_run = 0 if is_gluon else SHORT_RUN
            self._sides[key] = _side(lists, patterns, columns, short_run, device)
        return self._sides[key]

    def _walk(self, by_key: bool, is_gluon: bool, num_heads: int, group: int) -> Walk:
        key = (by_key, is_gluon, num_heads, group)
        if key not in self._walks:
            lists = self.side(by_key, is_gluon).lists
            parts = whole(lists)
            if by_key and is_gluon:
                share = lists.costs.sum() * num_heads / self._processors
                parts = cut(lists, max(share / 2, _LEAST_PART), PARTIAL_COST)
            walked = parts.lists
            items = work_items(walked.costs, walked.order, num_heads, group, self._processors)
            device = self.key_is_read.device
            self._walks[key] = Walk(
                offsets=_tensor(walked.offsets, device),
                counts=_tensor(walked.counts, device),
                entries=_tensor(np.concatenate([walked.entries, [(0, 0)]]), device),
                items=_tensor(items, device),
                owners=_tensor(parts.owners, device),
                heavy=_tensor(parts.heavy, device),
                num_slots=parts.num_slots,
            )
        return self._walks[key]

    @cached_property
    def _processors(self) -> int:
        device = self.key_is_read.device
        if device.type != "cuda":
            return 1
        return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _side(
    lists: BlockLists,
    patterns: Int32Array,
    columns: int,
    short_run: int,
    device: str | torch.device,
) -> Side:
    """The lists of one side as offsets and entries."""
    owners = len(lists.order)
    full_owner = np.repeat(np.arange(owners), np.diff(lists.full_offsets))
    full, pattern = lists.full_runs, lists.pattern_blocks
    pattern_owner = np.repeat(np.arange(owners), np.diff(lists.pattern_offsets))
    bounds_owner = np.repeat(np.arange(owners), np.diff(lists.bounds_offsets))
    bounds = lists.bounds_runs

    has_patterns = np.diff(lists.pattern_offsets) > 0
    is_short = (full[:, 1] - full[:, 0] < short_run) & has_patterns[full_owner]
    if is_short.any():
        patterns = np.concatenate([patterns, _all_ones(patterns, columns)])
        lengths = (full[:, 1] - full[:, 0])[is_short]
        index = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        blocks = np.repeat(full[is_short, 0], lengths) + index
        ones = np.full(len(blocks), len(patterns) - 1)
        pattern = np.concatenate([pattern, np.stack([blocks, ones], axis=1)])
        pattern_owner = np.concatenate([pattern_owner, np.repeat(full_owner[is_short], lengths)])
        by_block = np.lexsort((pattern[:, 0], pattern_owner))
        pattern, pattern_owner = pattern[by_block], pattern_owner[by_block]
        full, full_owner = full[~is_short], full_owner[~is_short]
    entries = [full.reshape(-1, 2), bounds.reshape(-1, 2), pattern.reshape(-1, 2)]
    starts = np.cumsum([0, len(full), len(bounds)])
    offsets = np.stack(
        [
            start + np.searchsorted(owner, np.arange(owners + 1))
            for start, owner in zip(starts, (full_owner, bounds_owner, pattern_owner), strict=True)
        ]
    )
    counts = [
        np.bincount(owner, runs[:, 1] - runs[:, 0], owners)
        for owner, runs in ((full_owner, full), (bounds_owner, bounds))
    ]
    return Side(
        Lists(
            offsets.astype(np.int32),
            np.stack(counts).astype(np.int32),
            np.concatenate(entries).astype(np.int32),
            work_of(lists),
            lists.order,
        ),
        _tensor(patterns if len(patterns) else np.zeros((1, 1, 4)), device),
    )


def _all_ones(patterns: Int32Array, columns: int) -> Int32Array:
    return pack_pattern(np.ones((1, patterns.shape[1], columns), bool))


def _read_keys(d: Descriptor) -> tuple[int, int, bool]:
    """Between which keys all that are read lie; whether a walked block has others between them."""
    read = d.key_is_read[: d.kv_len] != 0
    keys = np.flatnonzero(read)
    if not len(keys):
        return 0, d.kv_len, False
    first, stop = int(keys[0]), int(keys[-1]) + 1
    lists = d.by_key
    walked = np.diff(lists.full_offsets) + np.diff(lists.bounds_offsets)
    walked += np.diff(lists.pattern_offsets)
    walks = np.repeat(walked > 0, d.block_n)[: d.kv_len]
    return first, stop, bool((walks & ~read)[first:stop].any())


def _every_row_sees(d: Descriptor) -> bool:
    """Whether each query of `q_len` sees some key."""
    lists = d.by_query
    sees = np.zeros((d.num_q_blocks, d.block_m), bool)
    sees[np.diff(lists.full_offsets) > 0] = True
    if d.num_intervals:
        stops, starts = d.bounds[1::2], d.bounds[0::2]
        sees |= (stops > starts).any(axis=0).reshape(sees.shape)
    owner = np.repeat(np.arange(d.num_q_blocks), np.diff(lists.pattern_offsets))
    np.logical_or.at(sees, owner, (d.patterns != 0).any(axis=2)[lists.pattern_blocks[:, 1]])
    return bool(sees.reshape(-1)[: d.q_len].all())


def _tensor(array: NDArray[np.generic], device: str | torch.device) -> Tensor:
    if not array.size:  # numpy's would have strides of 0, which torch.export cannot save
        return torch.empty(array.shape, dtype=torch.int32, device=device)
    return torch.from_numpy(np.ascontiguousarray(array, np.int32)).to(device)
