"""A plan for the lengths of a case, to be bound on the device; whether it is the host's plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cmask.cli.bench.file_case import row_bounds
from cmask.runtime.closed_form import Group, Item, Region
from cmask.runtime.derive.bound import BoundMask
from cmask.runtime.derive.sizes import bindable_names, depth_of
from cmask.runtime.mask import Mask
from cmask.runtime.on_device.lists import CapacityDescriptor
from cmask.runtime.on_device.plan import DevicePlan
from cmask.runtime.on_device.sides import OneSide

_FULL, _PARTIAL = 1, 2


def plan_for(
    mask: Mask, bound: BoundMask, device: torch.device
) -> tuple[DevicePlan, dict[str, Tensor]]:
    """A plan with room for just what is bound, not bound yet, and the lengths for `bind_`.

    Raises `BindError` where the device cannot bind the mask.
    """
    stars = _stars(mask.form.layout)
    instances = _instances(stars, bound)
    lengths = {
        name: _lengths(name, tuple(instances[star] for star in around), bound)
        for name, (region, around) in stars.items()
        if region.size is None and not region.axes
    }
    fixed: dict[str, Any] = {
        name: bound.names[name]
        for name in bindable_names(mask.form)
        if name in bound.names and name not in lengths
    }
    tokens, intervals = (bound.q_len, bound.kv_len), _intervals(bound)
    plan = mask.plan(tokens, instances=instances, intervals=intervals, device=device, **fixed)
    return plan, {name: torch.from_numpy(x).to(device) for name, x in lengths.items()}


def _lengths(name: str, counts: tuple[int, ...], bound: BoundMask) -> NDArray[np.int32]:
    """Of a region's instances, 0 for those that are not there.

    Without the outermost star where the mask was given the same for all its instances: as a list,
    a length may not suit defaults of other sizes.
    """
    axes = max(len(counts) - 1, min(len(counts), depth_of(bound.names[name])))
    skip = len(counts) - axes
    lengths = np.zeros(counts[skip:], np.int32)
    for segment in bound.layout.segments:
        if segment.region.name == name:
            lengths[segment.indices[skip:]] = segment.length
    return lengths


def _stars(
    items: tuple[Item, ...], around: tuple[str, ...] = ()
) -> dict[str, tuple[Region, tuple[str, ...]]]:
    """Each region, and the starred items in which it lies, outermost first, itself included."""
    found: dict[str, tuple[Region, tuple[str, ...]]] = {}
    for item in items:
        inner = around if item.level is None else (*around, item.name)
        found |= _stars(item.items, inner) if isinstance(item, Group) else {}
        found |= {item.name: (item, inner)} if isinstance(item, Region) else {}
    return found


def _instances(
    stars: Mapping[str, tuple[Region, tuple[str, ...]]], bound: BoundMask
) -> dict[str, int]:
    """Starred item -> the most instances within one instance of what it lies in, at least 1."""
    most = {name: 1 for _, around in stars.values() for name in around}
    for segment in bound.layout.segments:
        _, around = stars[segment.region.name]
        for name, index in zip(around, segment.indices, strict=True):
            most[name] = max(most[name], index + 1)
    return most


def _intervals(bound: BoundMask) -> int:
    """The least room for intervals of a row that does; the largest that there is otherwise."""
    bounds = row_bounds(bound)
    needed = 4 if bounds is None else len(bounds)
    return next((room for room in (1, 2, 4) if room >= needed), 4)


def difference(plan: DevicePlan, bound: BoundMask) -> str:
    """What is not as the host has it, "" if nothing."""
    expected, found = row_bounds(bound), plan.bounds.cpu().numpy()
    rows = np.zeros_like(found)
    if expected is not None:
        rows[: 2 * len(expected), : bound.q_len] = expected.reshape(-1, bound.q_len)
    if expected is None or not np.array_equal(rows, found):
        return "the rows are not those of the host's plan"
    made = plan.descriptors or (plan.device_descriptor(*plan.forward_shape),)
    is_same = all(_is_hosts(blocks, bound) for blocks in made)
    return "" if is_same else "the blocks are not those of the host's plan"


def _is_hosts(blocks: CapacityDescriptor, bound: BoundMask) -> bool:
    """Whether lists of one block shape are the host's."""
    lists = bound.descriptor(blocks.host.block_m, blocks.host.block_n, "bounds").by_query
    owners, others = blocks.by_query.num_owners, blocks.by_key.num_owners
    kinds = np.zeros((owners, others + 1), np.int32)
    _add(kinds, lists.full_offsets, lists.full_runs, _FULL)
    _add(kinds, lists.bounds_offsets, lists.bounds_runs, _PARTIAL)
    kinds = kinds.cumsum(1)[:, :-1]
    sides = [(blocks.by_query, kinds)]
    if blocks.has_lists_by_key:
        sides.append((blocks.by_key, kinds.T))
    return all(np.array_equal(_kinds(side, want.shape), want) for side, want in sides)


def _kinds(side: OneSide, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """int32[owners, others]: whether a block is full, partial, or 0 for empty."""
    kinds = np.zeros((shape[0], shape[1] + 1), np.int32)
    offsets, entries = side.offsets.cpu().numpy(), side.entries.cpu().numpy()
    for kind, ends in zip((_FULL, _PARTIAL), offsets[:2], strict=True):
        _add(kinds, ends, entries[ends[0] : ends[-1]], kind)
    return kinds.cumsum(1, dtype=np.int32)[:, :-1]


def _add(
    kinds: NDArray[np.int32], offsets: NDArray[np.int32], runs: NDArray[np.int32], kind: int
) -> None:
    """Where runs of a kind begin and end in the row of their owner; sums of it are the kinds."""
    owners = np.repeat(np.arange(len(kinds)), np.diff(offsets))
    np.add.at(kinds, (owners, runs[:, 0]), kind)
    np.add.at(kinds, (owners, runs[:, 1]), -kind)
