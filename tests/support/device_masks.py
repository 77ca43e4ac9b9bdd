"""Random masks whose lengths can be bound on the device, and what a device plan holds of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from cmask.compiler import ir
from cmask.runtime.closed_form import ClosedForm, Order, Region
from cmask.runtime.derive.bound import BoundMask
from cmask.runtime.descriptor import BlockLists
from cmask.runtime.expressions import Call, Expr, Literal, Place, Ref
from cmask.runtime.on_device.lists import CapacityDescriptor
from cmask.runtime.on_device.plan import DevicePlan
from cmask.runtime.on_device.room import Room, starred
from cmask.runtime.on_device.sides import OneSide
from support.attending import DEVICE
from support.strategies import BoundCase, _Drawing, _Sides

Runs = list[list[tuple[int, int]]]  # of each owner
FULL, PARTIAL = 1, 2


@st.composite
def bindable_masks(draw: st.DrawFn) -> BoundCase:
    """Masks of all constructs but grids, tables, token orders and residues."""
    return _Bindable(lambda strategy: draw(strategy)).case()


class _Bindable(_Drawing):
    """One such mask while it is drawn."""

    def axes(self, stars: tuple[str, ...]) -> tuple[Any, ...]:
        return ()

    def order(self, num_axes: int) -> Order:
        return Order()

    def position(self, region: Region, before: Sequence[Any]) -> Expr:
        beside = [r for r in before if isinstance(r, Region)]
        single = [r.name for r in beside if not r.level and r.side != "query"]
        single = [r for r in single if not self._is_aligned(beside, r)]
        choices = ["number", "param", "size"]
        choices += ["place", "place", "place + 1"] if single else []
        choices += ["len"] if beside else []
        match self.pick(choices):
            case "size" if known := self.known_sizes(self.stars[region.name]):
                return Ref(self.pick(known))
            case "param":
                return Ref(self.param(self.pick((0, 1, 5))))
            case "place":
                return Place(self.pick(("start", "end")), self.pick(single))
            case "place + 1":
                return Call("+", (Place("end", self.pick(single)), Literal(1)))
            case "len":
                return Place("len", self.pick(beside).name)
        return Literal(self.pick((-2, 0, 0, 1, 3, 8)))

    def _is_aligned(self, beside: Sequence[Region], name: str) -> bool:
        (region,) = (r for r in beside if r.name == name)
        return region.placement is not None and region.placement.kind == "align_end"

    def rule(self) -> ir.Rule:
        """Often of a starred region with itself, where levels tell instances apart."""
        own = [r for r in self.regions if r.side == "both" and self.levels(r.name)]
        if not own or self.chance(3):
            return super().rule()
        region = self.pick(own)
        scope = self.pick((None, *(g.name for g in self.parents[region.name])))
        pattern = self.pattern(_Sides(self, scope, [region], [region]), 2)
        return ir.Rule(scope, (region.name,), (region.name,), pattern)

    def pattern(self, sides: _Sides, depth: int) -> ir.Pattern:
        if depth and self.chance(2):
            join = self.pick((ir.And, ir.And, ir.Or))
            return join(tuple(self.pattern(sides, depth - 1) for _ in range(2)))
        kinds = ("all", "same", "before", "upto", "upto", "window", "window", "first")
        return self.simple(self.pick(kinds), sides)

    def coordinate(self, sides: _Sides) -> ir.Coordinate:
        found = sides.coordinates()
        name = self.pick((*found, *(n for n in found if n not in ("pos", "offset"))))
        if self.chance(3):
            return ir.Coordinate(name, divisor=Literal(self.pick((1, 2, 3, 5))))
        return ir.Coordinate(name)


def device_plan(
    form: ClosedForm, tokens: tuple[int, int], instances: int, **room: int
) -> DevicePlan:
    """A plan with room for so many instances of each starred item."""
    each = {item.name: instances for item in starred(form.layout)}
    return DevicePlan(form, {}, Room(tokens, each, **room), DEVICE)


def check_rows(plan: DevicePlan, bound: BoundMask) -> None:
    """The plan's row bounds are the host's intervals, and rows without a token have none."""
    found = bound.row_intervals()
    assert found is not None
    expected = np.zeros_like(plan.bounds.cpu().numpy())
    index = np.arange(len(found.rows)) - found.offsets[found.rows]
    expected[2 * index, found.rows] = found.starts
    expected[2 * index + 1, found.rows] = found.stops
    np.testing.assert_array_equal(plan.bounds.cpu().numpy(), expected)


def check_lists(plan: DevicePlan, bound: BoundMask, block_m: int, block_n: int) -> None:
    """The plan's lists are the host's, but no block with rows behind the last token is full."""
    expected = bound.descriptor(block_m, block_n, "bounds")
    found = plan.device_descriptor(block_m, block_n)
    assert isinstance(found, CapacityDescriptor)
    if not found.has_lists_by_key:  # those that there are must be up to date
        found.fill_by_key()
    kinds = np.zeros((found.by_query.num_owners, found.by_key.num_owners), np.int8)
    for kind, runs in enumerate(_runs_of(expected.by_query), FULL):
        for owner, first, stop in (
            (i, *run) for i, runs_here in enumerate(runs) for run in runs_here
        ):
            kinds[owner, first:stop] = kind
    if bound.q_len % block_m and plan.q_len > bound.q_len:
        last = kinds[bound.q_len // block_m]
        last[last == FULL] = PARTIAL
    for side, blocks in ((found.by_query, kinds), (found.by_key, kinds.T)):
        for i, kind in enumerate((FULL, PARTIAL)):
            assert _runs_on_device(side, i) == [_runs_where(row == kind) for row in blocks]
            assert side.counts[i].tolist() == (blocks == kind).sum(1).tolist()
        ends = side.offsets[2].tolist()
        assert ends == [2 * side.capacity] * (side.num_owners + 1)  # no patterns
    read = np.zeros(len(found.key_is_read), np.int32)
    read[: len(expected.key_is_read)] = expected.key_is_read
    np.testing.assert_array_equal(found.key_is_read.cpu().numpy(), read)


def _runs_of(lists: BlockLists) -> tuple[Runs, Runs]:
    """Full and partial runs of each owner."""
    pairs = (
        (lists.full_offsets, lists.full_runs),
        (lists.bounds_offsets, lists.bounds_runs),
    )
    full, partial = (
        [[(int(a), int(b)) for a, b in runs[i:j]] for i, j in pairwise(at)] for at, runs in pairs
    )
    return full, partial


def _runs_where(holds: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.pad(holds, 1).astype(np.int8))).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _runs_on_device(side: OneSide, kind: int) -> Runs:
    offsets, entries = side.offsets[kind].tolist(), side.entries.tolist()
    pairs = pairwise(offsets)
    return [[(a, b) for a, b in entries[i:j]] for i, j in pairs]
