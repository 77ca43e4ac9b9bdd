"""dQ on Hopper (sm_90a) by a kernel of its own: queries stay, keys stream by, no sums in memory.

It takes the place of the adder of gluon_backward_sm90.py where gradients must have the same bits in
every run: seven products instead of five, but nothing that depends on who comes first.

    producer    a warp: Q and dO of 64 queries per consumer, then K and V of each key block into a
                ring of stages; the words of a pattern arrive on their K block's barrier
    consumers   two warpgroups of 64 queries each:
                P = exp2(Q K^T - lse), dS = P (dO V^T - delta), dQ += dS K

What is in flight in a consumer at block j, from top to bottom of `_step`:

    dO V_j^T issued | P_j (S_j was made a step ahead), beside it | K_{j+1} has arrived
    | dO V_j^T done, stage of V_j free | dS | dQ issued | S_{j+1} issued
    | dQ done, stage of K_j free | S_{j+1} done

S is complete at the loop's back edge: in flight across it, ptxas would serialise all products.

Measured on an H200 (Triton 3.6.0): see docs/performance.md.  The compiled code is checked without a
GPU, and what it computes, see gluon_forward_sm90.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cmask.runtime.kernels.gluon_lists import entries_of
from cmask.runtime.kernels.gluon_names import aggregate, load_block, reinterpret
from cmask.runtime.kernels.gluon_rows import load_rows, store_rows
from cmask.runtime.kernels.gluon_softmax import (
    load_bounds,
    load_words,
    mask_by_bounds,
    mask_by_words,
)
from cmask.runtime.kernels.gluon_sync import (
    Ring,
    arrive_named,
    broadcast,
    field,
    leave_queue,
    publish,
    release_stage,
    sync_named,
    take_ticket,
)

K_EMPTY = gl.constexpr(5)  # 5, 6: a stage of keys has been read
V_EMPTY = gl.constexpr(8)  # 8, 9: a stage of values has been read
Q_EMPTY = gl.constexpr(11)  # dQ has left the buffers of the queries
STAGES = gl.constexpr(2)
THREADS = gl.constexpr(288)  # two consumers and the producer
QUERIES = gl.constexpr(64)  # of a consumer
KEYS = gl.constexpr(64)  # of a block
FULL = gl.constexpr(0)
BOUNDS = gl.constexpr(1)
PATTERN = gl.constexpr(2)


@aggregate
class Tiling:
    """What is known when the kernel is compiled; BOX and UNITS as in gluon_rows.py, 64 slots."""

    INTERVALS: gl.constexpr
    HAS_PATTERNS: gl.constexpr
    HEAD_DIM: gl.constexpr
    BOX: gl.constexpr
    UNITS: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, INTERVALS, HAS_PATTERNS, HEAD_DIM, BOX, UNITS):
        self.INTERVALS = gl.constexpr(INTERVALS)
        self.HAS_PATTERNS = gl.constexpr(HAS_PATTERNS)
        self.HEAD_DIM = gl.constexpr(HEAD_DIM)
        self.BOX = gl.constexpr(BOX)
        self.UNITS = gl.constexpr(UNITS)


@aggregate
class Shared:
    """Shared memory: buffers and the barriers that say they are full."""

    q: gl.shared_memory_descriptor  # [2, 1, 1, 64, HEAD_DIM]: of each consumer, later its dQ
    grad_out: gl.shared_memory_descriptor  # [2, 1, 1, 64, HEAD_DIM]
    k: gl.shared_memory_descriptor  # [STAGES, 1, 1, 64, HEAD_DIM]
    v: gl.shared_memory_descriptor  # [STAGES, 1, 1, 64, HEAD_DIM]
    patterns: gl.shared_memory_descriptor  # [STAGES, 1, 2, 256]
    words: gl.shared_memory_descriptor  # the same memory, [STAGES * 2, 64, 4]
    records: gl.shared_memory_descriptor  # [2, 8]: the items in flight
    fields: gl.shared_memory_descriptor  # the same memory, [16, 1]
    q_full: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    record_full: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(
        self, q, grad_out, k, v, patterns, words, records, fields, q_full, k_full, v_full,
        record_full,
    ):  # fmt: skip
        self.q = q
        self.grad_out = grad_out
        self.k = k
        self.v = v
        self.patterns = patterns
        self.words = words
        self.records = records
        self.fields = fields
        self.q_full = q_full
        self.k_full = k_full
        self.v_full = v_full
        self.record_full = record_full


# ------------------------------------------------------------------------------ producer


@gluon.jit
def _issue(ring, count, block, pattern, keys, shared, T, KIND: gl.constexpr):
    """K and V of a block into the next stage."""
    k, v, PATTERNS, batch, kv_head, num_kv_heads, grid = keys
    K, K_GRID = k
    V, V_GRID = v
    stage = ring.stage
    if count >= STAGES:
        sync_named(K_EMPTY + stage, THREADS)
    barrier = shared.k_full.index(stage)
    if KIND == PATTERN:
        mbarrier.expect(barrier, K.block_type.nbytes + PATTERNS.block_type.nbytes)
        load_block(PATTERNS, [pattern, 0, 0], barrier, shared.patterns.index(stage))
    else:
        mbarrier.expect(barrier, K.block_type.nbytes)
    load_rows(
        K, K_GRID, barrier, shared.k.index(stage), batch, kv_head, num_kv_heads, block * KEYS,
        grid, T.BOX, T.UNITS, T.HEAD_DIM,
    )  # fmt: skip
    if count >= STAGES:
        sync_named(V_EMPTY + stage, THREADS)
    barrier = shared.v_full.index(stage)
    mbarrier.expect(barrier, V.block_type.nbytes)
    load_rows(
        V, V_GRID, barrier, shared.v.index(stage), batch, kv_head, num_kv_heads, block * KEYS,
        grid, T.BOX, T.UNITS, T.HEAD_DIM,
    )  # fmt: skip
    return ring.next(STAGES), count + 1


@gluon.jit
def _produce(q, k, v, grad_out, PATTERNS, shared, lists, scalars, grid, T):
    """The producer warp: from the first ticket to the end of the queue."""
    ITEMS, OFFSETS, COUNTS, ENTRIES, TICKETS = lists
    num_items, num_programs, num_blocks, num_heads, group, kv_batch_step = scalars
    Q, Q_GRID = q
    GRAD_OUT, GRAD_OUT_GRID = grad_out
    item = gl.program_id(0)
    ticket = take_ticket(TICKETS)
    n = item * 0
    count = n
    ring = Ring(n, n)
    while item < num_items:
        head_index = gl.load(ITEMS + 2 * item)
        q_block = gl.load(ITEMS + 2 * item + 1)
        full, bounds, patterns, full_blocks, bounds_blocks = entries_of(
            OFFSETS, COUNTS, num_blocks, q_block
        )
        full_first, full_stop = full
        bounds_first, bounds_stop = bounds
        pattern_first, pattern_stop = patterns
        if n > 0:  # the item before has left Q; its record has been read
            sync_named(Q_EMPTY, THREADS)
        publish(
            shared.records, shared.record_full, n, head_index, q_block, bounds_first,
            bounds_stop - bounds_first, full_blocks, bounds_blocks, pattern_stop - pattern_first, 0,
        )  # fmt: skip
        batch = head_index // num_heads
        head = head_index % num_heads
        for i in gl.static_range(2):
            barrier = shared.q_full.index(i)
            slot = (q_block * 2 + i) * QUERIES
            mbarrier.expect(barrier, Q.block_type.nbytes + GRAD_OUT.block_type.nbytes)
            load_rows(
                Q, Q_GRID, barrier, shared.q.index(i), batch, head, num_heads, slot,
                grid, T.BOX, T.UNITS, T.HEAD_DIM,
            )  # fmt: skip
            load_rows(
                GRAD_OUT, GRAD_OUT_GRID, barrier, shared.grad_out.index(i), batch, head, num_heads,
                slot, grid, T.BOX, T.UNITS, T.HEAD_DIM,
            )  # fmt: skip
        keys = (k, v, PATTERNS, batch * kv_batch_step, head // group, num_heads // group, grid)
        if T.HAS_PATTERNS:
            for entry in range(pattern_first, pattern_stop):
                block = gl.load(ENTRIES + 2 * entry)
                pattern = gl.load(ENTRIES + 2 * entry + 1)
                ring, count = _issue(ring, count, block, pattern, keys, shared, T, PATTERN)
        if T.INTERVALS > 0:
            for run in range(bounds_first, bounds_stop):
                first = gl.load(ENTRIES + 2 * run)
                stop = gl.load(ENTRIES + 2 * run + 1)
                for block in range(first, stop):
                    ring, count = _issue(ring, count, block, -1, keys, shared, T, BOUNDS)
        for run in range(full_first, full_stop):
            first = gl.load(ENTRIES + 2 * run)
            stop = gl.load(ENTRIES + 2 * run + 1)
            for block in range(first, stop):
                ring, count = _issue(ring, count, block, -1, keys, shared, T, FULL)
        n += 1
        item = num_programs + broadcast(ticket)
        ticket = take_ticket(TICKETS)
    if n > 0:
        sync_named(Q_EMPTY, THREADS)
    publish(shared.records, shared.record_full, n, -1, 0, 0, 0, 0, 0, 0, 0)
    broadcast(ticket)
    leave_queue(TICKETS, num_programs)


# ------------------------------------------------------------------------------ consumers


@aggregate
class Rows:
    """The gradient of 64 queries, and S of the next step."""

    dq: gl.tensor  # [64, HEAD_DIM]
    scores: gl.tensor  # [64 queries, 64 keys]
    ring: Ring  # the stage of the next step
    left: gl.tensor  # steps behind the next one

    @gluon.constexpr_function
    def __init__(self, dq, scores, ring, left):
        self.dq = dq
        self.scores = scores
        self.ring = ring
        self.left = left


@gluon.jit
def _times_keys(x, buffer, HEAD_DIM: gl.constexpr):
    """Queries or dO times the transposed rows of a stage, issued."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    nothing = gl.zeros([QUERIES, KEYS], gl.float32, layout=LAYOUT)
    rows = buffer.reshape([KEYS, HEAD_DIM])
    return warpgroup_mma(x, rows.permute((1, 0)), nothing, use_acc=False, is_async=True)


@gluon.jit
def _step(rows, block, held, mask, scale, shared, T, WARPGROUP: gl.constexpr, KIND: gl.constexpr):
    """One key block; its S is complete, and that of the next one is made here."""
    q, grad_out, lse, delta = held
    BOUNDS_ARRAY, row_slots, num_rows = mask
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.HEAD_DIM, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    stage = rows.ring.stage
    mbarrier.wait(shared.v_full.index(stage), rows.ring.phase)
    grad_weights = _times_keys(grad_out, shared.v.index(stage), T.HEAD_DIM)
    scores = rows.scores
    if KIND == PATTERN:
        scores = mask_by_words(scores, load_words(shared.words, stage * 2 + WARPGROUP, KEYS))
    if KIND == BOUNDS:
        bounds = load_bounds(BOUNDS_ARRAY, row_slots, num_rows, T.INTERVALS)
        scores = mask_by_bounds(scores, block, bounds, T.INTERVALS)
    weights = gl.exp2(scores * scale - lse[:, None])
    ring = rows.ring.next(STAGES)
    # a basic block ends here: else ptxas moves the wait for dO V^T above the exponentials
    mbarrier.wait(shared.k_full.index(ring.stage), ring.phase, pred=rows.left > 0)
    grad_weights = warpgroup_mma_wait(0, deps=(grad_weights,))
    release_stage(V_EMPTY, stage, STAGES, THREADS)
    grad_scores = weights * (grad_weights - delta[:, None])
    if KIND != FULL:  # NaN of a hidden pair goes nowhere
        grad_scores = gl.where(weights == 0.0, 0.0, grad_scores)
    ds = gl.convert_layout(grad_scores.to(shared.k.dtype), P_LAYOUT)
    dq = warpgroup_mma(
        ds, shared.k.index(stage).reshape([KEYS, T.HEAD_DIM]), rows.dq, is_async=True
    )
    scores = _times_keys(q, shared.k.index(ring.stage), T.HEAD_DIM)
    dq, ds = warpgroup_mma_wait(1, deps=(dq, ds))
    release_stage(K_EMPTY, stage, STAGES, THREADS)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    return Rows(dq, scores, ring, rows.left - 1)


@gluon.jit
def _consume(WARPGROUP: gl.constexpr, shared, lists, output, scalars, scales, grid, T):
    """A consumer warpgroup: queries 64 · WARPGROUP … of every item."""
    ENTRIES, BOUNDS_ARRAY, LSE, DELTA = lists
    DQ, DQ_GRID = output
    num_heads, num_rows, padded_len = scalars
    scale, softmax_scale = scales
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.HEAD_DIM, 16])
    n = num_rows * 0
    ring = Ring(n, n)
    q = shared.q.index(WARPGROUP).reshape([QUERIES, T.HEAD_DIM])
    grad_out = shared.grad_out.index(WARPGROUP).reshape([QUERIES, T.HEAD_DIM])
    mbarrier.wait(shared.record_full.index(0), 0)
    head_index = field(shared.fields, n, 0)
    while head_index >= 0:
        q_block = field(shared.fields, n, 1)
        bounds_first = field(shared.fields, n, 2)
        bounds_runs = field(shared.fields, n, 3)
        full_blocks = field(shared.fields, n, 4)
        bounds_blocks = field(shared.fields, n, 5)
        pattern_blocks = field(shared.fields, n, 6)
        slot = (q_block * 2 + WARPGROUP) * QUERIES
        row_slots = slot + gl.arange(0, QUERIES, layout=gl.SliceLayout(1, LAYOUT))
        mask = (BOUNDS_ARRAY, row_slots, num_rows)
        base = head_index.to(gl.int64) * padded_len
        held = (q, grad_out, gl.load(LSE + base + row_slots), gl.load(DELTA + base + row_slots))
        blocks = full_blocks
        if T.HAS_PATTERNS:
            blocks += pattern_blocks
        if T.INTERVALS > 0:
            blocks += bounds_blocks
        dq = gl.zeros([QUERIES, T.HEAD_DIM], gl.float32, layout=O_LAYOUT)
        mbarrier.wait(shared.q_full.index(WARPGROUP), n & 1)
        if blocks > 0:
            mbarrier.wait(shared.k_full.index(ring.stage), ring.phase)
            scores = _times_keys(q, shared.k.index(ring.stage), T.HEAD_DIM)
            scores = warpgroup_mma_wait(0, deps=(scores,))
            rows = Rows(dq, scores, ring, blocks - 1)
            if T.HAS_PATTERNS:
                for _i in range(pattern_blocks):
                    rows = _step(rows, 0, held, mask, scale, shared, T, WARPGROUP, PATTERN)
            if T.INTERVALS > 0:
                for run in range(bounds_first, bounds_first + bounds_runs):
                    start = gl.load(ENTRIES + 2 * run)
                    stop = gl.load(ENTRIES + 2 * run + 1)
                    for block in range(start, stop):
                        rows = _step(rows, block, held, mask, scale, shared, T, WARPGROUP, BOUNDS)
            for _i in range(full_blocks):
                rows = _step(rows, 0, held, mask, scale, shared, T, WARPGROUP, FULL)
            ring = rows.ring
            dq = rows.dq
        q.store((dq * softmax_scale).to(shared.q.dtype))
        fence_async_shared()
        store_rows(
            DQ, DQ_GRID, shared.q.index(WARPGROUP), head_index // num_heads, head_index % num_heads,
            num_heads, slot, grid, T.BOX, T.UNITS, T.HEAD_DIM,
        )  # fmt: skip
        tma.store_wait(0)
        arrive_named(Q_EMPTY, THREADS)
        n += 1
        mbarrier.wait(shared.record_full.index(n & 1), (n >> 1) & 1)
        head_index = field(shared.fields, n, 0)


# ------------------------------------------------------------------------------ kernel


@gluon.jit(
    do_not_specialize=[
        "num_items", "num_programs", "num_blocks", "num_heads", "group", "kv_batch_step",
        "num_rows", "padded_len",
    ]
)  # fmt: skip
def attention_backward_dq(
    Q,  # descriptors [1, 1, 64, HEAD_DIM]
    K,
    V,
    GRAD_OUT,
    DQ,
    Q_GRID,  # descriptors of the boxes of a grid, or None
    K_GRID,
    V_GRID,
    GRAD_OUT_GRID,
    DQ_GRID,
    PATTERNS,  # descriptor [1, 2, 256] of int32[num_patterns, 2, 256], or None
    LSE,  # float32[batch * num_heads, padded_len]: base 2, +inf without keys
    DELTA,
    ITEMS,  # int32[items, 2]: (batch * num_heads + head, query block)
    OFFSETS,  # int32[3, num_blocks + 1]: where full, bounds and pattern entries of a block begin
    COUNTS,  # int32[2, num_blocks]: how many blocks its full and its bounds runs hold
    ENTRIES,  # int32[entries, 2]: (first, stop) of a run, or (block, pattern)
    BOUNDS_ARRAY,  # int32[2 * INTERVALS, num_rows]
    TICKETS,  # int32[2]: zeros, and zeros again afterwards
    num_items,
    num_programs,
    num_blocks,
    num_heads,
    group,  # query heads of a key head
    kv_batch_step,  # 0 where all batches share K and V, else 1
    num_rows,
    padded_len,
    scale,  # softmax scale in base 2
    softmax_scale,
    grid,  # see GridRows.geometry; None where slots are tokens
    INTERVALS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    BOX: gl.constexpr,  # of 64 slots of a grid, or ()
    UNITS: gl.constexpr,
):
    """The gradient of 128 queries an item."""
    DTYPE: gl.constexpr = K.dtype
    HAS_PATTERNS: gl.constexpr = PATTERNS is not None
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    q = gl.allocate_shared_memory(DTYPE, [2, 1, 1, QUERIES, HEAD_DIM], Q.layout)
    grad_out = gl.allocate_shared_memory(DTYPE, [2, 1, 1, QUERIES, HEAD_DIM], GRAD_OUT.layout)
    k = gl.allocate_shared_memory(DTYPE, [STAGES, 1, 1, KEYS, HEAD_DIM], K.layout)
    v = gl.allocate_shared_memory(DTYPE, [STAGES, 1, 1, KEYS, HEAD_DIM], V.layout)
    records = gl.allocate_shared_memory(gl.int32, [2, 8], LINE)
    fields = reinterpret(records, gl.int32, [16, 1], LINE)
    if HAS_PATTERNS:
        patterns = gl.allocate_shared_memory(gl.int32, [STAGES, 1, 2, 256], PATTERNS.layout)
        words = reinterpret(patterns, gl.int32, [STAGES * 2, QUERIES, 4], PLAIN)
    else:
        patterns = records
        words = records
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    record_full = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    for i in gl.static_range(2):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(record_full.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
    shared = Shared(
        q, grad_out, k, v, patterns, words, records, fields, q_full, k_full, v_full, record_full
    )
    T = Tiling(INTERVALS, HAS_PATTERNS, HEAD_DIM, BOX, UNITS)
    lists = (ENTRIES, BOUNDS_ARRAY, LSE, DELTA)
    sizes = (num_heads, num_rows, padded_len)
    scales = (scale, softmax_scale)
    producer_lists = (ITEMS, OFFSETS, COUNTS, ENTRIES, TICKETS)
    producer_sizes = (num_items, num_programs, num_blocks, num_heads, group, kv_batch_step)
    gl.warp_specialize(
        [
            (_consume, (0, shared, lists, (DQ, DQ_GRID), sizes, scales, grid, T)),
            (_consume, (1, shared, lists, (DQ, DQ_GRID), sizes, scales, grid, T)),
            (_produce, ((Q, Q_GRID), (K, K_GRID), (V, V_GRID), (GRAD_OUT, GRAD_OUT_GRID), PATTERNS,
                        shared, producer_lists, producer_sizes, grid, T)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
