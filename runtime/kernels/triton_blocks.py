"""Blocks in and out of memory: device functions that the portable kernels share.

Where products read blocks that the hardware has copied (TMA, sm_90 to sm_110) a tensor is a
descriptor; elsewhere it is a pointer and a layout, (batch stride, head stride, row stride, rows,
columns), all but the rows in units of 16 bytes: Triton would turn a descriptor into one 64-bit
address an element there.
"""

import triton
import triton.language as tl


@triton.jit
def load_rows(
    X, layout, batch, head, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TMA: tl.constexpr
):
    """[ROWS, COLUMNS] of one head from `row` on; zeros past the end of the head."""
    if TMA:
        block = X.load([batch, head, row, 0]).reshape(ROWS, COLUMNS)
    else:
        pointers, inside = _addresses(X, layout, batch, head, row, ROWS, COLUMNS)
        block = tl.load(pointers, mask=inside, other=0.0)
    return block


@triton.jit
def store_rows(
    X,
    layout,
    batch,
    head,
    row,
    block,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TMA: tl.constexpr,
):
    """The inverse of `load_rows`; what lies past the end of the head is dropped."""
    if TMA:
        X.store([batch, head, row, 0], block.to(X.dtype).reshape(1, 1, ROWS, COLUMNS))
    else:
        pointers, inside = _addresses(X, layout, batch, head, row, ROWS, COLUMNS)
        tl.store(pointers, block.to(X.dtype.element_ty), mask=inside)


@triton.jit
def load_piece(X, row_length, row, column, LENGTH: tl.constexpr, TMA: tl.constexpr):
    """[LENGTH] of one row of a matrix; LENGTH and `column` divide the row evenly."""
    if TMA:
        piece = X.load([row, column]).reshape(LENGTH)
    else:
        base = X + tl.cast(row, tl.int64) * row_length + column
        piece = tl.load(base + tl.arange(0, LENGTH))
    return piece


@triton.jit
def _addresses(X, layout, batch, head, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    # a product with a constant tells the compiler that whole 16 bytes can be read at once
    STEP: tl.constexpr = 128 // X.dtype.element_ty.primitive_bitwidth
    row_stride = layout[2] * STEP
    base = (
        X + tl.cast(batch, tl.int64) * layout[0] * STEP + tl.cast(head, tl.int64) * layout[1] * STEP
    )
    base += tl.cast(row, tl.int64) * row_stride
    inside = (row + rows < layout[3]) & (columns < layout[4] * STEP)
    return base + rows * row_stride + columns, inside


@triton.jit
def rows_of_slots(TOKENS, slots, num_slots):
    """The row of each slot, -1 where there is none; TOKENS: int32[num_slots], or None."""
    exists = slots < num_slots
    if TOKENS is None:
        rows = tl.where(exists, slots, -1)
    else:
        rows = tl.load(TOKENS + slots, mask=exists, other=-1)
    return rows
