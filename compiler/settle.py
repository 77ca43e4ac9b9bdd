"""Closed form -> the same with `order auto` of grids settled, by the cost model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cmask.runtime.closed_form import ClosedForm, Group, Item, Order, Region
from cmask.runtime.derive.bound import bind_all
from cmask.runtime.derive.cost import cheapest
from cmask.runtime.derive.order import USUAL_TILES
from cmask.runtime.derive.sizes import UnboundError
from cmask.runtime.expressions import Literal, Value
from cmask.runtime.variants import variants_of

# Tiles that are tried beside the usual one, by the number of axes: of 128 tokens for blocks of
# 128, of 64 tokens for blocks of 64.
_OTHER_TILES: dict[int, tuple[tuple[int, ...], ...]] = {
    2: ((16, 8), (4, 32), (8, 8)),
    3: ((2, 8, 8), (8, 4, 4), (4, 4, 4)),
}


def settle_orders(form: ClosedForm, names: Mapping[str, Value]) -> ClosedForm:
    """The form with each `order auto` of a grid replaced by the tile of least cost.

    Unchanged where something has no value yet.
    """
    for region in _regions(form.layout):
        rank = len(region.axes)
        if region.order.kind == "auto" and rank in USUAL_TILES:
            tiles = (USUAL_TILES[rank], *_OTHER_TILES[rank])
            try:
                form = min(
                    (_with_order(form, region.name, tile) for tile in tiles),
                    key=lambda tried: _cost(tried, names),
                )
            except UnboundError:
                return form
    return form


def _cost(form: ClosedForm, names: Mapping[str, Value]) -> float:
    """By the cost model, a head of each variant."""
    forms = [variant.form for variant in variants_of(form)]
    return sum(cheapest(bound)[1] for bound in bind_all(forms, names))


def _regions(items: tuple[Item, ...]) -> Iterator[Region]:
    for item in items:
        if isinstance(item, Group):
            yield from _regions(item.items)
        else:
            yield item


def _with_order(form: ClosedForm, name: str, tile: tuple[int, ...]) -> ClosedForm:
    order = Order("tile", tuple(Literal(n) for n in tile))

    def changed(items: tuple[Item, ...]) -> tuple[Item, ...]:
        return tuple(
            replace(item, items=changed(item.items))
            if isinstance(item, Group)
            else replace(item, order=order)
            if item.name == name
            else item
            for item in items
        )

    return replace(form, layout=changed(form.layout))
