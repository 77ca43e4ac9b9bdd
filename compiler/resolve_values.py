"""Expressions as written -> expressions of sizes, parameters, places and table entries."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from cmask.compiler.declared import Declared, DeclaredRegion
from cmask.compiler.faults import Faults, did_you_mean
from cmask.compiler.resolve_tables import table_entry
from cmask.grammar import syntax
from cmask.runtime.expressions import ZERO, Call, Expr, Literal, Number, Place, Ref

_FUNCTIONS = {
    "min": "min(a, b)",
    "max": "max(a, b)",
    "sum": "sum(list)",
    "len": "len(list)",
}
_NOTHING = Literal(1)  # stands for an expression that is already reported


@dataclass(frozen=True, slots=True)
class Values:
    """Resolves expressions where certain names may be used.

    names: sizes, parameters and helpers that have a value here
    around: the region whose placement this is: places and table entries are allowed then
    """

    declared: Declared
    faults: Faults
    names: Collection[str]
    around: DeclaredRegion | None = None

    def value(self, node: syntax.Expression | syntax.Keyword) -> Expr:
        """The expression; what cannot be one is reported."""
        match node:
            case syntax.Number(value=value):
                return Literal(value)
            case syntax.Reference(name=name):
                return self.reference(node, name)
            case syntax.Operation(operator=operator, operands=operands):
                call = Call(operator, tuple(self.value(o) for o in operands))
                if operator in ("/", "%") and call.arguments[1:] == (ZERO,):
                    self.faults.error(
                        "bad-divisor", "nothing can be divided by 0", operands[1].span, "zero"
                    )
                return fold(call)
            case syntax.Items(items=items):
                return Call("list", tuple(self.value(i) for i in items))
            case syntax.Entry():
                return self.entry(node)
            case syntax.Application():
                return self.application(node)
            case syntax.Keyword(name=name):
                self.faults.error(
                    "unexpected-keyword",
                    f"`{name.text}=` has no meaning here",
                    name.span,
                    "a value is needed",
                )
                return _NOTHING

    def number(self, node: syntax.Expression | syntax.Keyword) -> Expr:
        """The expression, where a list can have no meaning."""
        value = self.value(node)
        if nesting(value):
            self.faults.error(
                "list-for-number",
                "a list stands where one number is needed",
                node.span,
                "a list",
                "write a number, or `sum(...)`, `max(...)`, `len(...)` of the list",
            )
            return _NOTHING
        return value

    def size(self, node: syntax.Expression) -> Expr:
        """The expression, for the size of a region or an axis."""
        return self.check_size(node, self.number(node))

    def sizes(self, node: syntax.Expression) -> Expr:
        """The expression, for the sizes of all instances of a region or an axis."""
        if isinstance(node, syntax.Items):
            return Call("list", tuple(self.sizes(i) for i in node.items))
        return self.check_size(node, self.value(node))

    def check_size(self, node: syntax.Expression, value: Expr) -> Expr:
        """The value; one that no size can have is reported."""
        if isinstance(value, Literal) and not 0 <= value.value < math.inf:
            self.faults.error(
                "bad-size",
                f"{value.value} is no number of tokens",
                node.span,
                "not a size",
                "sizes are whole numbers of at least 0",
            )
        return value

    def reference(self, node: syntax.Reference, name: str) -> Expr:
        if name in self.names:
            return Ref(name)
        kind = self.declared.kinds.get(name)
        if name in ("pos", "offset", "row"):
            self.faults.error(
                "no-value",
                f"`{name}` differs from token to token",
                node.span,
                "has no one value",
                "write a number, a parameter or a size",
            )
        elif name == "seq":
            self.faults.error(
                "no-value",
                "`seq` has a value only in `sizes` and in the brackets of a region",
                node.span,
                "unknown here",
                "declare a parameter or a size, and use that",
            )
        elif kind is None:
            self.faults.error(
                "unknown-name",
                f"`{name}` has no value",
                node.span,
                "not declared",
                did_you_mean(name, self.names),
            )
        else:
            self.faults.error(
                "no-value",
                f"the {kind} `{name}` has no value here",
                node.span,
                "cannot be used",
                did_you_mean(name, self.names),
            )
        return _NOTHING

    def application(self, node: syntax.Application) -> Expr:
        name = node.name.text
        if name in ("start", "end") or (name == "len" and self.around is not None):
            return self.place(node)
        if name not in _FUNCTIONS:
            known = [*_FUNCTIONS, *(("start", "end") if self.around else ())]
            self.faults.error(
                "unknown-function",
                f"there is no function `{name}`",
                node.name.span,
                "not a function",
                did_you_mean(name, known),
            )
            return _NOTHING
        one = name in ("sum", "len")
        if not node.arguments or (one and len(node.arguments) > 1):
            self.faults.error(
                "bad-argument",
                f"`{name}` takes {'one list' if one else 'numbers or a list'}, "
                f"not {len(node.arguments)} arguments",
                node.span,
                "here",
                f"write `{_FUNCTIONS[name]}`",
            )
            return _NOTHING
        return Call(name, tuple(self.value(a) for a in node.arguments))

    def place(self, node: syntax.Application) -> Expr:
        """`start(region)`, `end(region)`, `len(region)` of a region in the same group."""
        what = node.name.text
        if self.around is None:
            self.faults.error(
                "misplaced-place",
                f"`{what}` of a region is known only behind `at` and `from`",
                node.span,
                "here",
            )
            return _NOTHING
        argument = node.arguments[0] if len(node.arguments) == 1 else None
        if not isinstance(argument, syntax.Reference):
            self.faults.error(
                "bad-argument",
                f"`{what}` takes a region",
                node.span,
                "here",
                f"write `{what}(prompt)`",
            )
            return _NOTHING
        siblings = {r.name: r for r in self.declared.regions.values() if r.path == self.around.path}
        region = siblings.get(argument.name)
        others = siblings.keys() - {self.around.name}
        if region is None:
            self.faults.error(
                "not-in-group",
                f"`{argument.name}` is no region of the group of `{self.around.name}`",
                argument.span,
                "not beside it",
                did_you_mean(argument.name, others) or "place it by a number: `from 0`",
            )
            return _NOTHING
        if what != "len" and region.node.side == "query" and not region.is_placed:
            self.faults.error(
                "unplaced-query",
                f"the queries of `{region.name}` have no `pos`",
                argument.span,
                f"has no {what}",
                f"write `query region {region.name} align end`, or `align start`",
            )
        elif what != "len" and _is_scattered(region):
            self.faults.error(
                "scattered-place",
                f"a table places each token of `{region.name}`",
                argument.span,
                f"has no one {what}",
                "place it by another region, or by a number",
            )
        elif what != "len" and region.node.starred:
            self.faults.error(
                "starred-place",
                f"`{region.name}` has many instances and no single {what}",
                argument.span,
                "starred",
                f"name a region without `*`, or use `len({region.name})`, all its tokens",
            )
        return Place(what, region.name)

    def entry(self, node: syntax.Entry) -> Expr:
        if self.around is None:
            self.faults.error(
                "misplaced-entry",
                "a table entry has a value only in `until`, `at` and `from`",
                node.span,
                "here",
            )
            return _NOTHING
        entry = table_entry(node, (self.around,), self.declared, self.faults)
        if entry is None:
            return _NOTHING
        if entry.index == "row" and not any(c.value is node for c in self.around.node.clauses):
            self.faults.error(
                "row-in-expression",
                "an entry per query can only stand alone",
                node.span,
                "in a larger expression",
                f"write `at {entry.table}[row]`, and put the rest into the table",
            )
        if entry.index == "row" and self.around.node.side == "key":
            self.faults.error(
                "row-placement",
                f"`{self.around.name}` has no queries and so no rows",
                node.span,
                "an entry per query",
                f"write `region {self.around.name}`, or index the table by a level",
            )
        return entry


def _is_scattered(region: DeclaredRegion) -> bool:
    """Whether a table with an entry per row places its tokens."""
    return any(
        isinstance(clause.value, syntax.Entry) and clause.value.index.text == "row"
        for clause in region.node.clauses
    )


def nesting(expression: Expr) -> int:
    """How deep lists are nested at least in an expression, whatever its names are bound to."""
    match expression:
        case Call(function="list", arguments=arguments):
            return 1 + max(map(nesting, arguments), default=0)
        case Call(function="+" | "*", arguments=arguments):
            return max(map(nesting, arguments))
        case _:
            return 0


def fold(expression: Call) -> Expr:
    """A sum or product of finite literals as one literal, so that `window(-1, 5)` is plain."""
    values = [a.value for a in expression.arguments if isinstance(a, Literal)]
    if len(values) != len(expression.arguments):
        return expression
    folded = _folded(expression.function, values)
    return expression if folded is None else Literal(folded)


def _folded(function: str, values: list[Number]) -> Number | None:
    match function, values:
        case "-", [a]:
            return -a
        case "+", [a, b] if math.isfinite(a) and math.isfinite(b):
            return a + b
        case "-", [a, b] if math.isfinite(a) and math.isfinite(b):
            return a - b
        case "*", [a, b] if math.isfinite(a) and math.isfinite(b):
            return a * b
    return None
