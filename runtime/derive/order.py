"""Token order: the slots that kernels work in, when it is not the caller's order.

A slot holds a token or is padding (-1).  A grid in tile order has its tiles one after another,
each padded to its whole volume, so that a kernel block of that volume is one box of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from cmask.runtime.closed_form import Order
from cmask.runtime.derive.clauses import number
from cmask.runtime.derive.layout import MAX_TOKENS, Layout, Segment
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.derive.tokens import Array, Side
from cmask.runtime.expressions import Literal, Value

USUAL_TILES = {2: (8, 16), 3: (4, 4, 8)}  # by the number of axes: 128 tokens, as a block
SLOT_ALIGNMENT = 128  # tiles begin at a multiple of the largest kernel block [slots]


def slots_of(layout: Layout, names: Mapping[str, Value], side: Side) -> Array | None:
    """int64[slots]: the token of each slot, or -1; None when slots are the tokens themselves."""
    if all(_concrete(s).kind == "raster" for s in layout.segments):
        return None
    pieces: list[Array] = []
    total = 0
    for segment in layout.segments:
        start = segment.q_start if side == "q" else segment.k_start
        if start < 0:
            continue
        local = _local_slots(segment, names)
        if _concrete(segment).kind == "tile":
            padding = -total % SLOT_ALIGNMENT
            pieces.append(np.full(padding, -1, np.int64))
            total += padding
        pieces.append(np.where(local < 0, -1, local + start))
        total += len(local)
        if total > MAX_TOKENS:
            raise BindError(
                f"tiles pad the tokens beyond {MAX_TOKENS:,} slots: at `{segment.region.name}`"
            )
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


def _concrete(segment: Segment) -> Order:
    """What `auto` stands for where the compiler knew no sizes: tiles of 128 tokens on grids."""
    order = segment.region.order
    if order.kind != "auto":
        return order
    shape = USUAL_TILES.get(len(segment.region.axes))
    return Order() if shape is None else Order("tile", tuple(Literal(n) for n in shape))


def concrete_order(segment: Segment, names: Mapping[str, Value]) -> tuple[str, tuple[int, ...]]:
    """The kind of a segment's order ("raster", "tile" or "mod") and its sizes.

    Raises `BindError` for sizes below 1.
    """
    order = _concrete(segment)
    sizes = [number(size, names) for size in order.sizes]
    if any(math.isinf(n) or n < 1 for n in sizes):
        raise BindError(f"the order of `{segment.region.name}` needs sizes of at least 1")
    return order.kind, tuple(int(min(n, MAX_TOKENS)) for n in sizes)


def _local_slots(segment: Segment, names: Mapping[str, Value]) -> Array:
    """int64[slots]: offsets within the region instance, or -1."""
    offsets = np.arange(segment.length, dtype=np.int64)
    kind, sizes = concrete_order(segment, names)
    if kind == "raster" or segment.length == 0:
        return offsets
    if kind == "mod":
        return np.argsort(offsets % sizes[0], kind="stable")
    return _tile_slots(segment.sizes, sizes)


def _tile_slots(grid: tuple[int, ...], tile: tuple[int, ...]) -> Array:
    """Raster offsets in tile order, -1 where a tile hangs over the edge."""
    counts = [-(-n // t) for n, t in zip(grid, tile, strict=True)]
    padded = [c * t for c, t in zip(counts, tile, strict=True)]
    if math.prod(padded) > MAX_TOKENS:
        raise BindError(
            f"tiles of {' × '.join(map(str, tile))} pad a grid beyond {MAX_TOKENS:,} slots"
        )
    offsets = np.full(padded, -1, np.int64)
    offsets[tuple(slice(n) for n in grid)] = np.arange(math.prod(grid)).reshape(grid)
    split = offsets.reshape([x for c, t in zip(counts, tile, strict=True) for x in (c, t)])
    rank = len(grid)
    return split.transpose([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]).reshape(-1)
