"""Expressions of sizes as one instance of the layout sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cmask.runtime.derive.sizes import BindError, UnboundError, at_instance
from cmask.runtime.expressions import (
    Call,
    Entry,
    Expr,
    ExpressionError,
    Literal,
    Place,
    Ref,
    Value,
    apply,
)


def value_in(
    expression: Expr,
    names: Mapping[str, Value],
    indices: Sequence[int],
    stars: Mapping[str, int],
) -> Value:
    """The value of an expression of sizes as seen from one instance.

    A size of an outer group has an entry for the outer instance only: `stars` tells its depth.
    """
    match expression:
        case Literal(value=value):
            return value
        case Ref(name=name):
            if name not in names:
                raise UnboundError(f"`{name}` has no value: bind({name}=...)")
            try:
                depth = stars.get(name, len(indices))
                return at_instance(names[name], indices[:depth], depth)
            except IndexError:
                raise BindError(f"`{name}` has too few entries: {names[name]}") from None
        case Call(function=function, arguments=arguments):
            try:
                return apply(function, [value_in(a, names, indices, stars) for a in arguments])
            except ExpressionError as error:
                raise BindError(str(error)) from None
        case Place() | Entry():
            raise BindError("start, end, len and table entries stand only behind `at` and `from`")
