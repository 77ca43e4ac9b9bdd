"""What a partial block lets through: device functions that the portable kernels share.

A block is masked by a pattern of the dictionary (words of bits, see `pack_pattern`) or by the key
intervals of its rows.  Both answer a boolean tensor in the shape of the score block; scores that
do not pass become -inf, true infinity, so that no score however small is mistaken for hidden.
"""

import triton
import triton.language as tl

from cmask.runtime.kernels.triton_blocks import load_piece


@triton.jit
def pattern_bits(PATTERNS, pattern, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """bool[ROWS, COLUMNS] of a pattern: int32[num_patterns, ROWS, 4].

    Word c of a row holds columns 8 i + 2 c + j at bit 2 i + j: a thread that owns (row, c) of a
    matrix-multiply accumulator finds the bits of its columns in one word, by constant shifts.
    """
    rows = tl.arange(0, ROWS)
    quads = tl.arange(0, 4)
    base = PATTERNS + pattern.to(tl.int64) * (ROWS * 4)
    words = tl.load(base + rows[:, None] * 4 + quads[None, :])  # [ROWS, 4]
    octets = tl.arange(0, COLUMNS // 8)[None, :, None, None]
    parity = tl.arange(0, 2)[None, None, None, :]
    bits = (words[:, None, :, None] >> (2 * octets + parity)) & 1  # [ROWS, COLUMNS / 8, 4, 2]
    return tl.reshape(bits, [ROWS, COLUMNS]) != 0


@triton.jit
def interval_bits(BOUNDS, rows, keys, num_rows, NUM_INTERVALS: tl.constexpr):
    """bool[M, N]: whether keys [N] lie in the intervals of rows [M], with rows down.

    BOUNDS: int32[2 * NUM_INTERVALS, num_rows]; the loads do not depend on the keys, so that a
    loop over key blocks does them once.
    """
    keys = keys[None, :]
    visible = (keys >= tl.load(BOUNDS + rows)[:, None]) & (
        keys < tl.load(BOUNDS + num_rows + rows)[:, None]
    )
    for i in tl.static_range(1, NUM_INTERVALS):
        base = BOUNDS + 2 * i * num_rows.to(tl.int64) + rows
        visible |= (keys >= tl.load(base)[:, None]) & (keys < tl.load(base + num_rows)[:, None])
    return visible


@triton.jit
def interval_bits_across(
    BOUNDS,
    num_rows,
    keys,
    row_block,
    NUM_INTERVALS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TMA: tl.constexpr,
):
    """bool[N, M]: the same with keys [N, 1] down and the rows of a block across.

    The rows change with every block here: their bounds come with the block.
    """
    row = row_block * BLOCK_M
    visible = _in_interval(BOUNDS, num_rows, keys, row, 0, BLOCK_M, TMA)
    for i in tl.static_range(1, NUM_INTERVALS):
        visible |= _in_interval(BOUNDS, num_rows, keys, row, i, BLOCK_M, TMA)
    return visible


@triton.jit
def _in_interval(
    BOUNDS, num_rows, keys, row, i: tl.constexpr, BLOCK_M: tl.constexpr, TMA: tl.constexpr
):
    start = load_piece(BOUNDS, num_rows, 2 * i, row, BLOCK_M, TMA)
    stop = load_piece(BOUNDS, num_rows, 2 * i + 1, row, BLOCK_M, TMA)
    return (keys >= start[None, :]) & (keys < stop[None, :])
