"""Syntax tree -> mask: names resolved, everything checked, all faults at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cmask.compiler import ir
from cmask.compiler.declared import Declared, DeclaredRegion, declare, level_of
from cmask.compiler.faults import Faults, did_you_mean
from cmask.compiler.resolve_patterns import Patterns, not_yet
from cmask.compiler.resolve_sizes import resolve_sizes
from cmask.compiler.resolve_values import Values
from cmask.grammar import syntax
from cmask.grammar.diagnostic import Diagnostic
from cmask.grammar.source import Source
from cmask.runtime.closed_form import Axis, Group, Item, Order, Placement, Region, Table
from cmask.runtime.expressions import ZERO, Call, Entry, Expr, Place


def resolve(tree: syntax.Mask, source: Source) -> ir.ResolvedMask:
    """The mask that a syntax tree means; raises `CmaskError` with every fault."""
    return resolve_with_warnings(tree, source)[0]


def resolve_with_warnings(
    tree: syntax.Mask, source: Source
) -> tuple[ir.ResolvedMask, tuple[Diagnostic, ...]]:
    """The mask, and what is odd about it but not wrong."""
    faults = Faults()
    resolver = _Resolver(tree, source, declare(tree, faults), faults)
    mask = resolver.mask()
    resolver.warn(mask)
    faults.raise_errors()
    return mask, faults.warnings


@dataclass(frozen=True, slots=True)
class _Resolver:
    tree: syntax.Mask
    source: Source
    declared: Declared
    faults: Faults

    def mask(self) -> ir.ResolvedMask:
        params = tuple(
            (name, None if p.default is None else self.values(set()).value(p.default))
            for name, p in self.declared.params.items()
        )
        layout = self.layout(self.tree.items)
        self.check_placements(layout)
        rules = tuple(self.rules(self.tree.items, None))
        return ir.ResolvedMask(
            name=self.tree.name.text,
            params=params,
            tables=tuple(self.tables(rules, layout)),
            layout=layout,
            rules=rules,
            sizes=resolve_sizes(self.tree, self.declared, self.faults),
        )

    def values(self, names: set[str], around: DeclaredRegion | None = None) -> Values:
        return Values(self.declared, self.faults, names, around)

    # ------------------------------------------------------------------ layout

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
        values = self.values({*self.declared.params, *self.declared.sizes})
        size = values.value(node.axes[0]) if declared.has_fixed_size else None
        axes = tuple(
            Axis(name) if name is not None else Axis(None, values.value(expression))
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
                position = self.values(names, declared).value(clause.value)
                return replace(region, placement=Placement(clause.word, position))
            case "align":
                return self.align(region, clause)
            case "order":
                return self.order(region, clause)
        not_yet(self.faults, f"`{clause.word}`", clause)
        return region

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
        rank = max(1, len(region.axes))
        match clause.value:
            case syntax.Reference(name="raster" | "auto" as kind):
                return replace(region, order=Order(kind))
            case syntax.Reference(name="role"):
                not_yet(self.faults, "`order role`", clause)
                return region
            case syntax.Application(name=syntax.Name(text="tile" | "mod" as kind), arguments=sizes):
                needed = rank if kind == "tile" else 1
                if len(sizes) == needed:
                    values = self.values(set(self.declared.params))
                    return replace(region, order=Order(kind, tuple(map(values.value, sizes))))
                self.faults.error(
                    "bad-order",
                    f"`{kind}` takes {needed} sizes for `{region.name}`, not {len(sizes)}",
                    clause.value.span,
                    "here",
                    f"write `order {kind}({', '.join(['8', '16', '16', '16'][:needed])})`",
                )
                return region
        self.faults.error(
            "bad-order",
            "this is no token order",
            clause.value.span,
            "not an order",
            "write `order raster`, `order tile(8, 16)`, `order mod(n)` or `order auto`",
        )
        return region

    def check_placements(self, layout: Sequence[Item]) -> None:
        """Regions placed by each other in a circle have no place."""
        places = {r.name: set(_places(r)) for r in _regions(layout)}
        for name, needs in places.items():
            reached, pending = set[str](), list(needs)
            while pending:
                other = pending.pop()
                if other not in reached:
                    reached.add(other)
                    pending += places.get(other, ())
            if name in reached:
                node = self.declared.regions[name].node
                self.faults.error(
                    "circular-placement",
                    f"where `{name}` stands depends on itself",
                    node.clauses[0].span,
                    "in a circle",
                    "place one of the regions by a number or by `len(...)`",
                )

    # ------------------------------------------------------------------ rules

    def rules(self, items: Sequence[syntax.Item], scope: str | None) -> Iterator[ir.Rule]:
        for item in items:
            match item:
                case syntax.Rule():
                    yield self.rule(item, scope)
                case syntax.Group():
                    yield from self.rules(item.items, item.name.text)
                case syntax.Heads():
                    not_yet(self.faults, "rules for some heads (`heads`)", item)

    def rule(self, node: syntax.Rule, scope: str | None) -> ir.Rule:
        queries = tuple(self.regions(node.queries, scope, "query"))
        keys = tuple(self.regions(node.keys, scope, "key"))
        patterns = Patterns(self.declared, self.faults, scope, queries, keys)
        line, _ = self.source.position(node.span.start)
        text = " ".join(self.source.slice(node.span).split())
        return ir.Rule(
            scope=scope,
            queries=tuple(r.name for r in queries),
            keys=tuple(r.name for r in keys),
            pattern=patterns.pattern(node.pattern),
            text=f"{line}: {text}",
        )

    def regions(
        self, names: Sequence[syntax.Name], scope: str | None, side: str
    ) -> Iterator[DeclaredRegion]:
        """The regions that a list names, each once, in layout order."""
        named: set[str] = set()
        for name in names:
            if name.text == "all":
                other = "key" if side == "query" else "query"
                named |= {r.name for r in self.declared.within(scope) if r.node.side != other}
            elif self.can_stand(name, scope, side):
                named.add(name.text)
        yield from (r for r in self.declared.regions.values() if r.name in named)

    def can_stand(self, name: syntax.Name, scope: str | None, side: str) -> bool:
        """Whether a rule may name this region on this side; if not, it is reported."""
        region = self.declared.regions.get(name.text)
        inside = {r.name for r in self.declared.within(scope)}
        if region is None:
            self.faults.error(
                "unknown-region",
                f"there is no region `{name.text}`",
                name.span,
                "not declared",
                did_you_mean(name.text, inside),
            )
        elif name.text not in inside:
            self.faults.error(
                "region-outside-group",
                f"`{name.text}` does not lie in the group `{scope}`",
                name.span,
                f"the rule relates tokens of one `{scope}`",
                "move the rule out of the group",
            )
        elif region.node.side not in ("both", side):
            self.faults.error(
                "wrong-side",
                f"`{name.text}` has no {'queries' if side == 'query' else 'keys'}",
                name.span,
                f"declared as `{region.node.side} region`",
                f"write `region {name.text}` to have both",
            )
        else:
            return True
        return False

    def tables(self, rules: Sequence[ir.Rule], layout: Sequence[Item]) -> Iterator[Table]:
        for name, node in self.declared.tables.items():
            index = node.index.text
            if index == "key":
                not_yet(self.faults, "a table indexed by `key`", node.index)
            elif index != "row" and index not in self.declared.levels:
                self.faults.error(
                    "unknown-index",
                    f"a table cannot be indexed by `{index}`",
                    node.index.span,
                    "neither `row` nor a level",
                    did_you_mean(index, {"row", *self.declared.levels}),
                )
            used = {q for rule in rules if name in _tables(rule.pattern) for q in rule.queries}
            used |= {r.name for r in _regions(layout) if name in _entries(r)}
            if not used:
                self.faults.warning(
                    "unused-table", f"no rule uses the table `{name}`", node.span, "declared here"
                )
            in_order = (r for r in self.declared.regions if r in used)
            yield Table(name, index, tuple(in_order) if index == "row" else ())

    def warn(self, mask: ir.ResolvedMask) -> None:
        """Regions that no rule names, parameters that nothing uses."""
        named = {name for rule in mask.rules for name in (*rule.queries, *rule.keys)}
        for region in self.declared.regions.values():
            if region.name not in named:
                self.faults.warning(
                    "idle-region",
                    f"no rule names the region `{region.name}`",
                    region.node.name.span,
                    "sees nothing, and nothing sees it",
                )
        text = self.source.text
        for name, param in self.declared.params.items():
            outside = text[: param.span.start] + text[param.span.stop :]
            if not _mentions(outside, name):
                self.faults.warning(
                    "unused-param",
                    f"nothing uses the parameter `{name}`",
                    param.span,
                    "declared here",
                )


def _mentions(text: str, name: str) -> bool:
    import re

    without_comments = re.sub(r"#[^\n]*", "", text)
    return re.search(rf"\b{re.escape(name)}\b", without_comments) is not None


def _regions(items: Sequence[Item]) -> Iterator[Region]:
    for item in items:
        if isinstance(item, Region):
            yield item
        else:
            yield from _regions(item.items)


def _places(region: Region) -> Iterator[str]:
    """The regions whose start or end places this one."""
    for part in _parts(region):
        if isinstance(part, Place) and part.what != "len":
            yield part.region


def _entries(region: Region) -> set[str]:
    return {part.table for part in _parts(region) if isinstance(part, Entry)}


def _parts(region: Region) -> Iterator[Expr]:
    pending = [] if region.placement is None else [region.placement.position]
    while pending:
        part = pending.pop()
        yield part
        if isinstance(part, Call):
            pending += part.arguments


def _tables(pattern: ir.Pattern) -> set[str]:
    match pattern:
        case ir.And(parts=parts) | ir.Or(parts=parts):
            return {name for part in parts for name in _tables(part)}
        case ir.Until(table=table) | ir.Rows(table=table):
            return {table}
        case _:
            return set()
