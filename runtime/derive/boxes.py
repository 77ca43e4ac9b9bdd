"""Where the slots of a grid in tile order lie in tensors in the caller's order.

A tile of 64 or 128 slots is a box of the grid, which the hardware's tensor copies read and write in
place: then no permutation pass is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import ClassVar

from cmask.runtime.derive.layout import Layout, Segment
from cmask.runtime.derive.order import SLOT_ALIGNMENT, concrete_order
from cmask.runtime.derive.tokens import Side
from cmask.runtime.expressions import Value


@dataclass(frozen=True, slots=True)
class GridRows:
    """One grid in tiles of 64 or 128 slots, and tokens in a line before it or behind it, not both.

    first_slot, stop_slot      the slots of the grid; the line has those before, or from 0 behind
    tiles_down, tiles_across   tiles of one layer of frames
    frames, rows, columns      of the grid [tokens]; frames is 1 for a grid of two axes
    first_token                of the grid
    line_first, line_length    tokens of the line
    tile_frames, tile_rows, tile_columns   tile_frames is 0 for a grid of two axes
    """

    first_slot: int
    stop_slot: int
    tiles_down: int
    tiles_across: int
    frames: int
    rows: int
    columns: int
    first_token: int
    line_first: int
    line_length: int
    tile_frames: int
    tile_rows: int
    tile_columns: int

    NUM_INTEGERS: ClassVar[int] = 13

    @property
    def tile(self) -> tuple[int, ...]:
        """Two or three sizes of a tile."""
        tile = (self.tile_rows, self.tile_columns)
        return (self.tile_frames, *tile) if self.tile_frames else tile

    @property
    def volume(self) -> int:
        """Slots of a tile."""
        return math.prod(self.tile)

    def box(self, slots: int) -> tuple[int, ...]:
        """The box that so many slots are; they divide a tile."""
        first, *rest = self.tile
        return (first * slots // self.volume, *rest)

    @property
    def geometry(self) -> tuple[int, ...]:
        """What a kernel needs at run time: the fields up to `line_length`, in their order."""
        return astuple(self)[:10]

    @staticmethod
    def integers(grid: GridRows | None) -> tuple[int, ...]:
        """The fields; zeros for None."""
        return (0,) * GridRows.NUM_INTEGERS if grid is None else astuple(grid)

    @staticmethod
    def from_integers(integers: Sequence[int]) -> GridRows | None:
        """The inverse of `integers`."""
        return GridRows(*integers) if any(integers) else None


def grid_rows(layout: Layout, names: Mapping[str, Value], side: Side) -> GridRows | None:
    """The one grid of a side; None where slots are not a grid and a line."""
    segments = [s for s in layout.segments if _start(s, side) >= 0]
    orders = [concrete_order(s, names) for s in segments]
    tiled = [i for i, (kind, _) in enumerate(orders) if kind == "tile"]
    if len(tiled) != 1 or any(kind == "mod" for kind, _ in orders):
        return None
    grid, tile = segments[tiled[0]], orders[tiled[0]][1]
    if grid.length == 0 or not _is_box(tile):
        return None
    first_token = _start(grid, side)
    *frames, rows, columns = grid.sizes
    tiles = [-(-n // t) for n, t in zip(grid.sizes, tile, strict=True)]
    total = layout.q_len if side == "q" else layout.kv_len
    behind = total - first_token - grid.length
    if first_token and behind:
        return None
    first_slot = -(-first_token // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
    num_slots = math.prod(tiles) * math.prod(tile)
    return GridRows(
        first_slot=first_slot,
        stop_slot=first_slot + num_slots,
        tiles_down=tiles[-2],
        tiles_across=tiles[-1],
        frames=frames[0] if frames else 1,
        rows=rows,
        columns=columns,
        first_token=first_token,
        line_first=0 if first_token else grid.length,
        line_length=first_token or behind,
        tile_frames=tile[0] if len(tile) == 3 else 0,
        tile_rows=tile[-2],
        tile_columns=tile[-1],
    )


def _start(segment: Segment, side: Side) -> int:
    return segment.q_start if side == "q" else segment.k_start


def _is_box(tile: tuple[int, ...]) -> bool:
    """Whether 64 slots, and 128 where a tile has as many, are boxes that kernels can copy."""
    volume = math.prod(tile)
    return len(tile) in (2, 3) and (volume == 64 or (volume == 128 and tile[0] % 2 == 0))
