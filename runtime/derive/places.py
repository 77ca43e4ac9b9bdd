"""Where every region instance stands in `pos`: `at`, `from` and `align`."""

from __future__ import annotations

from collections.abc import Mapping

from cmask.runtime.derive.layout import Instance, Layout, Segment
from cmask.runtime.derive.sizes import BindError, UnboundError
from cmask.runtime.derive.values import value_in
from cmask.runtime.expressions import (
    Call,
    Entry,
    Expr,
    ExpressionError,
    Number,
    Place,
    Value,
    apply,
)

MAX_PLACE = 1 << 39  # half of what a window takes for infinitely far


def place_all(layout: Layout, names: Mapping[str, Value]) -> None:
    """Fill in `pos_start`, `pos_step` and `pos_table` of each segment."""
    placer = _Placer(layout, names)
    for segment in layout.segments:
        placer.place(segment)


class _Placer:
    """Places segments, each after those that it is placed by."""

    def __init__(self, layout: Layout, names: Mapping[str, Value]) -> None:
        self.layout, self.names = layout, names
        self.done: dict[int, bool] = {}  # by segment; False while it is being placed
        self.last_keys: dict[tuple[str, int], Segment] = {}
        for segment in layout.segments:
            if segment.k_start >= 0 and segment.length:
                self.last_keys.update(dict.fromkeys(segment.groups.items(), segment))

    def place(self, segment: Segment) -> None:
        if id(segment) in self.done:
            if not self.done[id(segment)]:
                raise BindError(f"`{segment.region.name}` is placed by itself, in a circle")
            return
        self.done[id(segment)] = False
        placement = segment.region.placement
        group, number = list(segment.groups.items())[-1]
        instance = self.layout.instances[group][number]
        if placement is None:
            segment.pos_start = segment.key_before
        elif placement.kind == "align_end":
            last = self.last_key_pos(group, number)
            segment.pos_start = last - segment.length + 1
        else:
            position = placement.position
            segment.pos_step = 0 if placement.kind == "at" else 1
            if isinstance(position, Entry) and position.index == "row":
                segment.pos_table = position.table
                segment.pos_start = instance.key_start
            else:
                start = int(self.position(position, segment, instance))
                if abs(start) >= MAX_PLACE:
                    raise BindError(f"`{segment.region.name}` cannot stand at {start:,}")
                segment.pos_start = instance.key_start + start
        self.done[id(segment)] = True

    def last_key_pos(self, group: str, number: int) -> int:
        """`pos` of the last key token in a group instance."""
        last = self.last_keys.get((group, number))
        if last is None:
            return self.layout.instances[group][number].key_start - 1
        self.place(last)
        _check_one_place(last)
        return last.pos_start + last.pos_step * (last.length - 1)

    def position(self, expression: Expr, segment: Segment, instance: Instance) -> Number:
        """The value of a placement, relative to the segment's innermost group instance."""
        match expression:
            case Place(what=what, region=region):
                return self.region_place(what, region, instance)
            case Entry(table=table, index=index):
                if index not in segment.levels:
                    raise BindError(f"`{table}[{index}]` cannot be part of a larger expression")
                return self.entry(table, segment.numbers[segment.levels[index]])
            case Call(function=function, arguments=arguments):
                values = [self.position(a, segment, instance) for a in arguments]
                try:
                    value = apply(function, values)
                except ExpressionError as error:
                    raise BindError(str(error)) from None
            case _:
                value = value_in(expression, self.names, segment.indices, self.layout.stars)
        if not isinstance(value, int):
            raise BindError(f"`{segment.region.name}` cannot stand at {value}")
        return value

    def region_place(self, what: str, region: str, instance: Instance) -> int:
        """`start`, `end` or `len` of a region in a group instance."""
        segments = instance.segments.get(region, [])
        if what == "len":
            return sum(s.length for s in segments)
        if len(segments) != 1:
            raise BindError(f"`{what}({region})` needs one region `{region}` in the same group")
        target = segments[0]
        self.place(target)
        _check_one_place(target)
        start = target.pos_start - instance.key_start
        if what == "start":
            return start
        return start + (target.length if target.pos_step else min(1, target.length))

    def entry(self, table: str, index: int) -> int:
        """One entry of a table of levels."""
        if table not in self.names:
            raise UnboundError(f"table `{table}` has no value: bind({table}=[...])")
        values = self.names[table]
        if isinstance(values, (int, float)) or index >= len(values):
            raise BindError(f"table `{table}` needs an entry {index}, it has {values}")
        value = values[index]
        if not isinstance(value, int):
            raise BindError(f"table `{table}` must be flat")
        return value


def _check_one_place(segment: Segment) -> None:
    """What another region is placed by must not lie token by token."""
    if segment.pos_table is not None:
        raise BindError(
            f"`{segment.region.name}` lies where `{segment.pos_table}[row]` says, token by token: "
            "it has no start or end to place another region by"
        )
