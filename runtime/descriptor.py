"""The arrays that a kernel walks: which blocks of the score matrix it visits, and how to mask them.

A block is `block_m` queries × `block_n` keys.  Every block is exactly one of

    empty    no pair visible: in no list
    full     every pair visible: in `full_runs`, needs no mask
    partial  some pairs visible: in `bounds_runs` (masked by row bounds) or in
             `pattern_blocks` (masked by a bit pattern of the dictionary)

A last key block that `kv_len` cuts is never full, so that a kernel needs no code for the tail of
the keys.  Query rows past `q_len` do not count: whatever a kernel computes there is not stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class BlockLists:
    """Blocks along one side, for each block of the other side (the owner).

    In `by_query` lists the owner is a query block and the listed blocks are key blocks; in
    `by_key` lists it is the other way round.

    full_offsets     int32[owners + 1]: the runs of owner i are full_runs[o[i]:o[i + 1]]
    full_runs        int32[runs, 2]: blocks [first, stop) that are full
    bounds_offsets   int32[owners + 1]
    bounds_runs      int32[runs, 2]: blocks [first, stop) masked by the row bounds
    pattern_offsets  int32[owners + 1]
    pattern_blocks   int32[blocks, 2]: (block, pattern index)
    order            int32[owners]: the owners, most blocks first
    """

    full_offsets: Int32Array
    full_runs: Int32Array
    bounds_offsets: Int32Array
    bounds_runs: Int32Array
    pattern_offsets: Int32Array
    pattern_blocks: Int32Array
    order: Int32Array


@dataclass(frozen=True, eq=False)
class Descriptor:
    """One mask at fixed sizes, cut into blocks of one shape.

    q_len, kv_len    [slots]: tokens, and padding where the token order needs it
    patterns         int32[num_patterns, block_m, 4]: the dictionary, see `pack_pattern`
    key_patterns     int32[num_patterns, block_n, 4]: the same patterns transposed
    bounds           int32[2 * num_intervals, num_q_blocks * block_m]: start_0, stop_0, start_1, …
                     of the at most 4 disjoint key intervals [start, stop) of each row, ascending;
                     unused ones are [0, 0); num_intervals is 0, 1, 2 or 4
    key_is_read      int32[num_kv_blocks * block_n]: 1 where some query sees the key
    """

    block_m: int
    block_n: int
    q_len: int
    kv_len: int
    by_query: BlockLists
    by_key: BlockLists
    patterns: Int32Array
    key_patterns: Int32Array
    bounds: Int32Array
    key_is_read: Int32Array

    @property
    def num_q_blocks(self) -> int:
        """Blocks that cover the queries."""
        return -(-self.q_len // self.block_m)

    @property
    def num_kv_blocks(self) -> int:
        """Blocks that cover the keys."""
        return -(-self.kv_len // self.block_n)

    @property
    def num_intervals(self) -> int:
        """Row intervals held by `bounds`."""
        return self.bounds.shape[0] // 2

    @property
    def every_key_is_read(self) -> bool:
        """Whether each key of `kv_len` is seen by some query."""
        return bool(self.key_is_read[: self.kv_len].all())


# of a byte of eight columns: bits 2 c and 2 c + 1 as the lowest two of lane c, of 16 bits
_BYTES, _LANES = np.arange(256, dtype=np.uint64)[:, None], np.arange(4, dtype=np.uint64)
_SPREAD = np.bitwise_or.reduce((_BYTES >> 2 * _LANES & 3) << 16 * _LANES, axis=1)


def pack_pattern(visible: NDArray[np.bool_]) -> Int32Array:
    """bool[n, rows, columns] -> int32[n, rows, 4], columns a multiple of 8 and at most 128.

    Word c of a row holds columns 8 i + 2 c + j at bit 2 i + j (j = 0, 1): the order in which
    the thread that owns (row, c) in a wgmma or mma.m16n8 accumulator holds its columns.
    """
    packed = np.packbits(visible, axis=-1, bitorder="little")
    halves = np.zeros((2, *visible.shape[:2]), np.uint64)  # of all four words: 16 bits each
    for i in range(packed.shape[-1]):
        halves[i // 8] |= _SPREAD[packed[..., i]] << np.uint64(2 * (i % 8))
    lanes = halves.view(np.dtype("<u2")).reshape(*halves.shape, 4).astype(np.uint32)
    return (lanes[0] | lanes[1] << np.uint32(16)).view(np.int32)


def unpack_pattern(words: Int32Array, columns: int) -> NDArray[np.bool_]:
    """The inverse of `pack_pattern`: int32[n, rows, 4] -> bool[n, rows, columns].

    >>> visible = np.tri(16, 16, dtype=bool)[None]
    >>> bool((unpack_pattern(pack_pattern(visible), 16) == visible).all())
    True
    """
    n, rows, _ = words.shape
    shifts = np.arange(columns // 4, dtype=np.uint32)
    bits = (words.view(np.uint32)[..., None] >> shifts) & np.uint32(1)
    bits = bits.reshape(n, rows, 4, columns // 8, 2).transpose(0, 1, 3, 2, 4)
    return bits.reshape(n, rows, columns).astype(bool)


def to_dense(descriptor: Descriptor) -> NDArray[np.bool_]:
    """bool[q_len, kv_len]: the shortest true definition of the `by_query` lists.

    For tests and small masks only: it makes the matrix that the lists avoid.
    """
    d, lists = descriptor, descriptor.by_query
    bm, bn = d.block_m, d.block_n
    dense = np.zeros((d.num_q_blocks * bm, d.num_kv_blocks * bn), bool)
    keys = np.arange(dense.shape[1])
    patterns = unpack_pattern(d.patterns, bn)
    for t in range(d.num_q_blocks):
        rows = slice(t * bm, (t + 1) * bm)
        for first, stop in lists.full_runs[lists.full_offsets[t] : lists.full_offsets[t + 1]]:
            dense[rows, first * bn : stop * bn] = True
        for first, stop in lists.bounds_runs[lists.bounds_offsets[t] : lists.bounds_offsets[t + 1]]:
            columns = slice(first * bn, stop * bn)
            for i in range(d.num_intervals):
                start, end = d.bounds[2 * i, rows, None], d.bounds[2 * i + 1, rows, None]
                dense[rows, columns] |= (keys[columns] >= start) & (keys[columns] < end)
        for block, pattern in lists.pattern_blocks[
            lists.pattern_offsets[t] : lists.pattern_offsets[t + 1]
        ]:
            dense[rows, block * bn : (block + 1) * bn] = patterns[pattern]
    return dense[: d.q_len, : d.kv_len]
