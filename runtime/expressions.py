"""Integer expressions of sizes, parameters and table entries, and their values.

The same small trees stand in the resolved mask, in the artifact and in the runtime, so that
a size bound in serving code means what it meant in the `.cmask` file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Number = int | float  # a float is always +inf or -inf
Value = Number | Sequence["Value"]


MAX_ITEMS = 1 << 24  # of a list


class ExpressionError(ValueError):
    """An expression has no value: a name is unbound, or the operands do not fit."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A number as written; `inf` is `math.inf`."""

    value: Number


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of a size, a parameter, `seq` or a helper of the sizes block."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or function of `FUNCTIONS` with its operands."""

    function: str
    arguments: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """`start(region)`, `end(region)` or `len(region)` within one group instance [tokens]."""

    what: str
    region: str


@dataclass(frozen=True, slots=True)
class Entry:
    """`table[index]`: an entry per query token (`row`) or per instance of a level."""

    table: str
    index: str


Expr = Literal | Ref | Call | Place | Entry

ZERO = Literal(0)
ONE = Literal(1)


def names_in(expression: Expr) -> frozenset[str]:
    """The names that an expression needs bound."""
    match expression:
        case Ref(name=name):
            return frozenset({name})
        case Entry(table=table):
            return frozenset({table})
        case Call(arguments=arguments):
            return frozenset().union(*(names_in(a) for a in arguments))
        case _:
            return frozenset()


def evaluate(expression: Expr, names: Mapping[str, Value]) -> Value:
    """The value of an expression without places and table entries.

    `/` is floor division, also of negative numbers; lists join by `+` and repeat by `*`.

    >>> evaluate(Call("*", (Call("list", (Literal(3), Literal(4))), Literal(2))), {})
    [3, 4, 3, 4]
    """
    match expression:
        case Literal(value=value):
            return value
        case Ref(name=name):
            if name not in names:
                raise ExpressionError(f"`{name}` has no value")
            return names[name]
        case Call(function=function, arguments=arguments):
            return apply(function, [evaluate(a, names) for a in arguments])
        case Place() | Entry():
            raise ExpressionError("a place or a table entry has a value only inside a layout")


def evaluate_number(expression: Expr, names: Mapping[str, Value]) -> Number:
    """The value of an expression that must be one number."""
    value = evaluate(expression, names)
    if not isinstance(value, (int, float)):
        raise ExpressionError(f"a number is needed, not the list {value}")
    return value


def apply(function: str, operands: Sequence[Value]) -> Value:
    """The value of an operator or function applied to values."""
    if function == "list":
        return list(operands)
    numbers = [x for x in operands if isinstance(x, (int, float))]
    if len(numbers) == len(operands):
        return _apply_numbers(function, numbers)
    match function, operands:
        case "+", [list() as left, list() as right]:
            return left + right
        case ("*", [list() as items, int() as times]) | ("*", [int() as times, list() as items]):
            return _repeat(items, times)
        case (("sum" | "len" | "min" | "max"), [list() as items]):
            return _reduce(function, items)
    raise ExpressionError(f"`{function}` does not apply to {', '.join(map(str, operands))}")


def _repeat(items: list[Value], times: int) -> list[Value]:
    if len(items) * times > MAX_ITEMS:
        raise ExpressionError(f"a list of {len(items) * times:,} entries is too long")
    return items * times


def _reduce(function: str, items: Sequence[Value]) -> Number:
    if function == "len":
        return len(items)
    numbers = [x for x in items if isinstance(x, (int, float))]
    if len(numbers) != len(items):
        raise ExpressionError(f"`{function}` needs a flat list")
    if function == "sum":
        return sum(numbers)
    if not numbers:
        raise ExpressionError(f"`{function}` of an empty list")
    return min(numbers) if function == "min" else max(numbers)


def _apply_numbers(  # noqa: C901 - one case per operator
    function: str, operands: Sequence[Number]
) -> Number:
    match function, operands:
        case "-", [a]:
            return -a
        case "+", [a, b]:
            return a + b
        case "-", [a, b]:
            return a - b
        case "*", [a, b]:
            return 0 if a == 0 or b == 0 else a * b
        case (("/" | "%"), [_, b]) if b == 0 or math.isinf(b):
            raise ExpressionError(f"`{function}` by {b}")
        case (("/" | "%"), [a, _]) if math.isinf(a):
            raise ExpressionError(f"`{function}` of {a}")
        case "/", [a, b]:
            return a // b
        case "%", [a, b]:
            return a % b
        case "min", [_, *_]:
            return min(operands)
        case "max", [_, *_]:
            return max(operands)
    raise ExpressionError(f"`{function}` does not take {len(operands)} numbers")
