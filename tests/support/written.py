"""A resolved mask as the text that a person would write."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from cmask.compiler import ir
from cmask.runtime.closed_form import Item, Placement, Region
from cmask.runtime.expressions import Call, Entry, Expr, Literal, Place, Ref


def written(mask: ir.ResolvedMask) -> str:
    """The mask in the language, each rule inside its scope."""
    params = (f"param {n}" + (f" = {number(e)}" if e else "") for n, e in mask.params)
    tables = (f"table {t.name}[{t.index}]" for t in mask.tables)
    sizes = (f"{name} = {number(e)}" for name, e in mask.sizes)
    body = [*params, *tables, *_items(mask.layout, mask), *_rules(mask, None)]
    return "\n".join([f"mask {mask.name} {{", *body, "sizes {", *sizes, "}", "}"])


def _items(items: Sequence[Item], mask: ir.ResolvedMask) -> Iterator[str]:
    for item in items:
        if isinstance(item, Region):
            yield _region(item)
            continue
        yield f"group {item.name}{_star(item)} {{"
        yield from _items(item.items, mask)
        yield from _rules(mask, item.name)
        yield "}"


def _star(item: Item) -> str:
    if item.level is None:
        return ""
    return "*" if item.level == item.name else f"* as {item.level}"


def _region(region: Region) -> str:
    side = "" if region.side == "both" else f"{region.side} "
    axes = [a.name if a.size is None else number(a.size) for a in region.axes]
    axes += [number(region.size)] if region.size is not None else []
    shape = f"[{', '.join(map(str, axes))}]" if axes else ""
    place = _placement(region.placement) if region.placement else ""
    sizes = ", ".join(number(size) for size in region.order.sizes)
    order = f" order {region.order.kind}" + (f"({sizes})" if sizes else "")
    order = "" if region.order.kind == "raster" else order
    return f"{side}region {region.name}{_star(region)}{shape}{order}{place}"


def _placement(placement: Placement) -> str:
    if placement.kind == "align_end":
        return " align end"
    return f" {placement.kind} {number(placement.position)}"


def _rules(mask: ir.ResolvedMask, scope: str | None) -> Iterator[str]:
    indices = {table.name: table.index for table in mask.tables}
    for r in mask.rules:
        if r.scope == scope:
            queries, keys = ", ".join(r.queries), ", ".join(r.keys)
            rule = f"{queries} sees {keys}: {pattern(r.pattern, indices)}"
            yield rule if r.heads is None else f"heads {r.heads[0]}..{r.heads[1] - 1} {{ {rule} }}"


def number(expression: Expr) -> str:
    """An expression; operations stand in parentheses."""
    match expression:
        case Literal(value=value):
            return str(value) if math.isfinite(value) else ("inf" if value > 0 else "-inf")
        case Ref(name=name):
            return name
        case Place(what=what, region=region):
            return f"{what}({region})"
        case Entry(table=table, index=index):
            return f"{table}[{index}]"
        case Call(function="list", arguments=arguments):
            return f"[{', '.join(map(number, arguments))}]"
        case Call(function=sign, arguments=(left, right)) if not sign.isalpha():
            return f"({number(left)} {sign} {number(right)})"
        case Call(function="-", arguments=(only,)):
            return f"(-{number(only)})"
        case Call(function=name, arguments=arguments):
            return f"{name}({', '.join(map(number, arguments))})"
        case _:
            assert_never(expression)


def pattern(  # noqa: C901 - one case per pattern
    node: ir.Pattern, indices: Mapping[str, str]
) -> str:
    """A pattern; combinations stand in parentheses.  indices: what each table is indexed by."""
    match node:
        case ir.All():
            return "all"
        case ir.Same(coordinate=c):
            return f"same({coordinate(c)})"
        case ir.Before(coordinate=c):
            return f"before({coordinate(c)})"
        case ir.Upto(coordinate=c):
            return f"upto({coordinate(c)})"
        case ir.Window(coordinate=c, left=left, right=right):
            return f"window({coordinate(c)}, {number(left)}, {number(right)})"
        case ir.And(parts=parts):
            return f"({' & '.join(pattern(p, indices) for p in parts)})"
        case ir.Or(parts=parts):
            return f"({' | '.join(pattern(p, indices) for p in parts)})"
        case ir.First(count=count):
            return f"first({number(count)})"
        case ir.Disc(axes=axes, radius=radius):
            return f"disc({', '.join(axes)}, {number(radius)})"
        case ir.ShiftedWindow(axis=axis, left=left, right=right, stride=stride):
            ends = f"{axis}, {number(left)}, {number(right)}"
            return f"window({ends}, edge=shift, stride={number(stride)})"
        case ir.Until(table=table):
            return f"until({table}[{indices[table]}])"
        case ir.Rows(table=table):
            return f"rows({table})"
        case ir.Tree(table=table):
            return f"tree({table}[row])"
        case _:
            assert_never(node)


def coordinate(c: ir.Coordinate) -> str:
    """A coordinate, divided or not."""
    if c.divisor is not None:
        return f"{c.name} / {number(c.divisor)}"
    if c.modulus is not None:
        return f"{c.name} % {number(c.modulus)}"
    return c.name
