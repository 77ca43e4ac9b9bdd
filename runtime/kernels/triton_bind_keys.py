"""What key blocks and keys are seen by, on the device.

mark_blocks     which query blocks see a key block in full, and which in part: a bit for each
runs_by_key     a program per key block: its bits as runs; counted, then written, as by query
mark_read_keys  which keys some query sees

Bits take num_query_blocks * num_key_blocks / 4 bytes, 16 MB for a million tokens in blocks of 128.
To ask each query block's runs for each key block in turn takes 3 ms there on an H200.
"""

import triton
import triton.language as tl

from cmask.runtime.kernels.triton_bind_blocks import finish, places

WORD = tl.constexpr(32)  # query blocks in a word of bits


@triton.jit(do_not_specialize=["num_query_blocks", "num_owners", "num_words"])
def mark_blocks(
    OFFSETS,  # of the runs by query
    ENTRIES,
    BITS,  # int32[2, num_owners, num_words], written: full, partial
    num_query_blocks,
    num_owners,
    num_words,
    BLOCK: tl.constexpr,
):
    """A word of BLOCK key blocks: how 32 query blocks see them."""
    word = tl.program_id(0)
    bit = tl.arange(0, WORD)[:, None]
    query = word * WORD + bit
    exists = query < num_query_blocks
    key = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    for partial in tl.static_range(2):
        offsets = OFFSETS + partial * (num_query_blocks + 1) + query
        first = tl.load(offsets, mask=exists, other=0)
        stop = tl.load(offsets + 1, mask=exists, other=0)
        sees = tl.zeros([WORD, BLOCK], tl.int32)
        for i in range(0, tl.max(stop - first)):
            has = first + i < stop
            run = ENTRIES + 2 * (first + i)
            begin = tl.load(run, mask=has, other=0)  # without a run: from 0 to 0
            end = tl.load(run + 1, mask=has, other=0)
            sees |= ((begin <= key) & (key < end)).to(tl.int32)
        words = tl.sum(sees << bit, 0)[None, :]
        at = BITS + (partial * num_owners + key) * num_words + word
        tl.store(at, words, mask=key < num_owners)


@triton.jit
def count_bits(x):
    """How many bits of each uint32 are set: sums of 2, 4, 8, then all bits."""
    x -= (x >> 1) & 0x55555555
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def _write_bits(ENTRIES, at, bits, count, block):
    """Where the first `count` bits of each word stand, from entry `at` on; `block`: of bit 0."""
    for i in range(0, tl.max(count)):
        below = bits - 1
        tl.store(ENTRIES + 2 * (at + i), block + count_bits(below & ~bits), mask=i < count)
        bits &= below


@triton.jit(do_not_specialize=["num_words", "num_owners", "capacity"])
def runs_by_key(
    BITS,  # int32[2, num_owners, num_words]
    RUNS,  # these as in `runs_by_query`, by key block
    PLACES,
    COUNTS,
    OFFSETS,
    ENTRIES,
    ERRORS,
    num_words,
    num_owners,
    capacity,
    WRITE: tl.constexpr,
    PLACED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The runs of query blocks of one key block."""
    owner = tl.program_id(0)
    sizes = (owner, num_owners, capacity)
    full_at, partial_at, fits = places(RUNS, PLACES, sizes, WRITE, PLACED)
    keeps = fits.to(tl.int32)
    runs = ()
    blocks = ()
    for partial in tl.static_range(2):
        first_entry = capacity + partial_at if partial else full_at
        begun = 0  # a run may be open at the end of a piece
        ended = 0
        seen = 0
        for first in range(0, num_words, BLOCK):
            word = first + tl.arange(0, BLOCK)
            at = BITS + (partial * num_owners + owner) * num_words + word
            inside = word < num_words
            bits = tl.load(at, mask=inside, other=0).to(tl.uint32)
            before = tl.load(at - 1, mask=inside & (word > 0), other=0).to(tl.uint32)
            begins = bits & ~((bits << 1) | (before >> 31))
            num_begins = count_bits(begins)
            if WRITE:
                after = tl.load(at + 1, mask=word + 1 < num_words, other=0).to(tl.uint32)
                lasts = bits & ~((bits >> 1) | (after << 31))
                num_lasts = count_bits(lasts)
                place = first_entry + begun + tl.cumsum(num_begins, 0) - num_begins
                _write_bits(ENTRIES, place, begins, num_begins * keeps, word * WORD)
                place = first_entry + ended + tl.cumsum(num_lasts, 0) - num_lasts
                _write_bits(ENTRIES + 1, place, lasts, num_lasts * keeps, word * WORD + 1)
                ended += tl.sum(num_lasts)
            begun += tl.sum(num_begins)
            seen += tl.sum(count_bits(bits))
        runs = runs + (begun,)
        blocks = blocks + (seen,)
    finish(RUNS, COUNTS, OFFSETS, ERRORS, sizes, runs + blocks, (full_at, partial_at), fits, WRITE)


@triton.jit
def mark_read_keys(
    FURTHEST,  # int32[keys], as `runs_by_query` writes them; zeros again afterwards
    FURTHEST_OF_BLOCK,  # int32[keys / KEYS]
    KEY_IS_READ,  # int32[keys], written
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
):
    """1 for each of KEYS keys that some query sees, else 0.

    A key is seen if an interval that starts at it or before it stops behind it.
    """
    block = tl.program_id(0)
    before = 0
    for first in range(0, block, BLOCK):
        i = first + tl.arange(0, BLOCK)
        before = tl.maximum(before, tl.max(tl.load(FURTHEST_OF_BLOCK + i, mask=i < block, other=0)))
    index = tl.arange(0, KEYS)
    key = block * KEYS + index
    stops = tl.load(FURTHEST + key)
    up_to = tl.where(index[None, :] <= index[:, None], stops[None, :], 0)
    furthest = tl.maximum(tl.max(up_to, 1), before)
    tl.store(KEY_IS_READ + key, (furthest > key).to(tl.int32))
    tl.store(FURTHEST + key, tl.zeros([KEYS], tl.int32))
