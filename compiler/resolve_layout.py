"""Regions, groups and their clauses as written -> the layout of the tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cmask.compiler.declared import Declared, DeclaredRegion, level_of
from cmask.compiler.faults import Faults, counted
from cmask.compiler.resolve_values import Values
from cmask.grammar import syntax
from cmask.runtime.closed_form import Axis, Group, Item, Order, Placement, Region
from cmask.runtime.expressions import ZERO, Call, Expr, Literal, Place


def resolve_layout(mask: syntax.Mask, declared: Declared, faults: Faults) -> tuple[Item, ...]:
    """The layout; what is wrong with a region is reported and left out."""
    resolver = _Resolver(declared, faults)
    layout = resolver.layout(mask.items)
    resolver.check_placements(layout)
    return layout


def regions_of(items: Sequence[Item]) -> Iterator[Region]:
    """Every region of a layout, in order."""
    for item in items:
        if isinstance(item, Region):
            yield item
        else:
            yield from regions_of(item.items)


@dataclass(frozen=True, slots=True)
class _Resolver:
    declared: Declared
    faults: Faults

    def values(self, names: set[str], around: DeclaredRegion | None = None) -> Values:
        return Values(self.declared, self.faults, names, around)

    def layout(self, items: Sequence[syntax.Item]) -> tuple[Item, ...]:
        found: list[Item] = []
        for item in items:
            if isinstance(item, syntax.Region):
                found.append(self.region(self.declared.regions[item.name.text]))
            elif isinstance(item, syntax.Group):
                found.append(Group(item.name.text, level_of(item), self.layout(item.items)))
        return tuple(found)

    def region(self, declared: DeclaredRegion) -> Region:
        node = declared.node
        values = self.values({"seq", *self.declared.params, *self.declared.sizes})
        size = values.size(node.axes[0]) if declared.has_fixed_size else None
        axes = tuple(
            Axis(name) if name is not None else Axis(None, values.size(expression))
            for name, expression in zip(declared.axes, node.axes, strict=False)
        )
        region = Region(node.name.text, node.side, declared.level, axes, size)
        seen: set[str] = set()
        for clause in node.clauses:
            kind = "placement" if clause.word in ("at", "from", "align") else clause.word
            if kind in seen:
                self.faults.error(
                    "repeated-clause",
                    f"`{node.name.text}` has a second {kind}",
                    clause.span,
                    "one is enough",
                )
            seen.add(kind)
            region = self.clause(region, clause, declared)
        return region

    def clause(self, region: Region, clause: syntax.Clause, declared: DeclaredRegion) -> Region:
        match clause.word:
            case "at" | "from":
                names = {*self.declared.params, *self.declared.sizes}
                position = self.position(clause.value, self.values(names, declared))
                return replace(region, placement=Placement(clause.word, position))
            case "align":
                return self.align(region, clause)
            case "order":
                return self.order(region, clause)
        self.faults.not_yet(f"`{clause.word}`", clause.span)
        return region

    def position(self, node: syntax.Expression, values: Values) -> Expr:
        position = values.number(node)
        if isinstance(position, Literal) and math.isinf(position.value):
            self.faults.error(
                "infinite-place",
                "no token stands at infinity",
                node.span,
                "not a `pos`",
                "write a whole number",
            )
        return position

    def align(self, region: Region, clause: syntax.Clause) -> Region:
        match clause.value:
            case syntax.Reference(name="start"):
                return replace(region, placement=Placement("from", ZERO))
            case syntax.Reference(name="end") if region.side == "query":
                return replace(region, placement=Placement("align_end"))
            case syntax.Reference(name="end"):
                self.faults.error(
                    "align-needs-query",
                    f"the tokens of `{region.name}` are keys and stand where they stand",
                    clause.span,
                    "aligned to the last key",
                    f"write `query region {region.name} align end`",
                )
                return region
        self.faults.error(
            "bad-alignment",
            "queries are aligned to the start or to the end of the keys",
            clause.value.span,
            "neither",
            "write `align start` or `align end`",
        )
        return region

    def order(self, region: Region, clause: syntax.Clause) -> Region:
        match clause.value:
            case syntax.Reference(name="raster" | "auto" as kind):
                return replace(region, order=Order(kind))
            case syntax.Reference(name="role"):
                self.faults.not_yet("`order role`", clause.span)
                return region
            case syntax.Application(name=syntax.Name(text="tile" | "mod" as kind), arguments=sizes):
                needed = max(1, len(region.axes)) if kind == "tile" else 1
                return self.sized_order(region, kind, sizes, needed, clause)
        self.faults.error(
            "bad-order",
            "this is no token order",
            clause.value.span,
            "not an order",
            "write `order raster`, `order tile(8, 16)`, `order mod(n)` or `order auto`",
        )
        return region

    def sized_order(
        self,
        region: Region,
        kind: str,
        sizes: Sequence[syntax.Expression | syntax.Keyword],
        needed: int,
        clause: syntax.Clause,
    ) -> Region:
        """`tile(8, 16)` with a size per axis, or `mod(n)`."""
        values = tuple(map(self.values(set(self.declared.params)).number, sizes))
        example = f"write `order {kind}({', '.join(['8', '16', *['16'] * needed][:needed])})`"
        if len(sizes) != needed:
            message = (
                f"`{kind}` takes {counted(needed, 'size')} for `{region.name}`, not {len(sizes)}"
            )
            self.faults.error("bad-order", message, clause.value.span, "here", example)
        elif any(isinstance(v, Literal) and not 1 <= v.value < math.inf for v in values):
            message = f"`{kind}` takes sizes of at least 1"
            self.faults.error("bad-order", message, clause.value.span, "here", example)
        return replace(region, order=Order(kind, values))

    def check_placements(self, layout: Sequence[Item]) -> None:
        """Regions placed by each other in a circle have no place."""
        places = {r.name: set(self.places(r)) for r in regions_of(layout)}
        reported = set[str]()
        for name, needs in places.items():
            reached, pending = set[str](), list(needs)
            while pending:
                other = pending.pop()
                if other not in reached:
                    reached.add(other)
                    pending += places.get(other, ())
            if name in reached - reported:
                reported |= reached
                node = self.declared.regions[name].node
                clause = next(c for c in node.clauses if c.word in ("at", "from", "align"))
                self.faults.error(
                    "circular-placement",
                    f"where `{name}` stands depends on itself",
                    clause.span,
                    "in a circle",
                    "place one of the regions by a number or by `len(...)`",
                )

    def places(self, region: Region) -> Iterator[str]:
        """The regions whose start or end places this one."""
        if region.placement is not None and region.placement.kind == "align_end":
            path = self.declared.regions[region.name].path
            around = (r for r in self.declared.regions.values() if r.path[: len(path)] == path)
            yield from [r.name for r in around if r.node.side != "query"][-1:]
        for part in _parts(region):
            if isinstance(part, Place) and part.what != "len":
                yield part.region


def _parts(region: Region) -> Iterator[Expr]:
    pending = [] if region.placement is None else [region.placement.position]
    while pending:
        part = pending.pop()
        yield part
        if isinstance(part, Call):
            pending += part.arguments
