"""Random masks with random sizes, well-formed by the rules of the language.

`bound_masks()` composes everything: nested groups, starred regions, query and key regions, grids,
placements, token orders, all patterns, tables, several rules in several scopes.  Sizes are small
(at most 48 a side), often 0 or 1, ragged, and divide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st

from cmask.compiler import ir
from cmask.runtime.closed_form import Region
from cmask.runtime.expressions import (
    Expr,
    Literal,
    Ref,
    Value,
)
from support.drawn_layouts import LayoutDrawing

composed = settings(
    max_examples=60,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@dataclass(frozen=True)
class BoundCase:
    """A mask with a value for every name."""

    mask: ir.ResolvedMask
    sizes: dict[str, Value]


@st.composite
def bound_masks(draw: st.DrawFn) -> BoundCase:
    """Masks of all constructs."""
    return _Drawing(lambda strategy: draw(strategy)).case()


@st.composite
def masks_by_head(draw: st.DrawFn) -> BoundCase:
    """The same, with rules for some of the heads 0 to 7: ranges overlap, touch and come again."""
    case = draw(bound_masks())
    cuts = st.lists(st.integers(0, 8), min_size=2, max_size=2, unique=True)
    ranges = st.one_of(st.none(), cuts.map(lambda ends: (min(ends), max(ends))))
    rules = tuple(
        replace(rule, heads=heads)
        for rule in case.mask.rules
        for heads in draw(st.lists(ranges, min_size=1, max_size=2, unique=True))
    )
    return BoundCase(replace(case.mask, rules=rules), case.sizes)


@dataclass
class _Drawing(LayoutDrawing):
    """One mask while it is drawn."""

    def case(self) -> BoundCase:
        layout = self.items((), self.pick((1, 2, 2, 3)))
        assume(self.regions)
        self.find_parents(layout, ())
        layout = self.placed(layout)
        rules = tuple(self.rule() for _ in range(self.pick((1, 1, 2, 3, 4))))
        self.draw_counts(layout)
        self.shrink(layout)
        self.fill_tables(layout)
        mask = ir.ResolvedMask(
            name="drawn",
            params=tuple((name, Literal(value)) for name, value in self.params.items()),
            tables=tuple(self.tables.values()),
            layout=layout,
            rules=rules,
            sizes=(),
        )
        return BoundCase(mask, {**self.sizes, **self.params})

    def rule(self) -> ir.Rule:
        groups = {g.name for chain in self.parents.values() for g in chain}
        scope = self.pick((None, None, *sorted(groups)))
        inside = [
            r
            for r in self.regions
            if scope is None or scope in [g.name for g in self.parents[r.name]]
        ]
        queries = [r for r in inside if r.side != "key"]
        keys = [r for r in inside if r.side != "query"]
        assume(queries and keys)
        chosen_q, chosen_k = self.some(queries), self.some(keys)
        pattern = self.pattern(_Sides(self, scope, chosen_q, chosen_k), 2)
        return ir.Rule(scope, _names(chosen_q), _names(chosen_k), pattern)

    def some(self, regions: list[Region]) -> list[Region]:
        if self.chance(3):
            return regions
        return self.draw(
            st.lists(st.sampled_from(regions), min_size=1, max_size=2, unique_by=lambda r: r.name)
        )

    def pattern(self, sides: _Sides, depth: int) -> ir.Pattern:
        if depth and self.chance(2):
            join = self.pick((ir.And, ir.And, ir.Or))
            parts = self.pick((2, 2, 3))
            return join(tuple(self.pattern(sides, depth - 1) for _ in range(parts)))
        kinds = ["all", "same", "before", "upto", "upto", "window", "window", "first", "rows"]
        kinds += ["until"] * 2 + ["tree"]
        kinds += ["shifted", "shifted", "disc", "disc"] if sides.axes() else []
        return self.simple(self.pick(kinds), sides)

    def simple(self, kind: str, sides: _Sides) -> ir.Pattern:
        match kind:
            case "same":
                return ir.Same(self.coordinate(sides))
            case "before":
                return ir.Before(self.coordinate(sides))
            case "upto":
                return ir.Upto(self.coordinate(sides))
            case "window":
                return ir.Window(self.coordinate(sides), self.reach(), self.reach())
            case "first":
                return ir.First(Literal(self.pick((0, 1, 2, 5, math.inf))))
            case "until" | "rows" | "tree":
                return self.tabled(kind, sides)
            case "shifted":
                left, right, stride = (
                    self.pick((0, 1, 2)),
                    self.pick((0, 1, 3)),
                    self.pick((1, 2, 3)),
                )
                axis = self.pick(sides.axes())
                return ir.ShiftedWindow(axis, Literal(left), Literal(right), Literal(stride))
            case "disc":
                axes = self.draw(st.lists(st.sampled_from(sides.axes()), min_size=1, unique=True))
                return ir.Disc(tuple(axes), Literal(self.pick((-2, 0, 1, 2, 3))))
        return ir.All()

    def tabled(self, kind: str, sides: _Sides) -> ir.Pattern:
        queries = _names(sides.queries)
        match kind:
            case "rows":
                return ir.Rows(self.table("row", queries, "func"))
            case "tree":
                return ir.Tree(self.table("row", queries, "parent"))
        index = self.pick(("row", *sides.query_levels()))
        return ir.Until(self.table(index, queries))

    def coordinate(self, sides: _Sides) -> ir.Coordinate:
        name = self.pick(sides.coordinates())
        match self.pick(("plain", "plain", "/", "%")):
            case "/":
                return ir.Coordinate(name, divisor=Literal(self.pick((1, 2, 3, 5))))
            case "%":
                return ir.Coordinate(name, modulus=Literal(self.pick((1, 2, 3, 5))))
        return ir.Coordinate(name)

    def reach(self) -> Expr:
        if self.chance(5):
            return Ref(self.param(self.pick((0, 2, 5, math.inf))))
        return Literal(self.pick((-2, -1, 0, 0, 1, 2, 3, 6, math.inf)))


@dataclass
class _Sides:
    """The regions of a rule, and what can be compared between them."""

    drawing: _Drawing
    scope: str | None
    queries: list[Region]
    keys: list[Region]

    def axes(self) -> list[str]:
        each = [{a.name for a in r.axes if a.name} for r in (*self.queries, *self.keys)]
        return sorted(set.intersection(*each))

    def query_levels(self) -> list[str]:
        each = [set(self.drawing.levels(r.name)) for r in self.queries]
        return sorted(set.intersection(*each))

    def coordinates(self) -> list[str]:
        regions = (*self.queries, *self.keys)
        found = ["offset", *self.axes(), *self.axes()]
        if all(r.side != "query" or r.placement for r in self.queries):
            found += ["pos", "pos", "pos"]
        levels = [set(self.levels_inside(r)) for r in regions]
        return found + sorted(set.intersection(*levels)) * 2

    def levels_inside(self, region: Region) -> list[str]:
        chain = self.drawing.parents[region.name]
        if self.scope is not None:
            chain = chain[1 + [g.name for g in chain].index(self.scope) :]
        return [name for name in (*(g.level for g in chain), region.level) if name]


def _names(regions: Sequence[Region]) -> tuple[str, ...]:
    return tuple(r.name for r in regions)
