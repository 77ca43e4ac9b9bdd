"""Random layouts with sizes, placements and tables: the first half of a random mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from cmask.compiler import ir
from cmask.compiler.positions import Layout
from cmask.compiler.semantics import key_count, query_count
from cmask.runtime.closed_form import Axis, Group, Item, Order, Placement, Region, Table
from cmask.runtime.expressions import (
    Call,
    Entry,
    Expr,
    ExpressionError,
    Literal,
    Place,
    Ref,
    Value,
)

MOST_TOKENS = 48
SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 9, 13, 21, 33)
SHARED_AXES = ("h", "w", "t")


@dataclass
class LayoutDrawing:
    """The layout, sizes and tables of one mask while they are drawn."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    sizes: dict[str, Value] = field(default_factory=dict)
    params: dict[str, int | float] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    parents: dict[str, tuple[Group, ...]] = field(default_factory=dict)
    counts: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)
    size_stars: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stars: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of each region
    num_names: int = 0
    is_aligned: bool = False  # some region is; what it is aligned with may not depend on it

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(tuple(choices)))

    def chance(self, one_in: int) -> bool:
        return bool(self.draw(st.integers(1, one_in)) == one_in)

    def name(self, kind: str) -> str:
        self.num_names += 1
        return f"{kind}{self.num_names}"

    # ------------------------------------------------------------------ layout
    def items(self, stars: tuple[str, ...], count: int, depth: int = 0) -> tuple[Item, ...]:
        drawn: list[Item] = []
        for _ in range(count):
            if depth < 2 and self.chance(3):
                drawn.append(self.group(stars, depth))
            else:
                drawn.append(self.region(stars, drawn))
        return tuple(drawn)

    def group(self, stars: tuple[str, ...], depth: int) -> Group:
        name = self.name("group")
        level = None if self.chance(4) else name
        inner = stars if level is None else (*stars, name)
        if level is not None and self.chance(4):
            level = self.name("level")
        return Group(name, level, self.items(inner, self.pick((1, 1, 2, 3)), depth + 1))

    def region(self, stars: tuple[str, ...], before: Sequence[Item]) -> Region:
        name = self.name("region")
        level = None
        if self.chance(3):
            peers = [r.level for r in before if isinstance(r, Region) and r.level]
            level = self.pick((name, name, self.name("level"), *peers))
            stars = (*stars, name)
        side = self.pick(("both", "both", "both", "query", "key"))
        axes = self.axes(stars) if self.chance(3) else ()
        size = self.size_in_place(stars) if not axes and self.chance(5) else None
        if level and (axes or size) and not any(a.name and "axis" in a.name for a in axes):
            self.sizes[name] = self.ragged(stars[:-1], (0, 1, 2, 3))
        if not axes and size is None:
            self.sizes[name] = self.ragged(stars)
            self.size_stars[name] = stars
        self.stars[name] = stars
        order = self.order(len(axes))
        region = Region(name, side, level, axes, size, None, order)
        self.regions.append(region)
        return region

    def size_in_place(self, stars: tuple[str, ...]) -> Expr:
        if self.chance(2) and (known := self.known_sizes(stars)):
            return Call("/", (Ref(self.pick(known)), Literal(self.pick((1, 2, 3)))))
        return Literal(self.pick((0, 1, 2, 3, 6)))

    def known_sizes(self, stars: tuple[str, ...]) -> list[str]:
        """Sizes that are one number in each instance under these stars: its own, or outer ones."""
        return [n for n, under in self.size_stars.items() if stars[: len(under)] == under]

    def axes(self, stars: tuple[str, ...]) -> tuple[Axis, ...]:
        names = self.draw(
            st.lists(st.sampled_from(SHARED_AXES), min_size=1, max_size=3, unique=True)
        )
        axes = []
        for name in names:
            if self.chance(6):
                axes.append(Axis(None, Literal(self.pick((1, 2, 3)))))
            elif self.chance(6):
                axes.append(Axis(self.name("axis"), Literal(self.pick((1, 2, 3)))))
            elif stars and self.chance(4):
                own = self.name("axis")
                self.sizes[own] = self.ragged(stars, (0, 1, 2, 3))
                axes.append(Axis(own))
            else:
                self.sizes.setdefault(name, self.pick((0, 1, 2, 3, 4, 5, 6)))
                axes.append(Axis(name))
        return tuple(axes)

    def order(self, num_axes: int) -> Order:
        kind = self.pick(("raster", "raster", "raster", "mod", "tile", "auto"))
        if kind == "mod":
            return Order("mod", (Literal(self.pick((1, 2, 3))),))
        if kind == "tile":
            return Order("tile", tuple(Literal(self.pick((1, 2, 3))) for _ in range(num_axes or 1)))
        return Order(kind)

    # ------------------------------------------------------------------- sizes
    def ragged(self, stars: tuple[str, ...], sizes: Sequence[int] = SIZES) -> Value:
        """A number, or a list that skips some of the outermost stars."""
        skip = 0 if self.chance(2) else self.draw(st.integers(0, len(stars)))
        return self.nested(stars, skip, (0,) * skip, sizes)

    def nested(
        self, stars: tuple[str, ...], at: int, path: tuple[int, ...], sizes: Sequence[int]
    ) -> Value:
        if at == len(stars):
            return int(self.pick(sizes))
        key = (stars[at], path)
        if key not in self.counts:
            self.counts[key] = self.pick((0, 1, 1, 2, 2, 3))
        return [self.nested(stars, at + 1, (*path, i), sizes) for i in range(self.counts[key])]

    def draw_counts(self, layout: tuple[Item, ...]) -> None:
        """Give the number of a group's instances where the lists do not tell it."""
        groups = {g.name: g for chain in self.parents.values() for g in chain if g.level}
        for name in groups:
            if self.chance(4):
                self.sizes[name] = self.counts.get((name, ()), self.pick((1, 2)))
        for name in groups:
            if not _lies(layout, self):
                self.sizes.setdefault(name, self.counts.get((name, ()), self.pick((0, 1, 2, 3))))
        assume(_lies(layout, self))

    def shrink(self, layout: tuple[Item, ...]) -> None:
        """Halve the sizes until both sides are small enough."""
        named = {r.name for r in self.regions} | {
            a.name for r in self.regions for a in r.axes if a.name
        }
        for _ in range(6):
            mask = ir.ResolvedMask("layout", (), (), layout, (), ())
            counts = query_count(mask, self.sizes), key_count(mask, self.sizes)
            if max(counts) <= MOST_TOKENS:
                assume(min(counts) > 0 or self.chance(5))
                return
            for name in named & self.sizes.keys():
                self.sizes[name] = _halved(self.sizes[name])
        assume(False)

    # -------------------------------------------------------------- placements
    def find_parents(self, items: Sequence[Item], chain: tuple[Group, ...]) -> None:
        for item in items:
            if isinstance(item, Group):
                self.find_parents(item.items, (*chain, item))
            else:
                self.parents[item.name] = chain

    def placed(self, items: tuple[Item, ...]) -> tuple[Item, ...]:
        """The layout with some regions placed by what comes before them in their group."""
        done: list[Item] = []
        for item in items:
            if isinstance(item, Group):
                done.append(replace(item, items=self.placed(item.items)))
                continue
            placement = self.placement(item, done) if self.chance(3) else None
            region = replace(item, placement=placement)
            self.regions = [region if r.name == region.name else r for r in self.regions]
            done.append(region)
        return tuple(done)

    def placement(self, region: Region, before: Sequence[Item]) -> Placement:
        rows_place = any(t.index == "row" for t in self.tables.values())
        if region.side == "query" and not rows_place and self.chance(3):
            self.is_aligned = True
            return Placement("align_end")
        return Placement(self.pick(("at", "from")), self.position(region, before))

    def position(self, region: Region, before: Sequence[Item]) -> Expr:
        beside = [r for r in before if isinstance(r, Region)]
        single = [r.name for r in beside if not r.level and _has_one_place(r)]
        choices = ["number", "number", "param", "size", "level"]
        choices += ["place", "place", "place + 1"] if single else []
        choices += ["len"] if beside else []
        choices += ["row"] if region.side != "key" and not self.is_aligned else []
        match self.pick(choices):
            case "size" if known := self.known_sizes(self.stars[region.name]):
                return Ref(self.pick(known))
            case "param":
                return Ref(self.param(self.pick((0, 1, 5))))
            case "level" if levels := self.levels(region.name):
                level = self.pick(levels)
                return Entry(self.table(level, ()), level)
            case "row":
                return Entry(self.table("row", (region.name,)), "row")
            case "row + 1":
                return Call("+", (Entry(self.table("row", (region.name,)), "row"), Literal(1)))
            case "place":
                return Place(self.pick(("start", "end")), self.pick(single))
            case "place + 1":
                return Call("+", (Place("end", self.pick(single)), Literal(1)))
            case "len":
                return Place("len", self.pick(beside).name)
        return Literal(self.pick((-2, 0, 0, 1, 3, 8)))

    def param(self, value: int | float) -> str:
        name = self.name("param")
        self.params[name] = value
        return name

    # ------------------------------------------------------------------ tables
    def levels(self, region: str) -> list[str]:
        own = [r.level for r in self.regions if r.name == region]
        found = [*(g.level for g in self.parents[region]), *own]
        every = [r.level for r in self.regions]
        return [name for name in found if name and every.count(name) <= 1]

    def table(self, index: str, users: tuple[str, ...], kind: str = "table") -> str:
        """A new table, or one more use of a `[row]` table.

        kind: "table", "func" (of `rows`) or "parent" (of `tree`).
        """
        shared = [t for t in self.tables.values() if t.index == "row" and t.name.startswith(kind)]
        if index == "row" and shared and self.chance(3):
            table = self.pick(shared)
            order = [r.name for r in self.regions]
            users = tuple(sorted({*table.users, *users}, key=order.index))
            del self.tables[table.name]
            self.tables[table.name] = replace(table, users=users)
            return str(table.name)
        name = self.name(kind)
        self.tables[name] = Table(name, index, users if index == "row" else ())
        return name

    def fill_tables(self, layout: tuple[Item, ...]) -> None:
        laid_out = Layout(layout, (), self.sizes)
        for table in self.tables.values():
            if table.index == "row":
                count = sum(i.length for i in laid_out.instances if i.region.name in table.users)
            else:
                item = next(i.name for i in self.starred() if i.level == table.index)
                count = sum(path[-1][0] == item for path in laid_out.paths)
            if table.name.startswith("parent"):
                lengths = [i.length for i in laid_out.instances if i.region.name in table.users]
                self.sizes[table.name] = [p for n in lengths for p in self.parents_of(n)]
                continue
            lines = 2 * self.pick((0, 1, 2)) + 1 if table.name.startswith("func") else 0
            filled = [self.numbers(count) for _ in range(lines or 1)]
            self.sizes[table.name] = filled if lines else filled[0]

    def starred(self) -> list[Item]:
        return [*self.regions, *(g for chain in self.parents.values() for g in chain)]

    def parents_of(self, count: int) -> list[int]:
        """Of a random forest, whose nodes lie in any order."""
        order = self.draw(st.permutations(range(count)))
        parents = [-1] * count
        for place in range(1, count):
            parent = self.draw(st.integers(-1, place - 1))
            parents[order[place]] = -1 if parent < 0 else order[parent]
        return parents

    def numbers(self, count: int) -> list[int]:
        return list(self.draw(st.lists(st.integers(0, 40), min_size=count, max_size=count)))


def _lies(layout: tuple[Item, ...], drawing: LayoutDrawing) -> bool:
    try:
        Layout(layout, (), drawing.sizes)
    except (ExpressionError, IndexError):
        return False
    return True


def _has_one_place(region: Region) -> bool:
    """Whether its `start` and `end` are known: it counts along the keys, or is placed at once."""
    if region.placement is None:
        return region.side != "query"
    if region.placement.kind == "align_end":
        return False
    position = region.placement.position
    return not isinstance(position, Entry) or position.index != "row"


def _halved(value: Value) -> Value:
    if isinstance(value, (int, float)):
        return int(value) // 2
    return [_halved(item) for item in value]
