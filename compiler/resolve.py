"""Syntax tree -> mask: names resolved, everything checked, all faults at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass

from cmask.compiler import ir
from cmask.compiler.declared import Declared, DeclaredRegion, declare
from cmask.compiler.faults import Faults, did_you_mean, with_article
from cmask.compiler.resolve_layout import regions_of, resolve_layout
from cmask.compiler.resolve_patterns import Patterns
from cmask.compiler.resolve_sizes import resolve_sizes
from cmask.compiler.resolve_values import Values
from cmask.grammar import syntax
from cmask.grammar.diagnostic import Diagnostic
from cmask.grammar.source import Source, Span
from cmask.runtime.closed_form import Item, Table
from cmask.runtime.expressions import Entry, Ref


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
        values = Values(self.declared, self.faults, ())
        params = tuple(
            (name, None if p.default is None else values.value(p.default))
            for name, p in self.declared.params.items()
        )
        layout = resolve_layout(self.tree, self.declared, self.faults)
        rules = tuple(self.rules(self.tree.items, None))
        return ir.ResolvedMask(
            name=self.tree.name.text,
            params=params,
            tables=tuple(self.tables(rules, layout)),
            layout=layout,
            rules=rules,
            sizes=resolve_sizes(self.tree, self.declared, self.faults),
        )

    def rules(self, items: Sequence[syntax.Item], scope: str | None) -> Iterator[ir.Rule]:
        for item in items:
            match item:
                case syntax.Rule():
                    yield self.rule(item, scope)
                case syntax.Group():
                    yield from self.rules(item.items, item.name.text)
                case syntax.Heads():
                    heads = self.heads(item)
                    yield from (self.rule(rule, scope, heads) for rule in item.rules)

    def heads(self, node: syntax.Heads) -> tuple[int, int]:
        """The query heads [start, stop) of a block; one head where it holds none."""
        first, last = int(node.first.value), int(node.last.value)
        span = Span(node.first.span.start, node.last.span.stop)
        if first > last:
            self.faults.error(
                "backward-heads",
                f"the heads {first}..{last} are none",
                span,
                "the first head is behind the last one",
                f"write `heads {last}..{first}`; both ends belong to it",
            )
        if not node.rules:
            self.faults.error(
                "empty-heads",
                "a block for some heads has no rule",
                span,
                "these heads get nothing by it",
                "add a rule, or remove the block",
            )
        return first, max(first, last) + 1

    def rule(
        self, node: syntax.Rule, scope: str | None, heads: tuple[int, int] | None = None
    ) -> ir.Rule:
        queries = tuple(self.regions(node.queries, scope, "query"))
        keys = tuple(self.regions(node.keys, scope, "key"))
        patterns = Patterns(self.declared, self.faults, scope, queries, keys)
        line, _ = self.source.position(node.span.start)
        text = " ".join(self.source.code[node.span.start : node.span.stop].split())
        if heads is not None:
            text = f"heads {heads[0]}..{heads[1] - 1} {{ {text} }}"
        return ir.Rule(
            scope=scope,
            queries=tuple(r.name for r in queries),
            keys=tuple(r.name for r in keys),
            pattern=patterns.pattern(node.pattern),
            text=f"{line}: {text}",
            heads=heads,
        )

    def regions(
        self, names: Sequence[syntax.Name], scope: str | None, side: str
    ) -> Iterator[DeclaredRegion]:
        """The regions that a list names, each once, in layout order."""
        named: set[str] = set()
        for name in names:
            if name.text == "all":
                other = "key" if side == "query" else "query"
                every = {r.name for r in self.declared.within(scope) if r.node.side != other}
                if not every:
                    self.faults.error(
                        "empty-all",
                        f"no region {f'of `{scope}`' if scope else 'of this mask'} has "
                        f"{'queries' if side == 'query' else 'keys'}",
                        name.span,
                        "stands for no region",
                        "declare one without `query` or `key`, or move the rule out of the group"
                        if scope
                        else "declare one without `query` or `key`",
                    )
                named |= every
            elif self.can_stand(name, scope, side):
                named.add(name.text)
        yield from (r for r in self.declared.regions.values() if r.name in named)

    def can_stand(self, name: syntax.Name, scope: str | None, side: str) -> bool:
        """Whether a rule may name this region on this side; if not, it is reported."""
        region = self.declared.regions.get(name.text)
        inside = {r.name for r in self.declared.within(scope)}
        kind = self.declared.kinds.get(name.text)
        if region is None and kind is not None:
            members = {r.name for r in self.declared.within(name.text)} if kind == "group" else ()
            self.faults.error(
                "not-a-region",
                f"`{name.text}` is {with_article(kind)}, not a region",
                name.span,
                "a rule relates regions",
                did_you_mean(name.text, inside.intersection(members) or inside),
            )
        elif region is None:
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
                self.faults.not_yet("a table indexed by `key`", node.index.span)
            elif index != "row" and index not in self.declared.levels:
                self.faults.error(
                    "unknown-index",
                    f"a table cannot be indexed by `{index}`",
                    node.index.span,
                    "neither `row` nor a level",
                    did_you_mean(index, {"row", *self.declared.levels}),
                )
            used = {q for rule in rules if name in _tables(rule.pattern) for q in rule.queries}
            used |= {r.name for r in regions_of(layout) if name in _named(r)}
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
        used = set(_named((mask.layout, mask.rules, mask.sizes)))
        for name, param in self.declared.params.items():
            if name not in used:
                self.faults.warning(
                    "unused-param",
                    f"nothing uses the parameter `{name}`",
                    param.span,
                    "declared here",
                )


def _named(part: object) -> Iterator[str]:
    """The parameters, sizes and tables that the expressions of a part name."""
    match part:
        case Ref(name=name) | Entry(table=name):
            yield name
        case tuple():
            for item in part:
                yield from _named(item)
        case _ if is_dataclass(part):
            for field in fields(part):
                yield from _named(getattr(part, field.name))


def _tables(pattern: ir.Pattern) -> set[str]:
    match pattern:
        case ir.And(parts=parts) | ir.Or(parts=parts):
            return {name for part in parts for name in _tables(part)}
        case ir.Until(table=table) | ir.Rows(table=table) | ir.Tree(table=table):
            return {table}
        case _:
            return set()
