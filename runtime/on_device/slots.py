"""A slot for each region instance that a plan has room for, in token order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cmask.runtime.closed_form import ClosedForm, Group, Item, Region
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.derive.tokens import WHOLE, Array

MAX_SLOTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Lattice:
    """Where the instances of an item stand: at first + sum of index * stride.

    counts, strides: of each star around it, outermost first, its own included.
    """

    first: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]

    def slots(self) -> Array:
        """int64[counts]: the slot of each instance."""
        slots = np.full(self.counts, self.first, np.int64)
        for axis, (count, stride) in enumerate(zip(self.counts, self.strides, strict=True)):
            shape = [count if i == axis else 1 for i in range(len(self.counts))]
            slots += (np.arange(count) * stride).reshape(shape)
        return slots

    def slot(self, indices: Sequence[int]) -> int:
        """The slot of one instance; raises IndexError if there is no room for it."""
        if any(i >= count for i, count in zip(indices, self.counts, strict=True)):
            raise IndexError
        return self.first + sum(i * s for i, s in zip(indices, self.strides, strict=True))


@dataclass(eq=False)
class Slots:
    """The slots of a layout at its capacity.

    regions         the regions; a slot's region is known by its place in this list
    lattices        of each region, by name
    region          int64[slots]
    first, stop     group -> int64[slots]: the slots of the group's instance around each slot
    innermost       region -> the group that it lies in
    """

    count: int = 0
    regions: list[Region] = field(default_factory=list)
    lattices: dict[str, Lattice] = field(default_factory=dict)
    region: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    first: dict[str, Array] = field(default_factory=dict)
    stop: dict[str, Array] = field(default_factory=dict)
    innermost: dict[str, str] = field(default_factory=dict)


def slots_at(form: ClosedForm, capacities: Mapping[str, int]) -> Slots:
    """The slots of a mask with room for so many instances of each starred item.

    capacities: starred region or group -> instances within one instance of what it lies in.
    """
    slots = Slots(count=sum(_width(item, capacities) for item in form.layout))
    if slots.count > MAX_SLOTS:
        raise BindError(f"room for {slots.count:,} region instances, at most {MAX_SLOTS:,}")
    slots.region = np.zeros(slots.count, np.int64)
    whole = Group(WHOLE, None, form.layout)
    _place(slots, whole, Lattice(0, (), ()), WHOLE, capacities)
    return slots


def _place(
    slots: Slots, item: Item, lattice: Lattice, group: str, capacities: Mapping[str, int]
) -> None:
    """Give the instances of an item their slots; lattice: where they stand."""
    if isinstance(item, Region):
        slots.lattices[item.name] = lattice
        slots.innermost[item.name] = group
        slots.region[lattice.slots()] = len(slots.regions)
        slots.regions.append(item)
        return
    width = sum(_width(inner, capacities) for inner in item.items)
    first = np.full(slots.count, -1, np.int64)
    for offset in range(width):
        first[lattice.slots() + offset] = lattice.slots()
    slots.first[item.name], slots.stop[item.name] = first, np.where(first < 0, -1, first + width)
    at = lattice.first
    for inner in item.items:
        counts, strides = lattice.counts, lattice.strides
        total = _width(inner, capacities)
        if inner.level is not None:
            count = capacities[inner.name]
            counts, strides = (*counts, count), (*strides, total // count)
        _place(slots, inner, Lattice(at, counts, strides), item.name, capacities)
        at += total


def _width(item: Item, capacities: Mapping[str, int]) -> int:
    """Slots of all instances of an item within one instance of what it lies in."""
    one = 1
    if isinstance(item, Group):
        one = sum(_width(inner, capacities) for inner in item.items)
    return math.prod((one, 1 if item.level is None else capacities[item.name]))
