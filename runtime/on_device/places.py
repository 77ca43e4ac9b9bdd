"""`at`, `from` and `align` as sums of lengths, so that the device can follow them.

The `pos` of a region instance's first token is a constant and some terms, each a factor times a
value that the device has of every slot: its length, min(1, length), or the keys before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cmask.runtime.closed_form import Region
from cmask.runtime.derive.layout import Instance, Layout, Segment
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.derive.values import value_in
from cmask.runtime.expressions import Call, Expr, Place, Value
from cmask.runtime.on_device.slots import Slots

LENGTH, ONE, BEFORE = range(3)  # the values of a slot
MAX_TERMS = 6


@dataclass(frozen=True)
class Sum:
    """constant + sum of factor * value; terms: (value, slot) -> factor, none of them 0."""

    constant: int = 0
    terms: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def plus(self, other: Sum, factor: int = 1) -> Sum:
        """The sum of both, the other one multiplied."""
        terms = dict(self.terms)
        for key, each in other.terms.items():
            terms[key] = terms.get(key, 0) + factor * each
        terms = {key: each for key, each in terms.items() if each}
        return Sum(self.constant + factor * other.constant, terms)


def value(kind: int, slot: int) -> Sum:
    """One value of a slot."""
    return Sum(0, {(kind, slot): 1})


@dataclass(frozen=True, eq=False)
class Placer:
    """The places of the region instances of one layout.

    slot_of: id of a segment -> its slot.
    """

    layout: Layout
    names: Mapping[str, Value]
    slots: Slots
    slot_of: Mapping[int, int]

    def place(self, segment: Segment) -> Sum:
        """`pos` of its first token along the whole sequence."""
        slot, region = self.slot_of[id(segment)], segment.region
        group = self.slots.innermost[region.name]
        if region.placement is None:
            return value(BEFORE, slot)
        if region.placement.kind == "align_end":
            self._check_that_keys_count_up(region, group)
            stop = int(self.slots.stop[group][slot])
            return value(BEFORE, stop).plus(value(LENGTH, slot), -1)
        instance = self.layout.instances[group][segment.groups[group]]
        at = self._position(region.placement.position, segment, instance)
        return self._base(slot, group).plus(at)

    def _base(self, slot: int, group: str) -> Sum:
        return value(BEFORE, int(self.slots.first[group][slot]))

    def _check_that_keys_count_up(self, region: Region, group: str) -> None:
        first, stop = self.slots.first[group], self.slots.stop[group]
        at = self.slots.lattices[region.name].first
        inside = {int(r) for r in self.slots.region[first[at] : stop[at]]}
        keys = [self.slots.regions[r] for r in inside if self.slots.regions[r].side != "query"]
        if any(key.placement is not None for key in keys):
            raise BindError(f"`{region.name} align end` needs keys without a place of their own")

    def _position(self, expression: Expr, segment: Segment, instance: Instance) -> Sum:
        """A placement, relative to the segment's innermost group instance."""
        match expression:
            case Place(what=what, region=region):
                return self._region(what, instance.segments.get(region, []))
            case Call(function="+", arguments=(left, right)):
                return self._position(left, segment, instance).plus(
                    self._position(right, segment, instance)
                )
            case Call(function="-", arguments=(left, right)):
                return self._position(left, segment, instance).plus(
                    self._position(right, segment, instance), -1
                )
            case Call(arguments=arguments) if any(_has_place(a) for a in arguments):
                raise BindError(
                    f"`{segment.region.name}` is placed by more than sums of lengths: "
                    "lengths for it cannot be bound on the device"
                )
        constant = value_in(expression, self.names, segment.indices, self.layout.stars)
        if not isinstance(constant, int):
            raise BindError(f"`{segment.region.name}` cannot stand at {constant}")
        return Sum(constant)

    def _region(self, what: str, segments: list[Segment]) -> Sum:
        """`start`, `end` or `len` of a region in a group instance; the host has checked which."""
        if what == "len":
            total = Sum()
            for segment in segments:
                total = total.plus(value(LENGTH, self.slot_of[id(segment)]))
            return total
        (target,) = segments
        slot = self.slot_of[id(target)]
        group = self.slots.innermost[target.region.name]
        start = self.place(target).plus(self._base(slot, group), -1)
        if what == "start":
            return start
        return start.plus(value(LENGTH if step_of(target.region) else ONE, slot))


def step_of(region: Region) -> int:
    """How far `pos` goes from token to token."""
    return int(region.placement is None or region.placement.kind != "at")


def _has_place(expression: Expr) -> bool:
    match expression:
        case Place():
            return True
        case Call(arguments=arguments):
            return any(map(_has_place, arguments))
    return False
