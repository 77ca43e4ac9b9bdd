"""Block shape and token order by the cost model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cmask.runtime.closed_form import ClosedForm, Group, Item, Order, Region
from cmask.runtime.derive.bound import BoundMask, bind
from cmask.runtime.derive.cost import COSTS, USUAL_SHAPE, cost_of, least_cost
from cmask.runtime.derive.sizes import UnboundError
from cmask.runtime.expressions import Literal, Value

# Tiles that `order auto` tries, by the number of axes.  The first is what it stands for where
# sizes are not known: 128 tokens, as a block; 64 tokens serve blocks of 64.
_TILES: dict[int, tuple[tuple[int, ...], ...]] = {
    2: ((8, 16), (16, 8), (4, 32), (8, 8)),
    3: ((4, 4, 8), (2, 8, 8), (8, 4, 4), (4, 4, 4)),
}
_WORTH_IT = 0.97  # of the usual shape's cost; the model is not better than that


def cheapest_shape(bound: BoundMask) -> tuple[int, int]:
    """(block_m, block_n) of the Hopper forward for head dimensions up to 128.

    Another than the usual shape is described only where it could be cheaper.
    """
    return _cheapest(bound)[0]


def settle_orders(form: ClosedForm, names: Mapping[str, Value]) -> ClosedForm:
    """The form with each `order auto` of a grid replaced by the tile of least cost.

    Unchanged where something has no value yet.
    """
    for region in _regions(form.layout):
        tiles = _TILES.get(len(region.axes), ())
        if region.order.kind == "auto" and tiles:
            try:
                form = min(
                    (_with_order(form, region.name, tile) for tile in tiles),
                    key=lambda tried: _cheapest(bind(tried, names))[1],
                )
            except UnboundError:
                return form
    return form


def _cheapest(bound: BoundMask) -> tuple[tuple[int, int], float]:
    usual = bound.descriptor(*USUAL_SHAPE)
    best, least = USUAL_SHAPE, cost_of(usual)
    limit = least * _WORTH_IT
    for shape in COSTS:
        if shape != USUAL_SHAPE and least_cost(usual, shape) < limit:
            cost = cost_of(bound.descriptor(*shape))
            if cost < limit:
                best, least, limit = shape, cost, cost
    return best, least


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
