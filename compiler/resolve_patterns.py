"""Patterns as written -> patterns of coordinates that both sides have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cmask.compiler import ir
from cmask.compiler.declared import Declared, DeclaredRegion
from cmask.compiler.faults import Faults, did_you_mean
from cmask.compiler.resolve_values import Values, table_entry
from cmask.grammar import syntax
from cmask.runtime.expressions import ONE, Expr, Literal

NOT_YET = ("tree", "seen", "blocks")

# name -> how to write it
USAGE = {
    "causal": "causal",
    "self": "self",
    "same": "same(c)",
    "before": "before(c)",
    "upto": "upto(c)",
    "window": "window(left, right), inclusive distances: window(15, 0) is the 16 nearest keys",
    "first": "first(n)",
    "disc": "disc(radius), or disc(h, w, radius)",
    "until": "until(table[row])",
    "rows": "rows(table)",
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
    def values(self) -> Values:
        """Numbers in a pattern: parameters and sizes."""
        return Values(self.declared, self.faults, {*self.declared.params, *self.declared.sizes})

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
            not_yet(self.faults, f"the pattern `{name}`", node.name)
            return None
        makers: dict[str, Callable[[syntax.Application], ir.Pattern | None]] = {
            "causal": self.causal,
            "self": self.self_,
            "same": lambda n: self.compared(n, ir.Same),
            "before": lambda n: self.compared(n, ir.Before),
            "upto": lambda n: self.compared(n, ir.Upto),
            "window": self.window,
            "first": self.first,
            "disc": self.disc,
            "until": self.until,
            "rows": self.rows,
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

    def usage(self, node: syntax.Application, message: str) -> None:
        self.faults.error(
            "bad-argument", message, node.span, "here", f"write `{USAGE[node.name.text]}`"
        )

    def plain(self, node: syntax.Application, *counts: int) -> Sequence[syntax.Expression] | None:
        """The arguments, if their number fits and none has a keyword."""
        plain = [a for a in node.arguments if not isinstance(a, syntax.Keyword)]
        if len(plain) in counts and len(plain) == len(node.arguments):
            return plain
        wanted = " or ".join(map(str, counts))
        self.usage(node, f"`{node.name.text}` takes {wanted} arguments, not {len(node.arguments)}")
        return None

    def causal(self, node: syntax.Application) -> ir.Pattern | None:
        if self.plain(node, 0) is None:
            return None
        self.need_positions(node)
        return ir.Upto(ir.Coordinate("pos"))

    def self_(self, node: syntax.Application) -> ir.Pattern | None:
        return None if self.plain(node, 0) is None else ir.Same(ir.Coordinate("offset"))

    def compared(
        self, node: syntax.Application, kind: Callable[[ir.Coordinate], ir.Pattern]
    ) -> ir.Pattern | None:
        arguments = self.plain(node, 1)
        if arguments is None:
            return None
        coordinate = self.coordinate(arguments[0])
        return None if coordinate is None else kind(coordinate)

    def window(self, node: syntax.Application) -> ir.Pattern | None:
        plain = [a for a in node.arguments if not isinstance(a, syntax.Keyword)]
        keywords = {a.name.text: a for a in node.arguments if isinstance(a, syntax.Keyword)}
        if len(plain) not in (2, 3) or not set(keywords) <= {"edge", "stride"}:
            self.usage(node, f"`window` takes left and right, not {len(plain)} arguments")
            return None
        if len(plain) == 2:
            self.need_positions(node)
            coordinate: ir.Coordinate | None = ir.Coordinate("pos")
        else:
            coordinate = self.coordinate(plain[0])
        left, right = (self.values.value(a) for a in plain[-2:])
        self.not_empty(node, left, right)
        if coordinate is None:
            return None
        if keywords:
            return self.shifted(node, coordinate, left, right, keywords)
        return ir.Window(coordinate, left, right)

    def not_empty(self, node: syntax.Application, left: Expr, right: Expr) -> None:
        if (
            isinstance(left, Literal)
            and isinstance(right, Literal)
            and left.value + right.value < 0
        ):
            self.faults.error(
                "empty-window",
                "a window holds no key",
                node.span,
                "left + right is below zero",
                "`window(0, 0)` is the query itself alone",
            )

    def shifted(
        self,
        node: syntax.Application,
        coordinate: ir.Coordinate,
        left: Expr,
        right: Expr,
        keywords: dict[str, syntax.Keyword],
    ) -> ir.Pattern | None:
        edge = keywords.get("edge")
        if edge is None or edge.value != syntax.Reference("shift"):
            place = node if edge is None else edge
            self.faults.error(
                "bad-edge",
                "a window with `stride` is moved at the edge",
                place.span,
                "only `edge=shift` is known",
                "write `edge=shift`",
            )
            return None
        if coordinate.name not in self.declared.axes or coordinate.divisor or coordinate.modulus:
            self.faults.error(
                "shift-needs-axis",
                "only a window along an axis of a grid can be moved at the edge",
                node.arguments[0].span,
                "not an axis",
                did_you_mean(coordinate.name, self.declared.axes)
                or "give the region axes: `region image[h, w]`",
            )
            return None
        stride = keywords.get("stride")
        return ir.ShiftedWindow(
            coordinate.name, left, right, ONE if stride is None else self.values.value(stride.value)
        )

    def first(self, node: syntax.Application) -> ir.Pattern | None:
        arguments = self.plain(node, 1)
        if arguments is None:
            return None
        count = self.values.value(arguments[0])
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
        names = [self.coordinate(a) for a in axes if a is not None]
        if any(c is None or c.divisor or c.modulus for c in names):
            return None
        given = tuple(c.name for c in names if c is not None)
        found = given or self.common_axes(node)
        if not set(found) <= self.declared.axes:
            self.usage(node, "`disc` measures along axes")
            return None
        return ir.Disc(found, self.values.value(radius)) if found else None

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
        arguments = self.plain(node, 1)
        if arguments is None:
            return None
        if not isinstance(arguments[0], syntax.Entry):
            self.usage(node, "`until` takes an entry of a table")
            return None
        entry = table_entry(arguments[0], self.queries, self.declared, self.faults)
        return None if entry is None else ir.Until(entry.table)

    def rows(self, node: syntax.Application) -> ir.Pattern | None:
        arguments = self.plain(node, 1)
        if arguments is None:
            return None
        if not isinstance(arguments[0], syntax.Reference):
            self.usage(node, "`rows` takes the name of a table")
            return None
        name = syntax.Name(arguments[0].name, arguments[0].span)
        entry = syntax.Entry(name, syntax.Name("row", name.span), name.span)
        found = table_entry(entry, self.queries, self.declared, self.faults)
        return None if found is None else ir.Rows(found.table)

    def coordinate(self, node: syntax.Expression) -> ir.Coordinate | None:
        """`c`, `c / n` or `c % n`, if every region of the rule has c."""
        match node:
            case syntax.Reference(name=name):
                return ir.Coordinate(name) if self.has_coordinate(node, name) else None
            case syntax.Operation(
                operator="/" | "%" as operator, operands=(syntax.Reference(name=name) as base, by)
            ):
                number = self.values.value(by)
                if isinstance(number, Literal) and number.value < 1:
                    self.faults.error(
                        "zero-divisor",
                        f"a coordinate cannot be divided by {number.value}",
                        by.span,
                        "at least 1",
                    )
                if not self.has_coordinate(base, name):
                    return None
                if operator == "/":
                    return ir.Coordinate(name, divisor=number)
                return ir.Coordinate(name, modulus=number)
        self.faults.error(
            "not-a-coordinate",
            "a coordinate is needed here",
            node.span,
            "not a coordinate",
            "write `pos`, `offset`, an axis or a level, or one of these with `/ n` or `% n`",
        )
        return None

    def has_coordinate(self, node: syntax.Reference, name: str) -> bool:
        if name == "offset":
            return True
        if name == "pos":
            return self.need_positions(node)
        if name not in self.declared.axes | self.declared.levels:
            known = {"pos", "offset"} | self.declared.axes | self.declared.levels
            self.faults.error(
                "unknown-coordinate",
                f"there is no coordinate `{name}`",
                node.span,
                "not a coordinate",
                did_you_mean(name, known),
            )
            return False
        for region in (*self.queries, *self.keys):
            if name not in {*region.axes, *region.levels(self.scope)}:
                self.lacks(node, name, region)
                return False
        return True

    def lacks(self, node: syntax.Reference, name: str, region: DeclaredRegion) -> None:
        if name in region.levels(None):
            self.faults.error(
                "level-outside-rule",
                f"`{name}` is one and the same for all tokens of this rule",
                node.span,
                f"the rule relates tokens of one `{name}`",
                "leave it out, or move the rule out of the group",
            )
            return
        has = ["pos", "offset", *(a for a in region.axes if a), *region.levels(self.scope)]
        self.faults.error(
            "missing-coordinate",
            f"`{region.name}` has no coordinate `{name}`",
            node.span,
            "both sides need it",
            f"`{region.name}` has {', '.join(f'`{c}`' for c in has)}",
        )

    def need_positions(self, node: syntax.Application | syntax.Reference) -> bool:
        """Whether every query region has a `pos`; one that stands apart from the keys needs it."""
        placing = {"at", "from", "align"}
        for region in self.queries:
            words = {clause.word for clause in region.node.clauses}
            if region.node.side == "query" and not words & placing:
                self.faults.error(
                    "unplaced-query",
                    f"the queries of `{region.name}` have no `pos`",
                    node.span,
                    "compares `pos`",
                    f"write `query region {region.name} align end` (the last query stands at the "
                    f"last key, as in FlashAttention) or `align start` (the first at the first)",
                )
                return False
        return True


def not_yet(faults: Faults, what: str, node: syntax.Name | syntax.Clause | syntax.Heads) -> None:
    """A construct of the language that this version does not compile."""
    faults.error(
        "not-yet",
        f"{what} is not supported yet",
        node.span,
        "planned for a later version",
    )
