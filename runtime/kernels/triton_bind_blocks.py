"""Row intervals -> runs of full and partial blocks in both directions, on the device.

Each direction takes two launches of one kernel: the first counts the runs of each owner, the
second finds them again and writes them behind those of the owners before.

runs_by_query   a program per query block: the kind of its key blocks changes only at the blocks
                where some row's interval begins or ends, so it goes from one change to the next
runs_by_key     a program per key block: looks itself up in the runs of every query block
mark_read_keys  a program per key block: which keys some query sees

Where the runs do not fit, all lists are left empty, and an error is set: kernels count blocks in
one place and walk runs in another, and a list that is cut would set them at odds.
"""

import triton
import triton.language as tl

TOO_MANY_RUNS = 16
_FAR = tl.constexpr(2**30)  # behind the last block
_FULL = tl.constexpr(2)
_PARTIAL = tl.constexpr(1)


@triton.jit
def _places(RUNS, owner, num_owners, BLOCK: tl.constexpr):
    """Full and partial runs of the owners before this one, and of all."""
    full = 0
    partial = 0
    all_full = 0
    all_partial = 0
    for first in range(0, num_owners, BLOCK):
        i = first + tl.arange(0, BLOCK)
        runs = tl.load(RUNS + i, mask=i < num_owners, other=0)
        all_full += tl.sum(runs)
        full += tl.sum(tl.where(i < owner, runs, 0))
        runs = tl.load(RUNS + num_owners + i, mask=i < num_owners, other=0)
        all_partial += tl.sum(runs)
        partial += tl.sum(tl.where(i < owner, runs, 0))
    return full, partial, all_full, all_partial


@triton.jit
def _finish(RUNS, COUNTS, OFFSETS, ERRORS, sizes, found, at, fits, WRITE: tl.constexpr):
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
    COUNTS,  # int32[2, num_owners], written: blocks in them
    OFFSETS,  # int32[3, num_owners + 1], written but for the last row
    ENTRIES,  # int32[2 * capacity, 2], written: full runs, and from `capacity` on partial ones
    ERRORS,  # int32[1]
    num_owners,
    capacity,
    num_rows,
    q_capacity,
    NUM_INTERVALS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WRITE: tl.constexpr,
):
    """The runs of key blocks of one query block."""
    owner = tl.program_id(0)
    row = owner * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    bounds = BOUNDS + 2 * tl.arange(0, NUM_INTERVALS)[None, :] * num_rows + row
    start = tl.load(bounds, mask=row < num_rows, other=0)  # [BLOCK_M, NUM_INTERVALS]
    stop = tl.load(bounds + num_rows, mask=row < num_rows, other=0)
    exists = start < stop
    touched_first = tl.where(exists, start // BLOCK_N, _FAR)
    touched_stop = tl.where(exists, (stop + BLOCK_N - 1) // BLOCK_N, _FAR)
    covered_first = (start + BLOCK_N - 1) // BLOCK_N
    covered_stop = stop // BLOCK_N
    covers = exists & (covered_first < covered_stop)
    covered_first = tl.where(covers, covered_first, _FAR)
    covered_stop = tl.where(covers, covered_stop, _FAR)
    # a row behind what is bound sees nothing: a block with such rows is never full
    num_tokens = tl.minimum(q_capacity - owner * BLOCK_M, BLOCK_M)

    full_at = 0
    partial_at = 0
    fits = num_owners > 0
    if WRITE:
        full_at, partial_at, all_full, all_partial = _places(RUNS, owner, num_owners, 1024)
        fits = (all_full <= capacity) & (all_partial <= capacity)
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
    sizes = (owner, num_owners, capacity)
    _finish(RUNS, COUNTS, OFFSETS, ERRORS, sizes, found, (full_at, partial_at), fits, WRITE)


@triton.jit
def _kinds(OFFSETS, ENTRIES, owner, other, num_owners):
    """The kind of block `other` for each of the owners; 0 where there is no such owner."""
    exists = (owner >= 0) & (owner < num_owners)
    kind = tl.zeros_like(owner)
    for partial in tl.static_range(2):
        offsets = OFFSETS + partial * (num_owners + 1) + owner
        first = tl.load(offsets, mask=exists, other=0)
        stop = tl.load(offsets + 1, mask=exists, other=0)
        for i in range(0, tl.max(stop - first)):
            has = first + i < stop
            run = ENTRIES + 2 * (first + i)
            inside = (tl.load(run, mask=has, other=0) <= other) & has
            inside &= other < tl.load(run + 1, mask=has, other=0)
            kind = tl.where(inside, 2 - partial, kind)
    return kind


@triton.jit(do_not_specialize=["num_query_blocks", "num_owners", "capacity"])
def runs_by_key(
    QUERY_OFFSETS,  # of the lists by query
    QUERY_ENTRIES,
    RUNS,  # as in `runs_by_query`, by key block
    COUNTS,
    OFFSETS,
    ENTRIES,
    ERRORS,
    num_query_blocks,
    num_owners,
    capacity,
    WRITE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The runs of query blocks of one key block."""
    owner = tl.program_id(0)
    full_at = 0
    partial_at = 0
    fits = num_owners > 0
    if WRITE:
        full_at, partial_at, all_full, all_partial = _places(RUNS, owner, num_owners, 1024)
        fits = (all_full <= capacity) & (all_partial <= capacity)
    keeps = fits.to(tl.int32)
    # a run that is open at the end of a piece has begun but not ended
    begun_full = 0
    ended_full = 0
    begun_partial = 0
    ended_partial = 0
    full_blocks = 0
    partial_blocks = 0
    for piece in range(0, num_query_blocks, BLOCK):
        i = piece + tl.arange(0, BLOCK)
        before = _kinds(QUERY_OFFSETS, QUERY_ENTRIES, i - 1, owner, num_query_blocks)
        kind = _kinds(QUERY_OFFSETS, QUERY_ENTRIES, i, owner, num_query_blocks)
        after = _kinds(QUERY_OFFSETS, QUERY_ENTRIES, i + 1, owner, num_query_blocks)
        begins = ((kind == 2) & (before != 2)).to(tl.int32)
        ends = ((kind == 2) & (after != 2)).to(tl.int32)
        if WRITE:
            at = ENTRIES + 2 * (full_at + begun_full + tl.cumsum(begins, 0) - begins)
            tl.store(at, i, mask=begins * keeps != 0)
            at = ENTRIES + 2 * (full_at + ended_full + tl.cumsum(ends, 0) - ends)
            tl.store(at + 1, i + 1, mask=ends * keeps != 0)
        begun_full += tl.sum(begins)
        ended_full += tl.sum(ends)
        full_blocks += tl.sum((kind == 2).to(tl.int32))
        begins = ((kind == 1) & (before != 1)).to(tl.int32)
        ends = ((kind == 1) & (after != 1)).to(tl.int32)
        if WRITE:
            base = ENTRIES + 2 * (capacity + partial_at)
            at = base + 2 * (begun_partial + tl.cumsum(begins, 0) - begins)
            tl.store(at, i, mask=begins * keeps != 0)
            at = base + 2 * (ended_partial + tl.cumsum(ends, 0) - ends)
            tl.store(at + 1, i + 1, mask=ends * keeps != 0)
        begun_partial += tl.sum(begins)
        ended_partial += tl.sum(ends)
        partial_blocks += tl.sum((kind == 1).to(tl.int32))
    found = (begun_full, begun_partial, full_blocks, partial_blocks)
    sizes = (owner, num_owners, capacity)
    _finish(RUNS, COUNTS, OFFSETS, ERRORS, sizes, found, (full_at, partial_at), fits, WRITE)


@triton.jit(do_not_specialize=["num_owners", "num_rows"])
def mark_read_keys(
    BOUNDS,  # int32[2 * NUM_INTERVALS, num_rows]
    OFFSETS,  # of the lists by key
    ENTRIES,
    COUNTS,
    KEY_IS_READ,  # int32[num_owners * BLOCK_N], written
    num_owners,
    num_rows,
    NUM_INTERVALS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """1 for each key of a block that some query sees, else 0."""
    owner = tl.program_id(0)
    keys = owner * BLOCK_N + tl.arange(0, BLOCK_N)
    read = tl.zeros([BLOCK_N], tl.int32) + (tl.load(COUNTS + owner) > 0).to(tl.int32)
    offsets = OFFSETS + num_owners + 1 + owner
    run = tl.load(offsets)
    stop_run = tl.load(offsets + 1)
    while (run < stop_run) & (tl.min(read) == 0):
        for block in range(tl.load(ENTRIES + 2 * run), tl.load(ENTRIES + 2 * run + 1)):
            row = block * BLOCK_M + tl.arange(0, BLOCK_M)
            for i in tl.static_range(NUM_INTERVALS):
                start = tl.load(BOUNDS + 2 * i * num_rows + row, mask=row < num_rows, other=0)
                stop = tl.load(BOUNDS + (2 * i + 1) * num_rows + row, mask=row < num_rows, other=0)
                sees = (start[:, None] <= keys[None, :]) & (keys[None, :] < stop[:, None])
                read = tl.maximum(read, tl.max(sees.to(tl.int32), 0))
        run += 1
    tl.store(KEY_IS_READ + keys, read)
