"""Where kernels read a grid in the caller's order is where its slots are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmask.runtime import load
from cmask.runtime.derive.boxes import GridRows
from cmask.runtime.derive.tokens import Array
from support.compiled import compiled, planned

TILES = {
    2: [(8, 16), (16, 8), (4, 32), (8, 8), (2, 64), (4, 16)],
    3: [(4, 4, 8), (2, 8, 8), (4, 4, 4)],
}


def tokens_read(grid: GridRows, num_slots: int, unit: int) -> Array:
    """The token of each slot, or -1, as the Hopper forward finds it, `unit` slots at a time."""
    tokens = np.full(num_slots, -1, np.int64)
    box = grid.box(unit)
    units = grid.volume // unit
    for slot in range(0, num_slots, unit):
        if grid.first_slot <= slot < grid.stop_slot:
            read = _box(grid, (slot - grid.first_slot) // unit, units, box)
        else:
            line = slot - grid.stop_slot if slot >= grid.stop_slot else slot
            at = line + np.arange(unit)
            read = np.where(at < grid.line_length, grid.line_first + at, -1)
        tokens[slot : slot + unit] = read[: num_slots - slot]
    return tokens


def _box(grid: GridRows, index: int, units: int, box: tuple[int, ...]) -> Array:
    tile, part = divmod(index, units)
    frame_tile, in_frame = divmod(tile, grid.tiles_down * grid.tiles_across)
    down, across = divmod(in_frame, grid.tiles_across)
    depth, rows, columns = (1, *box) if len(box) == 2 else box
    frame, row = frame_tile * (grid.tile_frames or 1), down * grid.tile_rows
    if len(box) == 2:
        row += part * rows
    else:
        frame += part * depth
    f = (frame + np.arange(depth))[:, None, None]
    y = (row + np.arange(rows))[None, :, None]
    x = (across * grid.tile_columns + np.arange(columns))[None, None, :]
    inside = (f < grid.frames) & (y < grid.rows) & (x < grid.columns)
    token = grid.first_token + (f * grid.rows + y) * grid.columns + x
    read: Array = np.where(inside, token, -1).reshape(-1)
    return read


@settings(deadline=None, max_examples=60)
@given(
    axes=st.sampled_from([2, 3]),
    choice=st.integers(0, 5),
    sizes=st.lists(st.integers(1, 40), min_size=3, max_size=3),
    text=st.integers(0, 300),
    is_behind=st.booleans(),
)
def test_slots_are_read_where_they_lie(
    axes: int, choice: int, sizes: list[int], text: int, is_behind: bool
) -> None:
    tile = TILES[axes][choice % len(TILES[axes])]
    names = ("t", "h", "w")[-axes:]
    image = f"region image[{', '.join(names)}] order tile({', '.join(map(str, tile))})"
    regions = f"{image}; region text" if is_behind else f"region text; {image}"
    given_sizes = dict(zip(names, sizes, strict=False))
    plan = planned(f"{regions}; all sees all: all", text=text, **given_sizes)
    grid, slots = plan.grid_rows, plan.bound.q_slots
    assert grid is not None
    assert slots is not None
    units = (64,) if grid.volume == 64 else (64, 128)
    for unit in units:
        assert np.array_equal(tokens_read(grid, len(slots), unit), slots)
    assert GridRows.from_integers(GridRows.integers(grid)) == grid


@pytest.mark.parametrize(
    ("body", "sizes"),
    [
        # two grids
        ("region a[h, w] order tile(8, 16); region b[h, w] order tile(8, 16)", "hw"),
        # a line on either side
        ("region text; region a[h, w] order tile(8, 16); region rest", "hwtext rest"),
        # no box of 128 slots, none of 64
        ("region a[h, w] order tile(16, 16)", "hw"),
        ("region a[h, w] order tile(1, 128)", "hw"),
        ("region text order mod(4); region a[h, w] order tile(8, 16)", "hwtext"),
        ("region a[h, w] order raster", "hw"),
    ],
)
def test_what_is_no_grid_and_a_line_is_permuted(body: str, sizes: str) -> None:
    known = {"h": 20, "w": 40, "text": 70, "rest": 30}
    plan = planned(
        f"{body}; all sees all: all", **{n: size for n, size in known.items() if n in sizes}
    )
    assert plan.grid_rows is None


def test_some_rows_of_a_grid_are_permuted() -> None:
    body = "region a[h, w] order tile(8, 16); a sees a: all"
    assert load(compiled(body).artifact).bind(h=20, w=40, rows=(5, 100)).grid_rows is None
