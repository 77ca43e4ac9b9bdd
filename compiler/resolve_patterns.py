"""Patterns as written -> patterns of coordinates that both sides have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cmask.compiler import ir
from cmask.compiler.declared import Declared, DeclaredRegion
from cmask.compiler.faults import Faults, counted, did_you_mean
from cmask.compiler.resolve_coordinates import Coordinates
from cmask.compiler.resolve_tables import table_entry
from cmask.compiler.resolve_values import Values
from cmask.compiler.resolve_windows import WINDOW, Windows
from cmask.grammar import syntax
from cmask.runtime.expressions import Entry, Literal

NOT_YET = ("seen", "blocks")

# name -> how to write it
USAGE = {
    "causal": "`causal`",
    "self": "`self`",
    "same": "`same(c)`",
    "before": "`before(c)`",
    "upto": "`upto(c)`",
    "window": WINDOW,
    "first": "`first(n)`",
    "disc": "`disc(radius)`, or `disc(h, w, radius)`",
    "until": "`until(table[row])`",
    "rows": "`rows(table)`",
    "tree": "`tree(table[row])`",
}

Argument = syntax.Expression | syntax.Keyword


@dataclass(frozen=True, slots=True)
class Patterns:
    """Resolves the patterns of one rule."""

    declared: Declared
    faults: Faults
    scope: str | None
    queries: Sequence[DeclaredRegion]
    keys: Sequence[DeclaredRegion]

    @property
    def coordinates(self) -> Coordinates:
        """The coordinates of this rule."""
        return Coordinates(self.declared, self.faults, self.scope, self.queries, self.keys)

    @property
    def values(self) -> Values:
        """Numbers in a pattern."""
        return self.coordinates.values

    def pattern(self, node: syntax.Pattern) -> ir.Pattern:
        """The pattern; what is wrong is reported and reads as `all`."""
        match node:
            case syntax.Everything():
                return ir.All()
            case syntax.Both(parts=parts):
                return ir.And(tuple(self.pattern(p) for p in parts))
            case syntax.Either(parts=parts):
                return ir.Or(tuple(self.pattern(p) for p in parts))
            case syntax.Application():
                return self.single(node) or ir.All()

    def single(self, node: syntax.Application) -> ir.Pattern | None:
        name = node.name.text
        if name in NOT_YET:
            self.faults.not_yet(f"the pattern `{name}`", node.name.span)
            return None
        makers: dict[str, Callable[[syntax.Application], ir.Pattern | None]] = {
            "causal": self.causal,
            "self": self.self_,
            "same": lambda n: self.compared(n, ir.Same),
            "before": lambda n: self.compared(n, ir.Before),
            "upto": lambda n: self.compared(n, ir.Upto),
            "window": Windows(self.coordinates).resolve,
            "first": self.first,
            "disc": self.disc,
            "until": self.until,
            "rows": self.rows,
            "tree": self.tree,
        }
        if name not in makers:
            self.faults.error(
                "unknown-pattern",
                f"there is no pattern `{name}`",
                node.name.span,
                "not a pattern",
                did_you_mean(name, [*USAGE, "all"]),
            )
            return None
        return makers[name](node)

    def usage(self, node: syntax.Application, message: str, usage: str = "") -> None:
        usage = usage or USAGE[node.name.text]
        self.faults.error("bad-argument", message, node.span, "here", f"write {usage}")

    def plain(self, node: syntax.Application, *counts: int) -> Sequence[syntax.Expression] | None:
        """The arguments, if their number fits and none has a keyword."""
        plain = [a for a in node.arguments if not isinstance(a, syntax.Keyword)]
        if len(plain) in counts and len(plain) == len(node.arguments):
            return plain
        name, number = node.name.text, len(node.arguments)
        wanted = f"{counts[0]} or more" if counts[1:] else counted(counts[0], "argument")
        if len(plain) < number:
            self.usage(node, f"`{name}` takes no keywords")
        else:
            self.usage(node, f"`{name}` takes {wanted}, not {number}")
        return None

    def causal(self, node: syntax.Application) -> ir.Pattern | None:
        if self.plain(node, 0) is None:
            return None
        self.coordinates.need_positions(node)
        return ir.Upto(ir.Coordinate("pos"))

    def self_(self, node: syntax.Application) -> ir.Pattern | None:
        return None if self.plain(node, 0) is None else ir.Same(ir.Coordinate("offset"))

    def compared(
        self, node: syntax.Application, kind: Callable[[ir.Coordinate], ir.Pattern]
    ) -> ir.Pattern | None:
        arguments = self.plain(node, 1)
        if arguments is None:
            return None
        coordinate = self.coordinates.coordinate(arguments[0])
        return None if coordinate is None else kind(coordinate)

    def first(self, node: syntax.Application) -> ir.Pattern | None:
        arguments = self.plain(node, 1)
        if arguments is None:
            return None
        count = self.values.number(arguments[0])
        if isinstance(count, Literal) and count.value < 1:
            self.faults.error(
                "empty-first",
                f"the first {count.value} tokens are none",
                arguments[0].span,
                "no token",
                "write at least `first(1)`",
            )
        return ir.First(count)

    def disc(self, node: syntax.Application) -> ir.Pattern | None:
        *axes, radius = self.plain(node, 1, 2, 3, 4, 5) or (None,)
        if radius is None:
            return None
        names = [self.coordinates.coordinate(a) for a in axes if a is not None]
        if any(c is None or c.divisor or c.modulus for c in names):
            return None
        given = tuple(c.name for c in names if c is not None)
        found = given or self.common_axes(node)
        if not set(found) <= self.declared.axes or len(set(found)) < len(found):
            self.usage(node, "`disc` measures along axes, each named once")
            return None
        length = self.values.number(radius)
        if isinstance(length, Literal) and length.value <= 0:
            self.faults.error(
                "empty-disc",
                f"a disc of radius {length.value} holds no key",
                radius.span,
                "the border is not part of it",
                "write at least `1`, the query itself alone",
            )
        return ir.Disc(found, length) if found else None

    def common_axes(self, node: syntax.Application) -> tuple[str, ...]:
        regions = [*self.queries, *self.keys]
        axes = {tuple(r.axes) for r in regions}
        found = tuple(a for a in next(iter(axes), ()) if a is not None)
        if len(axes) == 1 and found and len(found) == len(next(iter(axes))):
            return found
        differing = [r.name for r in regions if r.axes != regions[0].axes or not r.axes]
        self.faults.error(
            "no-axes",
            "`disc` needs regions with the same named axes",
            node.span,
            f"not so {', '.join(f'`{name}`' for name in dict.fromkeys(differing))}",
            "give both regions the same axes, or name the axes: `disc(h, w, radius)`",
        )
        return ()

    def until(self, node: syntax.Application) -> ir.Pattern | None:
        entry = self.entry(node)
        return None if entry is None else ir.Until(entry.table)

    def tree(self, node: syntax.Application) -> ir.Pattern | None:
        entry = self.entry(node)
        if entry is None:
            return None
        if entry.index != "row":
            self.usage(node, f"`tree` needs a parent for each query, not for each `{entry.index}`")
            return None
        return ir.Tree(entry.table)

    def entry(self, node: syntax.Application) -> Entry | None:
        """The one argument, an entry of a table; None if it is reported."""
        arguments = self.plain(node, 1)
        if arguments is None:
            return None
        if not isinstance(arguments[0], syntax.Entry):
            name = node.name.text
            table = self.declared.tables.get(getattr(arguments[0], "name", ""))
            usage = f"`{name}({table.name.text}[{table.index.text}])`" if table else ""
            self.usage(node, f"`{name}` takes an entry of a table", usage)
            return None
        return table_entry(arguments[0], self.queries, self.declared, self.faults)

    def rows(self, node: syntax.Application) -> ir.Pattern | None:
        arguments = self.plain(node, 1)
        if arguments is None:
            return None
        if not isinstance(arguments[0], syntax.Reference):
            self.usage(node, "`rows` takes the name of a table")
            return None
        name = syntax.Name(arguments[0].name, arguments[0].span)
        table = self.declared.tables.get(name.text)
        if table is not None and table.index.text != "row":
            self.faults.error(
                "wrong-index",
                f"`{name.text}` is indexed by `{table.index.text}`",
                name.span,
                "`rows` reads an entry per query",
                f"declare it as `table {name.text}[row]`",
            )
            return None
        entry = syntax.Entry(name, syntax.Name("row", name.span), name.span)
        found = table_entry(entry, self.queries, self.declared, self.faults)
        return None if found is None else ir.Rows(found.table)
