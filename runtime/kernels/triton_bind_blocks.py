"""Row intervals -> runs of full and partial key blocks of every query block, on the device.

Two launches of one kernel: the first counts the runs of each query block, the second finds them
again and writes them behind those of the blocks before (between them, where blocks are many,
`place_runs` adds up).  The kind of key blocks changes only where some row's interval begins or
ends, so a program goes from one change to the next.

Where the runs do not fit, all lists are left empty, and an error is set: kernels count blocks in
one place and walk runs in another, and a list that is cut would set them at odds.

Runs by key block are made of these, see `triton_bind_keys.py`.
"""

import triton
import triton.language as tl

TOO_MANY_RUNS = 16
_FAR = tl.constexpr(2**30)  # behind the last block
_FULL = tl.constexpr(2)
_PARTIAL = tl.constexpr(1)


@triton.jit(do_not_specialize=["num_owners"])
def place_runs(RUNS, PLACES, num_owners, BLOCK: tl.constexpr):
    """PLACES, int32[2, num_owners + 1]: full and partial runs of earlier owners, and of all.

    One program, for owners so many that each would take longer to add up those before it.
    """
    for kind in tl.static_range(2):
        before = 0
        to = PLACES + kind * (num_owners + 1)
        for first in range(0, num_owners, BLOCK):
            i = first + tl.arange(0, BLOCK)
            runs = tl.load(RUNS + kind * num_owners + i, mask=i < num_owners, other=0)
            tl.store(to + i, before + tl.cumsum(runs, 0) - runs, mask=i < num_owners)
            before += tl.sum(runs)
        tl.store(to + num_owners, before)


@triton.jit
def places(RUNS, PLACES, sizes, WRITE: tl.constexpr, PLACED: tl.constexpr):
    """With WRITE: full and partial runs of the owners before this one, and whether all runs fit."""
    owner, num_owners, capacity = sizes
    full = 0
    partial = 0
    all_full = 0
    all_partial = 0
    BLOCK: tl.constexpr = 256
    if WRITE and PLACED:
        partial_places = PLACES + num_owners + 1
        full = tl.load(PLACES + owner)
        partial = tl.load(partial_places + owner)
        all_full = tl.load(PLACES + num_owners)
        all_partial = tl.load(partial_places + num_owners)
    elif WRITE:
        for first in range(0, num_owners, BLOCK):
            i = first + tl.arange(0, BLOCK)
            runs = tl.load(RUNS + i, mask=i < num_owners, other=0)
            all_full += tl.sum(runs)
            full += tl.sum(tl.where(i < owner, runs, 0))
            runs = tl.load(RUNS + num_owners + i, mask=i < num_owners, other=0)
            all_partial += tl.sum(runs)
            partial += tl.sum(tl.where(i < owner, runs, 0))
    return full, partial, (all_full <= capacity) & (all_partial <= capacity)


@triton.jit
def finish(RUNS, COUNTS, OFFSETS, ERRORS, sizes, found, at, fits, WRITE: tl.constexpr):
    """What is told of an owner besides its runs."""
    owner, num_owners, capacity = sizes
    full, partial, full_blocks, partial_blocks = found
    if WRITE:
        full_at, partial_at = at
        keeps = fits.to(tl.int32)
        tl.store(COUNTS + owner, full_blocks * keeps)
        tl.store(COUNTS + num_owners + owner, partial_blocks * keeps)
        tl.store(OFFSETS + owner, full_at * keeps)
        tl.store(OFFSETS + num_owners + 1 + owner, capacity + partial_at * keeps)
        if owner == num_owners - 1:
            tl.store(OFFSETS + num_owners, (full_at + full) * keeps)
            tl.store(OFFSETS + 2 * num_owners + 1, capacity + (partial_at + partial) * keeps)
            tl.atomic_or(ERRORS, 16 * (1 - keeps))
    else:
        tl.store(RUNS + owner, full)
        tl.store(RUNS + num_owners + owner, partial)


@triton.jit(do_not_specialize=["num_owners", "capacity", "num_rows", "q_capacity"])
def runs_by_query(
    BOUNDS,  # int32[2 * NUM_INTERVALS, num_rows]
    RUNS,  # int32[2, num_owners]: full and partial runs of each; written without WRITE
    PLACES,  # int32[2, num_owners + 1], with PLACED: as `place_runs` writes them
    COUNTS,  # int32[2, num_owners], written: blocks in them
    OFFSETS,  # int32[3, num_owners + 1], written but for the last row
    ENTRIES,  # int32[2 * capacity, 2], written: full runs, and from `capacity` on partial ones
    ERRORS,  # int32[1]
    FURTHEST,  # int32[keys], zeros; written with MARKS: the last stop of intervals that start here
    FURTHEST_OF_BLOCK,  # int32[keys / KEYS], likewise of those that start in a block
    num_owners,
    capacity,
    num_rows,
    q_capacity,
    NUM_INTERVALS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WRITE: tl.constexpr,
    PLACED: tl.constexpr,
    MARKS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """The runs of key blocks of one query block."""
    owner = tl.program_id(0)
    row = owner * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    bounds = BOUNDS + 2 * tl.arange(0, NUM_INTERVALS)[None, :] * num_rows + row
    start = tl.load(bounds, mask=row < num_rows, other=0)  # [BLOCK_M, NUM_INTERVALS]
    stop = tl.load(bounds + num_rows, mask=row < num_rows, other=0)
    exists = start < stop
    if MARKS:
        # many rows start at one key: the last of neighbours that do speaks for all
        has_next = row + 1 < num_rows
        next_start = tl.load(bounds + 1, mask=has_next, other=-1)
        next_stop = tl.load(bounds + num_rows + 1, mask=has_next, other=-1)
        speaks = exists & ((next_start != start) | (next_stop < stop))
        tl.atomic_max(FURTHEST + start, stop, mask=speaks)
        tl.atomic_max(FURTHEST_OF_BLOCK + start // KEYS, stop, mask=speaks)
    touched_first = tl.where(exists, start // BLOCK_N, _FAR)
    touched_stop = tl.where(exists, (stop + BLOCK_N - 1) // BLOCK_N, _FAR)
    covered_first = (start + BLOCK_N - 1) // BLOCK_N
    covered_stop = stop // BLOCK_N
    covers = exists & (covered_first < covered_stop)
    covered_first = tl.where(covers, covered_first, _FAR)
    covered_stop = tl.where(covers, covered_stop, _FAR)
    # a row behind what is bound sees nothing: a block with such rows is never full
    num_tokens = tl.minimum(q_capacity - owner * BLOCK_M, BLOCK_M)

    sizes = (owner, num_owners, capacity)
    full_at, partial_at, fits = places(RUNS, PLACES, sizes, WRITE, PLACED)
    full = 0
    partial = 0
    full_blocks = 0
    partial_blocks = 0
    kind = 0  # of the blocks from `first` to `block`
    first = 0
    block = tl.min(touched_first)
    while block < _FAR:
        covered = tl.sum(((covered_first <= block) & (block < covered_stop)).to(tl.int32))
        touched = tl.max(((touched_first <= block) & (block < touched_stop)).to(tl.int32))
        new_kind = tl.where(touched == 0, 0, tl.where(covered == num_tokens, _FULL, _PARTIAL))
        changes = new_kind != kind
        ends_full = changes & (kind == _FULL)
        ends_partial = changes & (kind == _PARTIAL)
        if WRITE:
            at_full = ENTRIES + 2 * (full_at + full)
            at_partial = ENTRIES + 2 * (capacity + partial_at + partial)
            tl.store(at_full, first, mask=ends_full & fits)
            tl.store(at_full + 1, block, mask=ends_full & fits)
            tl.store(at_partial, first, mask=ends_partial & fits)
            tl.store(at_partial + 1, block, mask=ends_partial & fits)
        full += ends_full.to(tl.int32)
        partial += ends_partial.to(tl.int32)
        full_blocks += tl.where(ends_full, block - first, 0)
        partial_blocks += tl.where(ends_partial, block - first, 0)
        first = tl.where(changes, block, first)
        kind = new_kind
        following = tl.minimum(
            tl.min(tl.where(touched_first > block, touched_first, _FAR)),
            tl.min(tl.where(touched_stop > block, touched_stop, _FAR)),
        )
        following = tl.minimum(
            following, tl.min(tl.where(covered_first > block, covered_first, _FAR))
        )
        block = tl.minimum(following, tl.min(tl.where(covered_stop > block, covered_stop, _FAR)))
    # behind the last interval nothing is touched: its change has ended the last run
    found = (full, partial, full_blocks, partial_blocks)
    finish(RUNS, COUNTS, OFFSETS, ERRORS, sizes, found, (full_at, partial_at), fits, WRITE)
