"""Which names a mask declares, and where: regions, groups, levels, axes, params, tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cmask.compiler.faults import Faults, with_article
from cmask.grammar import syntax
from cmask.grammar.source import Span

# coordinates of every token, and words that stand for values
TAKEN = ("pos", "offset", "seq", "inf", "row")


@dataclass(frozen=True, slots=True)
class DeclaredRegion:
    """A region with the groups around it, outermost first."""

    node: syntax.Region
    path: tuple[syntax.Group, ...]
    axes: tuple[str | None, ...]
    has_fixed_size: bool

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.name.text

    @property
    def level(self) -> str | None:
        """The level that numbers its instances."""
        return level_of(self.node)

    def coordinates(self, scope: str | None) -> set[str | None]:
        """The coordinates of its tokens in a rule of `scope`."""
        return {"pos", "offset", *self.axes, *self.levels(scope)}

    @property
    def is_placed(self) -> bool:
        """Whether a clause says where it stands in `pos`."""
        return any(clause.word in ("at", "from", "align") for clause in self.node.clauses)

    def levels(self, scope: str | None) -> tuple[str, ...]:
        """The levels of its tokens that a rule in `scope` can tell apart."""
        names = [group.name.text for group in self.path]
        inside = self.path if scope is None else self.path[names.index(scope) + 1 :]
        found = [level_of(group) for group in inside] + [self.level]
        return tuple(level for level in found if level is not None)


@dataclass(slots=True)
class Declared:
    """All declarations of a mask."""

    regions: dict[str, DeclaredRegion] = field(default_factory=dict)
    groups: dict[str, tuple[syntax.Group, ...]] = field(default_factory=dict)
    params: dict[str, syntax.Param] = field(default_factory=dict)
    tables: dict[str, syntax.Table] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    @property
    def levels(self) -> set[str]:
        """Every level."""
        return {name for region in self.regions.values() for name in region.levels(None)}

    @property
    def axes(self) -> set[str]:
        """Every named axis."""
        return {axis for region in self.regions.values() for axis in region.axes if axis}

    @property
    def sizes(self) -> set[str]:
        """What sizes and numbers of instances are called."""
        names = set(self.axes)
        for region in self.regions.values():
            if region.axes or region.has_fixed_size:
                names |= {region.name} if region.node.starred else set()
            else:
                names.add(region.name)
        return names | {path[-1].name.text for path in self.groups.values() if path[-1].starred}

    def stars(self, name: str) -> int:
        """How many stars repeat what a size is called by: so deep its lists may be."""
        around = [sum(g.starred for g in self.groups[name][:-1])] if name in self.groups else []
        for region in self.regions.values():
            stars = sum(group.starred for group in region.path)
            if name in region.axes:
                around.append(stars + region.node.starred)
            elif name == region.name:
                counted = region.axes or region.has_fixed_size
                around.append(stars if counted else stars + region.node.starred)
        return max(around, default=0)

    def within(self, scope: str | None) -> Iterator[DeclaredRegion]:
        """The regions of a group, nested groups included, in layout order."""
        for region in self.regions.values():
            if scope is None or any(group.name.text == scope for group in region.path):
                yield region


def level_of(node: syntax.Region | syntax.Group) -> str | None:
    """The name of the level that a starred region or group has."""
    if not node.starred:
        return None
    return node.level.text if node.level is not None else node.name.text


def declare(mask: syntax.Mask, faults: Faults) -> Declared:
    """Collect the declarations; names that clash are faults."""
    declared = Declared()
    collector = _Collector(declared, faults)
    collector.values(mask.items)
    collector.items(mask.items, ())
    if not declared.regions:
        faults.error(
            "no-regions",
            f"mask `{mask.name.text}` has no region",
            mask.name.span,
            "nothing to attend to",
            "add `region text` and `text sees text: causal`",
        )
    return declared


@dataclass(slots=True)
class _Collector:
    declared: Declared
    faults: Faults
    regions: set[str] = field(default_factory=set)  # all that are to come

    def items(self, items: Sequence[syntax.Item], path: tuple[syntax.Group, ...]) -> None:
        for item in items:
            match item:
                case syntax.Table():
                    self.name(item.name, "table")
                    self.declared.tables[item.name.text] = item
                case syntax.Region():
                    self.region(item, path)
                case syntax.Group():
                    self.name(item.name, "group")
                    self.level(item, path)
                    self.declared.groups[item.name.text] = (*path, item)
                    before = len(self.declared.regions)
                    self.items(item.items, (*path, item))
                    if len(self.declared.regions) == before:
                        self.empty(item)
                case syntax.Sizes() if path:
                    self.misplaced(item.span, "a sizes block")
                case _:
                    pass

    def values(self, items: Sequence[syntax.Item], *, inside: bool = False) -> None:
        """Names that have values first: one in brackets is an axis unless it is one of them."""
        for item in items:
            if isinstance(item, syntax.Group):
                self.values(item.items, inside=True)
            elif isinstance(item, syntax.Region):
                self.regions.add(item.name.text)
            elif isinstance(item, syntax.Param):
                self.name(item.name, "parameter")
                self.declared.params[item.name.text] = item
                if inside:
                    self.misplaced(item.span, "a parameter")

    def misplaced(self, span: Span, what: str) -> None:
        self.faults.error(
            "misplaced", f"{what} stands inside a group", span, "here", "move it out of the group"
        )

    def empty(self, group: syntax.Group) -> None:
        self.faults.error(
            "empty-group",
            f"the group `{group.name.text}` has no region",
            group.name.span,
            "holds no token",
            "add a region, or remove the group",
        )

    def region(self, node: syntax.Region, path: tuple[syntax.Group, ...]) -> None:
        self.name(node.name, "region")
        self.level(node, path)
        axes = self.axes(node)
        fixed = len(node.axes) == 1 and not axes
        self.declared.regions.setdefault(
            node.name.text, DeclaredRegion(node, path, axes, has_fixed_size=fixed)
        )

    def axes(self, node: syntax.Region) -> tuple[str | None, ...]:
        """The axes of a grid; none for a region of one fixed size."""
        names: list[str | None] = []
        values = {"seq", *self.declared.params}
        if len(node.axes) == 1:
            values |= self.regions
        for axis in node.axes:
            if isinstance(axis, syntax.Reference) and axis.name not in values:
                if axis.name in names:
                    self.duplicate(syntax.Name(axis.name, axis.span), "an axis of this grid")
                self.name(syntax.Name(axis.name, axis.span), "axis")
                names.append(axis.name)
            else:
                names.append(None)
        return () if names == [None] else tuple(names)

    def level(self, node: syntax.Region | syntax.Group, path: tuple[syntax.Group, ...]) -> None:
        if node.level is None:
            return
        if not node.starred:
            self.faults.error(
                "level-without-star",
                f"`{node.name.text}` has one instance and no level",
                node.level.span,
                "names a level",
                f"write `{node.name.text}* as {node.level.text}`",
            )
        if node.level.text in (level_of(group) for group in path):
            self.duplicate(node.level, "a level around this one")
        self.name(node.level, "level")

    def name(self, name: syntax.Name, kind: str) -> None:
        kinds = self.declared.kinds
        if name.text in TAKEN:
            self.faults.error(
                "taken-name",
                f"`{name.text}` has a meaning of its own",
                name.span,
                f"names {with_article(kind)}",
                f"choose another name, such as `{name.text}_`",
            )
        elif name.text in kinds and not (kind == kinds[name.text] and kind in ("axis", "level")):
            self.duplicate(name, with_article(kinds[name.text]))
        else:
            kinds[name.text] = kind

    def duplicate(self, name: syntax.Name, other: str) -> None:
        self.faults.error(
            "duplicate-name",
            f"`{name.text}` is declared twice",
            name.span,
            f"{other} has this name already",
            "regions, groups, levels, axes, parameters and tables share one name space",
        )
