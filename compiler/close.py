"""Rules -> closed form: every pattern as interval tests on key coordinates, `|` as clauses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import assert_never

from cmask.compiler import ir
from cmask.runtime.closed_form import (
    Clause,
    ClosedForm,
    Disc,
    End,
    Limit,
    RowTable,
    ShiftedWindow,
    Test,
    Tree,
)
from cmask.runtime.expressions import ONE, ZERO, Call, Expr, Literal


def close(mask: ir.ResolvedMask) -> ClosedForm:
    """The mask as data without any size: see `cmask.runtime.closed_form`."""
    clauses = tuple(
        Clause(rule.scope, rule.queries, rule.keys, tests, number, rule.heads)
        for number, rule in enumerate(mask.rules)
        for tests in alternatives(rule.pattern)
    )
    return ClosedForm(
        name=mask.name,
        params=mask.params,
        tables=mask.tables,
        layout=mask.layout,
        clauses=clauses,
        sizes=mask.sizes,
        rule_texts=tuple(rule.text for rule in mask.rules),
    )


def alternatives(pattern: ir.Pattern) -> Iterator[tuple[Test, ...]]:
    """The pattern in disjunctive normal form: any one alternative, all of its tests."""
    match pattern:
        case ir.And(parts=parts):
            for choice in itertools.product(*(tuple(alternatives(p)) for p in parts)):
                yield tuple(itertools.chain.from_iterable(choice))
        case ir.Or(parts=parts):
            for part in parts:
                yield from alternatives(part)
        case ir.All():
            yield ()
        case _:
            yield (test_of(pattern),)


def test_of(pattern: ir.Pattern) -> Test:  # noqa: C901 - one case per pattern
    """The interval test that a single pattern is."""
    match pattern:
        case ir.Same(coordinate=c):
            return _limit(c, low=0, high=0)
        case ir.Before(coordinate=c):
            return _limit(c, low=None, high=-1)
        case ir.Upto(coordinate=c):
            return _limit(c, low=None, high=0)
        case ir.Window(coordinate=c, left=left, right=right):
            return _limit(c, low=_negative(left), high=right)
        case ir.ShiftedWindow(axis=axis, left=left, right=right, stride=stride):
            return ShiftedWindow(axis, left, right, stride)
        case ir.First(count=count):
            return Limit("offset", low=None, high=End(offset=count))
        case ir.Disc(axes=axes, radius=radius):
            return Disc(axes, radius)
        case ir.Until(table=table):
            return Limit("pos", low=None, high=End(table=table))
        case ir.Rows(table=table):
            return RowTable(table)
        case ir.Tree(table=table):
            return Tree(table)
        case ir.All() | ir.And() | ir.Or():
            raise AssertionError("a combination is not a single test")
        case _:
            assert_never(pattern)


def _limit(c: ir.Coordinate, low: int | Expr | None, high: int | Expr | None) -> Limit:
    """Low <= c(k) - c(q) <= high, both inclusive, as ends of the undivided key coordinate.

    With c = x / n: c(k) >= c(q) + d exactly when x(k) >= n * (floor(x(q) / n) + d).
    """
    return Limit(
        coordinate=c.name,
        low=None if low is None else _end(c, _expr(low)),
        high=None if high is None else _end(c, _add(_expr(high), ONE)),
        modulus=c.modulus,
    )


def _end(c: ir.Coordinate, distance: Expr) -> End:
    n = c.divisor or ONE
    return End(
        coordinate=c.name,
        modulus=c.modulus,
        divisor=n,
        scale=n,
        offset=_multiply(distance, n),
    )


def _expr(value: int | Expr) -> Expr:
    return Literal(value) if isinstance(value, int) else value


def _negative(value: Expr) -> Expr:
    return Literal(-value.value) if isinstance(value, Literal) else Call("-", (value,))


def _add(left: Expr, right: Literal) -> Expr:
    return (
        Literal(left.value + right.value) if isinstance(left, Literal) else Call("+", (left, right))
    )


def _multiply(left: Expr, right: Expr) -> Expr:
    if left == ZERO or right == ONE:
        return left
    if isinstance(left, Literal) and isinstance(right, Literal):
        return Literal(left.value * right.value)
    return Call("*", (left, right))
