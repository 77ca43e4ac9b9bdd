"""What the host knows of a binding, as one array that is copied to the device.

All columns are int64[stride], an entry per slot; behind them stand the clauses and their limits:

    length          tokens; 0 where the length is a tensor, or the instance is absent
    constant        where it stands in `pos`, but for the terms
    terms           index and factor of each term, see `places.py`
    levels          its running number of each level, in each scope, that a test compares
    clauses         [clauses, 8]: scope, regions of its queries, of its keys (a bit each), its
                    first limit, the first of them that is of a level, the one behind the last
    limits          [limits, 16]: the coordinate, then low and high end
    an end          [5]: coordinate, modulus or 0, divisor, scale, offset; -1 and an offset of
                    ±2^40 where it is open
    a coordinate    0 `pos`, 1 `offset`, 2 + i the i-th level, -1 none
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cmask.runtime.closed_form import Clause, ClosedForm, End, Limit, Region, Test
from cmask.runtime.derive.clauses import FAR, number
from cmask.runtime.derive.layout import Layout, Segment, lay_out
from cmask.runtime.derive.places import place_all
from cmask.runtime.derive.sizes import BindError, walk
from cmask.runtime.derive.tokens import WHOLE
from cmask.runtime.expressions import Expr, Value, names_in
from cmask.runtime.on_device.places import MAX_TERMS, Placer
from cmask.runtime.on_device.slots import Slots
from cmask.runtime.variants import has_heads

Int64Array = NDArray[np.int64]
_CLAUSE, _LIMIT = 8, 16  # numbers of each
_MAX_REGIONS = 62  # bits
_OPEN = (-1, 0, 1, 1)
_LEVEL = 2  # coordinates from here on are levels


def check(form: ClosedForm) -> None:
    """Raise `BindError` if the mask's lengths cannot be bound on the device; says why."""
    for item in walk(form.layout):
        if isinstance(item, Region) and item.axes:
            raise _refusal(form, f"`{item.name}` is a grid")
        if isinstance(item, Region) and item.order.kind not in ("raster", "auto"):
            raise _refusal(form, f"`{item.name}` has a token order of its own")
    if has_heads(form):
        raise _refusal(form, "it has rules for some heads")
    if form.tables:
        raise _refusal(form, f"it has a table, `{form.tables[0].name}`")
    for clause in form.clauses:
        for test in clause.tests:
            if not isinstance(test, Limit) or test.modulus is not None:
                raise _refusal(form, f"`{form.rule_texts[clause.rule]}` is no row interval")
    if sum(isinstance(item, Region) for item in walk(form.layout)) > _MAX_REGIONS:
        raise _refusal(form, f"it has more than {_MAX_REGIONS} regions")


def _refusal(form: ClosedForm, reason: str) -> BindError:
    return BindError(f"lengths of `{form.name}` cannot be bound on the device: {reason}; use bind")


@dataclass(frozen=True, eq=False)
class TableShape:
    """Where everything stands in the table of a mask.

    stride  entries of a column: one more than there are slots, and a multiple of 16
    scopes  the scopes of clauses
    levels  (level, scope): what tests compare
    """

    form: ClosedForm
    slots: Slots
    stride: int
    scopes: tuple[str, ...]
    levels: tuple[tuple[str, str], ...]

    @staticmethod
    def of(form: ClosedForm, slots: Slots) -> TableShape:
        """The shape for these slots."""
        scopes = tuple(dict.fromkeys(clause.scope or WHOLE for clause in form.clauses))
        levels = dict.fromkeys(
            (name, clause.scope or WHOLE)
            for clause in form.clauses
            for test in clause.tests
            for name in _coordinates(test)
            if name not in ("pos", "offset")
        )
        return TableShape(form, slots, -(-(slots.count + 1) // 16) * 16, scopes, tuple(levels))

    @property
    def sections(self) -> dict[str, tuple[int, int]]:
        """Name -> [first, stop) in the table."""
        num_limits = sum(len(clause.tests) for clause in self.form.clauses)
        lengths = {
            "length": self.stride,
            "constant": self.stride,
            "terms": 2 * MAX_TERMS * self.stride,
            "levels": max(1, len(self.levels)) * self.stride,
            "clauses": _CLAUSE * max(2, len(self.form.clauses)),
            "limits": _LIMIT * max(1, num_limits),
        }
        stops = np.cumsum(list(lengths.values())).tolist()
        return {
            name: (stop - length, stop)
            for (name, length), stop in zip(lengths.items(), stops, strict=True)
        }


def _coordinates(test: Test) -> list[str]:
    assert isinstance(test, Limit), "checked"
    ends = [end.coordinate for end in (test.low, test.high) if end is not None]
    return [name for name in (test.coordinate, *ends) if name is not None]


@dataclass(frozen=True, eq=False)
class Table:
    """The array, and how many instances of each outermost starred item it has."""

    array: Int64Array
    outermost: Mapping[str, int]


def make_table(shape: TableShape, names: Mapping[str, Value], on_device: Set[str]) -> Table:
    """The table of these values.

    on_device: sizes whose values in `names` only tell how many there are.
    Raises `BindError` where sizes are missing, do not fit, or exceed the room for instances.
    """
    _check_what_depends(shape.form, on_device)
    layout = lay_out(shape.form, names)
    place_all(layout, names)
    array = np.zeros(list(shape.sections.values())[-1][1], np.int64)
    parts = {name: array[first:stop] for name, (first, stop) in shape.sections.items()}
    terms, levels = (parts[name].reshape(-1, shape.stride) for name in ("terms", "levels"))
    slot_of = {id(segment): _slot(shape.slots, segment) for segment in layout.segments}
    placer = Placer(layout, names, shape.slots, slot_of)
    outermost: dict[str, int] = {}
    for segment in layout.segments:
        slot, region = slot_of[id(segment)], segment.region
        if region.name not in on_device or region.size is not None:
            parts["length"][slot] = segment.length
        if segment.indices:
            most = outermost.get(region.name, 0)
            outermost[region.name] = max(most, segment.indices[0] + 1)
        place = placer.place(segment)
        if len(place.terms) > MAX_TERMS:
            raise BindError(f"`{region.name}` is placed by more than {MAX_TERMS} lengths")
        parts["constant"][slot] = place.constant
        for i, ((kind, at), factor) in enumerate(place.terms.items()):
            terms[2 * i : 2 * i + 2, slot] = kind * shape.stride + at, factor
        for i, (level, scope) in enumerate(shape.levels):
            levels[i, slot] = _number(layout, segment, level, scope)
    _write_clauses(shape, names, parts["clauses"], parts["limits"])
    return Table(array, outermost)


def _slot(slots: Slots, segment: Segment) -> int:
    try:
        return slots.lattices[segment.region.name].slot(segment.indices)
    except IndexError:
        counts = slots.lattices[segment.region.name].counts
        raise BindError(
            f"instance {list(segment.indices)} of `{segment.region.name}` exceeds the plan's room "
            f"for {list(counts)}: plan(instances=...)"
        ) from None


def _number(layout: Layout, segment: Segment, level: str, scope: str) -> int:
    """The running number of the instance of a level in a scope, as `Tokens` counts it."""
    if level not in segment.levels:
        return 0
    counter = segment.levels[level]
    instance = layout.instances[scope][segment.groups.get(scope, 0)]
    return segment.numbers[counter] - instance.counts.get(counter, 0)


def _check_what_depends(form: ClosedForm, on_device: Set[str]) -> None:
    """Only the lengths themselves may be on the device, nothing that is computed of them."""
    for item in walk(form.layout):
        if isinstance(item, Region):
            position = None if item.placement is None else item.placement.position
            _check_names(f"`{item.name}`", (item.size, position), on_device)
    for clause in form.clauses:
        for test in clause.tests:
            assert isinstance(test, Limit), "checked"
            for end in (test.low, test.high):
                if end is not None:
                    numbers = (end.modulus, end.divisor, end.scale, end.offset)
                    _check_names(f"`{form.rule_texts[clause.rule]}`", numbers, on_device)


def _check_names(what: str, parts: tuple[Expr | None, ...], on_device: Set[str]) -> None:
    for part in parts:
        for name in () if part is None else sorted(names_in(part) & on_device):
            raise BindError(f"{what} depends on `{name}`, which must be a number, not a tensor")


def _write_clauses(
    shape: TableShape, names: Mapping[str, Value], clauses: Int64Array, limits: Int64Array
) -> None:
    at = 0
    for i, clause in enumerate(shape.form.clauses):
        scope = clause.scope or WHOLE
        masks = [_bits(shape.slots, regions) for regions in (clause.queries, clause.keys)]
        lines = sorted(_limit_numbers(shape, clause, test, names) for test in clause.tests)
        first_level = at + sum(kind < _LEVEL for kind, *_ in lines)
        numbers = (shape.scopes.index(scope), *masks, at, first_level, at + len(lines))
        clauses[i * _CLAUSE : i * _CLAUSE + 6] = numbers
        for line in lines:
            limits[at * _LIMIT : at * _LIMIT + len(line)] = line
            at += 1


def _bits(slots: Slots, regions: tuple[str, ...]) -> int:
    return sum(1 << i for i, region in enumerate(slots.regions) if region.name in regions)


def _limit_numbers(
    shape: TableShape, clause: Clause, test: Test, names: Mapping[str, Value]
) -> list[int]:
    assert isinstance(test, Limit), "checked"
    scope = clause.scope or WHOLE
    low = _end_numbers(shape, test.low, scope, names, -FAR)
    high = _end_numbers(shape, test.high, scope, names, FAR)
    return [_kind(shape, test.coordinate, scope), *low, *high]


def _kind(shape: TableShape, coordinate: str, scope: str) -> int:
    fixed = {"pos": 0, "offset": 1}
    if coordinate in fixed:
        return fixed[coordinate]
    return _LEVEL + shape.levels.index((coordinate, scope))


def _end_numbers(
    shape: TableShape, end: End | None, scope: str, names: Mapping[str, Value], far: int
) -> tuple[int, ...]:
    if end is None:
        return (*_OPEN, far)
    offset = number(end.offset, names)
    if abs(offset) >= FAR:
        return (*_OPEN, FAR if offset > 0 else -FAR)
    if end.coordinate is None:
        return (*_OPEN, int(offset))
    modulus = 0 if end.modulus is None else _divisor(end.modulus, names)
    divisor, scale = _divisor(end.divisor, names), _divisor(end.scale, names)
    return (_kind(shape, end.coordinate, scope), modulus, divisor, scale, int(offset))


def _divisor(expression: Expr, names: Mapping[str, Value]) -> int:
    found = number(expression, names)
    if not 1 <= found < FAR:
        raise BindError(f"a coordinate is divided by {found}: 1 to {FAR - 1:,} can be")
    return int(found)
