"""What a program of a Hopper kernel walks: the entries of one owner in a launch's lists."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def entries_of(OFFSETS, COUNTS, num_owners, owner):
    """(first, stop) of its full, bounds and pattern entries, and how many blocks its runs hold.

    OFFSETS: int32[3, num_owners + 1]; COUNTS: int32[2, num_owners], of full and of bounds runs.
    """
    bounds = OFFSETS + num_owners + 1
    patterns = OFFSETS + 2 * (num_owners + 1)
    full_first = gl.load(OFFSETS + owner)
    full_stop = gl.load(OFFSETS + owner + 1)
    bounds_first = gl.load(bounds + owner)
    bounds_stop = gl.load(bounds + owner + 1)
    pattern_first = gl.load(patterns + owner)
    pattern_stop = gl.load(patterns + owner + 1)
    full_blocks = gl.load(COUNTS + owner)
    bounds_blocks = gl.load(COUNTS + num_owners + owner)
    return (
        (full_first, full_stop),
        (bounds_first, bounds_stop),
        (pattern_first, pattern_stop),
        full_blocks,
        bounds_blocks,
    )
