"""Rows of tensors in shared memory, from and to a line of rows or boxes of a grid, by TMA.

A kernel counts slots: the order in which it takes tokens.  Where `BOX` is (), slots are rows.  Else
a tile of 64 or 128 slots is a box of the grid that lies in the tensor in the caller's order, and
other slots are rows of a line; see `GridRows`, whose `geometry` is the `grid` of these functions.

UNITS: how many boxes of `BOX` a tile of the grid is cut into, one on another.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from cmask.runtime.kernels.gluon_names import load_block, store_block


@gluon.jit
def is_in_grid(slot, grid):
    """Whether a slot is one of the grid's, the first of a box at least."""
    first_slot, stop_slot = grid[0], grid[1]
    return (slot >= first_slot) & (slot < stop_slot)


@gluon.jit
def linear(slot, grid):
    """The row of a slot outside the grid, in the tensor of such rows."""
    stop_slot = grid[1]
    return gl.where(slot >= stop_slot, slot - stop_slot, slot)


@gluon.jit
def corner(slot, grid, BOX: gl.constexpr, UNITS: gl.constexpr):
    """(frame, row, column) of the first token of a box; a tile is UNITS boxes, one on another."""
    first_slot, tiles_down, tiles_across = grid[0], grid[2], grid[3]
    if len(BOX) == 2:
        unit = (slot - first_slot) // (BOX[0] * BOX[1])
        tile = unit // UNITS
        row = tile // tiles_across
        return (
            row * 0,
            row * (BOX[0] * UNITS) + unit % UNITS * BOX[0],
            (tile % tiles_across) * BOX[1],
        )
    else:
        unit = (slot - first_slot) // (BOX[0] * BOX[1] * BOX[2])
        tile = unit // UNITS
        frame = tile // (tiles_down * tiles_across)
        row = tile // tiles_across % tiles_down
        return (
            frame * (BOX[0] * UNITS) + unit % UNITS * BOX[0],
            row * BOX[1],
            (tile % tiles_across) * BOX[2],
        )


@gluon.jit
def load_rows(
    x, x_grid, barrier, buffer, batch, head, num_heads, slot, grid,
    BOX: gl.constexpr, UNITS: gl.constexpr, DIM: gl.constexpr, first_column: gl.constexpr = 0,
):  # fmt: skip
    """Rows from a slot on, by TMA: in a line, or as a box of the grid; zeros past every edge.

    Of each row, DIM columns from `first_column` on.
    """
    if len(BOX) == 0:
        load_block(x, [batch, head, slot, first_column], barrier, buffer)
    else:
        if is_in_grid(slot, grid):
            frame, row, column = corner(slot, grid, BOX, UNITS)
            if len(BOX) == 2:
                target = buffer.reshape([1, 1, BOX[0], BOX[1], DIM])
                load_block(x_grid, [batch, head, row, column, first_column], barrier, target)
            else:
                target = buffer.reshape([1, BOX[0], BOX[1], BOX[2], DIM])
                place = [batch * num_heads + head, frame, row, column, first_column]
                load_block(x_grid, place, barrier, target)
        else:
            load_block(x, [batch, head, linear(slot, grid), first_column], barrier, buffer)


@gluon.jit
def store_rows(
    out, out_grid, buffer, batch, head, num_heads, slot, grid,
    BOX: gl.constexpr, UNITS: gl.constexpr, DIM: gl.constexpr,
):  # fmt: skip
    """The inverse of `load_rows`; what lies past an edge is dropped."""
    if len(BOX) == 0:
        store_block(out, [batch, head, slot, 0], buffer)
    else:
        if is_in_grid(slot, grid):
            frame, row, column = corner(slot, grid, BOX, UNITS)
            if len(BOX) == 2:
                source = buffer.reshape([1, 1, BOX[0], BOX[1], DIM])
                store_block(out_grid, [batch, head, row, column, 0], source)
            else:
                source = buffer.reshape([1, BOX[0], BOX[1], BOX[2], DIM])
                store_block(out_grid, [batch * num_heads + head, frame, row, column, 0], source)
        else:
            store_block(out, [batch, head, linear(slot, grid), 0], buffer)
