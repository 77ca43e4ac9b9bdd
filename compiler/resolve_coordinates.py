"""Coordinates as written -> coordinates that every region of a rule has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cmask.compiler import ir
from cmask.compiler.declared import Declared, DeclaredRegion
from cmask.compiler.faults import Faults, did_you_mean
from cmask.compiler.resolve_values import Values
from cmask.grammar import syntax
from cmask.runtime.expressions import Literal


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Resolves the coordinates that one rule compares."""

    declared: Declared
    faults: Faults
    scope: str | None
    queries: Sequence[DeclaredRegion]
    keys: Sequence[DeclaredRegion]

    @property
    def values(self) -> Values:
        """Numbers in a pattern: parameters and sizes."""
        return Values(self.declared, self.faults, {*self.declared.params, *self.declared.sizes})

    def coordinate(self, node: syntax.Expression) -> ir.Coordinate | None:
        """`c`, `c / n` or `c % n`, if every region of the rule has c."""
        match node:
            case syntax.Reference(name=name):
                return ir.Coordinate(name) if self.has_coordinate(node, name) else None
            case syntax.Operation(
                operator="/" | "%" as operator, operands=(syntax.Reference(name=name) as base, by)
            ):
                return self.divided(base, name, operator, by)
        several = isinstance(node, syntax.Operation) and node.operator in ("/", "%")
        self.faults.error(
            "not-a-coordinate",
            "a coordinate is needed here",
            node.span,
            "more than one operator" if several else "not a coordinate",
            "write `pos`, `offset`, an axis or a level, or one of these with `/ n` or `% n`",
        )
        return None

    def divided(
        self, base: syntax.Reference, name: str, operator: str, by: syntax.Expression
    ) -> ir.Coordinate | None:
        number = self.values.number(by)
        if isinstance(number, Literal) and not 1 <= number.value < math.inf:
            self.faults.error(
                "bad-divisor",
                f"a coordinate cannot be divided by {number.value}",
                by.span,
                "not a positive number",
                f"write `{name} {operator} 2`, or another whole number of at least 1",
            )
        if not self.has_coordinate(base, name):
            return None
        if operator == "/":
            return ir.Coordinate(name, divisor=number)
        return ir.Coordinate(name, modulus=number)

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
            if name not in region.coordinates(self.scope):
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
        names = ("pos", "offset", *sorted(self.declared.axes | self.declared.levels))
        regions = (*self.queries, *self.keys)
        shared = [n for n in names if all(n in r.coordinates(self.scope) for r in regions)]
        self.faults.error(
            "missing-coordinate",
            f"`{region.name}` has no coordinate `{name}`",
            node.span,
            "both sides need it",
            f"compare what all of them have: {', '.join(f'`{c}`' for c in shared)}",
        )

    def need_positions(self, node: syntax.Expression) -> bool:
        """Whether every query region has a `pos`; one that stands apart from the keys needs it."""
        for region in self.queries:
            if region.node.side == "query" and not region.is_placed:
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
