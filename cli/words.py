"""Closed forms in words: what a clause asks of a key, as a line of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import assert_never

from cmask.runtime.closed_form import (
    Clause,
    Disc,
    End,
    Limit,
    RowTable,
    ShiftedWindow,
    Test,
    Tree,
)
from cmask.runtime.expressions import (
    ONE,
    ZERO,
    Call,
    Entry,
    Expr,
    ExpressionError,
    Literal,
    Place,
    Ref,
    Value,
    evaluate,
)

_INFIX = ("+", "-", "*", "/", "%")


def clause_in_words(clause: Clause, names: Mapping[str, Value] | None = None) -> str:
    """A clause as the conditions that a visible key meets; `names` puts numbers for names.

    >>> end = End(coordinate="pos", offset=Literal(1))
    >>> clause_in_words(Clause("sample", ("a",), ("b",), (Limit("pos", None, end),)))
    'same sample, pos(k) <= pos(q)'
    """
    names = names or {}
    parts = [] if clause.scope is None else [f"same {clause.scope}"]
    parts += [text for test in clause.tests for text in _test(test, names)]
    return ", ".join(dict.fromkeys(parts)) or "always"


def expression_in_words(expression: Expr, names: Mapping[str, Value] | None = None) -> str:
    """An expression as people write it.

    >>> expression_in_words(Call("+", (Ref("block"), Literal(1))), {})
    'block + 1'
    """
    try:
        return _number(evaluate(expression, names or {}))
    except ExpressionError:
        pass
    match expression:
        case Literal(value=value):
            return _number(value)
        case Ref(name=name):
            return name
        case Call(function="-", arguments=(argument,)):
            return f"-{_operand(argument, names)}"
        case Call(function=function, arguments=(left, right)) if function in _INFIX:
            return f"{_operand(left, names)} {function} {_operand(right, names)}"
        case Call(function=function, arguments=arguments):
            inner = ", ".join(expression_in_words(a, names) for a in arguments)
            return f"[{inner}]" if function == "list" else f"{function}({inner})"
        case Place(what=what, region=region):
            return f"{what}({region})"
        case Entry(table=table, index=index):
            return f"{table}[{index}]"
        case _:
            assert_never(expression)


def _number(value: Value) -> str:
    return str(value) if isinstance(value, (int, float)) else str(list(value))


def _operand(expression: Expr, names: Mapping[str, Value] | None) -> str:
    text = expression_in_words(expression, names)
    return f"({text})" if " " in text else text


def _test(test: Test, names: Mapping[str, Value]) -> Iterator[str]:
    match test:
        case Limit(coordinate=coordinate, low=low, high=high, modulus=modulus):
            key = f"{coordinate}(k)"
            if modulus is not None:
                key = f"{key} % {expression_in_words(modulus, names)}"
            yield from _limit(key, low, high, names)
        case ShiftedWindow(axis=axis, left=left, right=right, stride=stride):
            before, after = expression_in_words(left, names), expression_in_words(right, names)
            shared = expression_in_words(stride, names)
            shared = "" if shared == "1" else f", shared by {shared} neighbours"
            yield (
                f"{axis}(k) from {before} before to {after} behind {axis}(q), "
                f"moved at the border{shared}"
            )
        case Disc(axes=axes, radius=radius):
            squares = " + ".join(f"({a}(k) - {a}(q))²" for a in axes)
            yield f"{squares} < {expression_in_words(radius, names)}²"
        case RowTable(table=table):
            yield f"k in the intervals of {table}[q]"
        case Tree(table=table):
            yield f"offset(k) is that of q or of an ancestor by {table}"
        case _:
            assert_never(test)


def _limit(
    key: str, low: End | None, high: End | None, names: Mapping[str, Value]
) -> Iterator[str]:
    """Both ends of a limit; two that leave one value become `=`."""
    low, high = _unless_open(low, names), _unless_open(high, names)
    ends = [end for end in (low, high) if end is not None]
    if ends and all(_distance(end) is not None and end.divisor != ONE for end in ends):
        key = f"⌊{key} / {expression_in_words(ends[0].divisor, names)}⌋"
        low, high = _per_block(low), _per_block(high)
    below = None if low is None else _end(low, names, 0)
    upto = None if high is None else _end(high, names, -1)
    if below is not None and below == upto:
        yield f"{key} = {below}"
        return
    if below is not None:
        yield f"{key} >= {below}"
    if high is not None and upto is not None:
        strictly = _end(high, names, 0)
        yield f"{key} < {strictly}" if len(strictly) <= len(upto) else f"{key} <= {upto}"


def _unless_open(end: End | None, names: Mapping[str, Value]) -> End | None:
    """An end; None where it is infinitely far."""
    if end is None or expression_in_words(end.offset, names) in ("inf", "-inf"):
        return None
    return end


def _distance(end: End) -> Expr | None:
    """The d of an end n · (⌊c(q) / n⌋ + d), which compares blocks of n; None for other ends."""
    if end.coordinate is None or end.scale != end.divisor:
        return None
    match end.offset:
        case Literal(value=0):
            return ZERO
        case Call(function="*", arguments=(distance, size)) if size == end.divisor:
            return distance
        case Literal(value=int() as offset) if isinstance(end.divisor, Literal):
            n = end.divisor.value
            return Literal(offset // n) if n and offset % n == 0 else None
    return None


def _per_block(end: End | None) -> End | None:
    """An end of c / n instead of c: its offset counts blocks."""
    if end is None:
        return None
    return replace(end, scale=ONE, offset=_distance(end) or ZERO)


def _end(end: End, names: Mapping[str, Value], more: int) -> str:
    """An end as text; `more` is 0 or -1, added to it."""
    text = _without_one(end.offset, names) if more else expression_in_words(end.offset, names)
    base = _base(end, names)
    if base is None:
        return text
    if text == "0":
        return base
    return f"{base} - {text[1:]}" if text.startswith("-") else f"{base} + {text}"


def _without_one(offset: Expr, names: Mapping[str, Value]) -> str:
    """`offset - 1`: the compiler's own `+ 1` of an inclusive end disappears again."""
    match offset:
        case Call(function="+", arguments=(inner, Literal(value=1))):
            return expression_in_words(inner, names)
    return expression_in_words(Call("-", (offset, ONE)), names)


def _base(end: End, names: Mapping[str, Value]) -> str | None:
    """The part of an end that depends on the query."""
    if end.table is not None:
        return f"{end.table}[q]"
    if end.coordinate is None:
        return None
    text = f"{end.coordinate}(q)"
    if end.modulus is not None:
        text = f"{text} % {expression_in_words(end.modulus, names)}"
    divisor = expression_in_words(end.divisor, names)
    if divisor != "1":
        text = f"⌊{text} / {divisor}⌋"
    scale = expression_in_words(end.scale, names)
    return text if scale == "1" else f"{scale} · {text}"
