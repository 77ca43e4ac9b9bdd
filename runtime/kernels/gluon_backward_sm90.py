"""Attention backward on Hopper (sm_90a): keys stay, queries stream by; dK, dV and dQ in one kernel.

A program is persistent and draws items (a key head and a block of 128 keys, or a part of what sees
them) from a queue.  For every query head of the group it walks blocks of 64 queries:

    producer    a warp: K and V of the item; Q, dO, LSE and delta of each query block into a ring of
                stages, with the words of a pattern or the bounds of the rows where they mask it
    consumers   two warpgroups of 64 keys each.  Everything is transposed, keys down:
                P^T = exp2(K Q^T - lse), dV += P^T dO, dS^T = P^T (V dO^T - delta), dK += dS^T Q,
                and half of the columns each of dQ = dS K, for which both exchange dS in shared
                memory; dQ goes to shared memory as float32, in the order of the accumulator
    adder       a warp: adds what the consumers have left there to dQ in memory, by TMA

What is in flight in a consumer at step j, from top to bottom of `_step`:

    V dO^T issued | P of step j (S was made a step ahead), beside it | dV issued | V dO^T done
    | dS, to shared memory | both warpgroups meet | dQ issued | dK issued
    | dV and dQ done: dQ to the adder | S of step j + 1 issued | dK done, stage free | S done

S is complete at the loop's back edge: in flight across it, ptxas would serialise all products.

Without dQ (DQ = None) the kernel is deterministic: parts write sums of their own, added later.
Measured on an H200 (Triton 3.6.0): see docs/performance.md.  Tested without one, see the forward.

Source: Shah et al., FlashAttention-3 (arXiv 2407.08608), section 4 on the backward.
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
from cmask.runtime.kernels.gluon_names import add_block, aggregate, load_block, reinterpret
from cmask.runtime.kernels.gluon_rows import load_rows, store_rows
from cmask.runtime.kernels.gluon_softmax import load_words, mask_by_bounds_across, mask_by_words
from cmask.runtime.kernels.gluon_sync import (
    Ring,
    arrive_named,
    broadcast,
    field,
    leave_queue,
    opaque,
    publish,
    release_stage,
    sync_named,
    sync_warp,
    take_ticket,
)

DS_STORED = gl.constexpr(5)  # both consumers have stored dS, or have read K for the last time
KV_EMPTY = gl.constexpr(6)  # dK and dV have left the buffers of K and V
Q_EMPTY = gl.constexpr(8)  # 8, 9: a stage of queries has been read
DQ_FULL = gl.constexpr(10)  # 10, 11: a consumer has left its half of dQ
DQ_EMPTY = gl.constexpr(12)  # 12, 13: the adder is done with it
STAGES = gl.constexpr(2)
THREADS = gl.constexpr(288)  # two consumers and the producer
ADDER_THREADS = gl.constexpr(160)  # a consumer and the adder
KEYS = gl.constexpr(64)  # of a consumer
QUERIES = gl.constexpr(64)  # of a block
FULL = gl.constexpr(0)
BOUNDS = gl.constexpr(1)
PATTERN = gl.constexpr(2)


@aggregate
class Tiling:
    """What is known when the kernel is compiled.

    BOX: the box of a grid that 64 slots are, or () where slots are tokens.
    UNITS: how many of them a tile of the grid is cut into.
    """

    INTERVALS: gl.constexpr
    HAS_PATTERNS: gl.constexpr
    HEAD_DIM: gl.constexpr
    BOX: gl.constexpr
    UNITS: gl.constexpr
    THREADS: gl.constexpr  # all: consumers, producer, and the adder if there is one

    @gluon.constexpr_function
    def __init__(self, INTERVALS, HAS_PATTERNS, HEAD_DIM, BOX, UNITS, HAS_ADDER):
        self.INTERVALS = gl.constexpr(INTERVALS)
        self.HAS_PATTERNS = gl.constexpr(HAS_PATTERNS)
        self.HEAD_DIM = gl.constexpr(HEAD_DIM)
        self.BOX = gl.constexpr(BOX)
        self.UNITS = gl.constexpr(UNITS)
        self.THREADS = gl.constexpr(320 if HAS_ADDER else 288)


@aggregate
class Shared:
    """Shared memory: buffers and the barriers that say they are full."""

    q: gl.shared_memory_descriptor  # [STAGES, 1, 1, 64, HEAD_DIM]
    grad_out: gl.shared_memory_descriptor  # [STAGES, 1, 1, 64, HEAD_DIM]
    k: gl.shared_memory_descriptor  # [2, 1, 1, 64, HEAD_DIM]: a half for each consumer, later dK
    v: gl.shared_memory_descriptor  # the same, later dV
    grad_scores: gl.shared_memory_descriptor  # [4, 64, 64]: dS^T, two buffers for two consumers
    dq: gl.shared_memory_descriptor  # [2, HEAD_DIM / 8, 256]: a half for each consumer, float32
    places: gl.shared_memory_descriptor  # [2, 1]: the row of DQ that each half begins at
    lse: gl.shared_memory_descriptor  # [STAGES, 1, 64]
    delta: gl.shared_memory_descriptor  # [STAGES, 1, 64]
    bounds: gl.shared_memory_descriptor  # [STAGES, 2 * INTERVALS, 64]
    patterns: gl.shared_memory_descriptor  # [STAGES, 1, 2, 256]
    words: gl.shared_memory_descriptor  # the same memory, [STAGES * 2, 64, 4]
    records: gl.shared_memory_descriptor  # [2, 8]: the items in flight
    fields: gl.shared_memory_descriptor  # the same memory, [16, 1]
    blocks: gl.shared_memory_descriptor  # [STAGES, 1]: which query block a stage holds
    q_full: gl.shared_memory_descriptor
    grad_full: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    record_full: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(
        self, q, grad_out, k, v, grad_scores, dq, places, lse, delta, bounds, patterns, words,
        records, fields, blocks, q_full, grad_full, k_full, v_full, record_full,
    ):  # fmt: skip
        self.q = q
        self.grad_out = grad_out
        self.k = k
        self.v = v
        self.grad_scores = grad_scores
        self.dq = dq
        self.places = places
        self.lse = lse
        self.delta = delta
        self.bounds = bounds
        self.patterns = patterns
        self.words = words
        self.records = records
        self.fields = fields
        self.blocks = blocks
        self.q_full = q_full
        self.grad_full = grad_full
        self.k_full = k_full
        self.v_full = v_full
        self.record_full = record_full


# ------------------------------------------------------------------------------ producer


@gluon.jit
def _load_half_blocks(x, buffers, barrier, batch, head, num_heads, key, grid, T):
    """128 rows of K or V as two halves, on one barrier."""
    x, x_grid = x
    mbarrier.expect(barrier, 2 * x.block_type.nbytes)
    for i in gl.static_range(2):
        load_rows(
            x, x_grid, barrier, buffers.index(i), batch, head, num_heads, key + i * KEYS,
            grid, T.BOX, T.UNITS, T.HEAD_DIM,
        )  # fmt: skip


@gluon.jit
def _issue(ring, count, block, pattern, inputs, place, shared, grid, T, KIND: gl.constexpr):
    """One query block into the next stage; V of the item behind the first Q."""
    q, grad_out, V, LSE, DELTA, BOUNDS_ARRAY, PATTERNS = inputs
    Q, Q_GRID = q
    GRAD_OUT, GRAD_OUT_GRID = grad_out
    batch, head, num_heads, head_index, kv_head, num_kv_heads, key, is_first = place
    stage = ring.stage
    if count >= STAGES:
        sync_named(Q_EMPTY + stage, THREADS)
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    # made visible by the arrival that `expect` is
    shared.blocks.index(stage).store(gl.full([1], 0, gl.int32, layout=LAYOUT) + block)
    sync_warp()
    barrier = shared.q_full.index(stage)
    row = block * QUERIES
    if KIND == PATTERN:
        mbarrier.expect(
            barrier, Q.block_type.nbytes + LSE.block_type.nbytes + PATTERNS.block_type.nbytes
        )
        load_block(PATTERNS, [pattern, 0, 0], barrier, shared.patterns.index(stage))
    elif KIND == BOUNDS:
        mbarrier.expect(
            barrier, Q.block_type.nbytes + LSE.block_type.nbytes + BOUNDS_ARRAY.block_type.nbytes
        )
        load_block(BOUNDS_ARRAY, [0, row], barrier, shared.bounds.index(stage))
    else:
        mbarrier.expect(barrier, Q.block_type.nbytes + LSE.block_type.nbytes)
    load_rows(
        Q, Q_GRID, barrier, shared.q.index(stage), batch, head, num_heads, row,
        grid, T.BOX, T.UNITS, T.HEAD_DIM,
    )  # fmt: skip
    load_block(LSE, [head_index, row], barrier, shared.lse.index(stage))
    if is_first:
        _load_half_blocks(
            V, shared.v, shared.v_full.index(0), batch, kv_head, num_kv_heads, key, grid, T
        )
    barrier = shared.grad_full.index(stage)
    mbarrier.expect(barrier, GRAD_OUT.block_type.nbytes + DELTA.block_type.nbytes)
    load_rows(
        GRAD_OUT, GRAD_OUT_GRID, barrier, shared.grad_out.index(stage), batch, head, num_heads, row,
        grid, T.BOX, T.UNITS, T.HEAD_DIM,
    )  # fmt: skip
    load_block(DELTA, [head_index, row], barrier, shared.delta.index(stage))
    return ring.next(STAGES), count + 1


@gluon.jit
def _produce(K, inputs, shared, lists, scalars, grid, T):
    """The producer warp: from the first ticket to the end of the queue."""
    ITEMS, OWNERS, OFFSETS, COUNTS, ENTRIES, TICKETS = lists
    num_items, num_programs, num_owners, num_kv_heads, group = scalars
    V = inputs[2]
    num_heads = num_kv_heads * group
    item = gl.program_id(0)
    ticket = take_ticket(TICKETS)
    n = item * 0
    count = n
    ring = Ring(n, n)
    while item < num_items:
        kv_index = gl.load(ITEMS + 2 * item)
        owner = gl.load(ITEMS + 2 * item + 1)
        k_block = gl.load(OWNERS + 2 * owner)
        slot = gl.load(OWNERS + 2 * owner + 1)
        full, bounds, patterns, full_blocks, bounds_blocks = entries_of(
            OFFSETS, COUNTS, num_owners, owner
        )
        full_first, full_stop = full
        bounds_first, bounds_stop = bounds
        pattern_first, pattern_stop = patterns
        if n > 0:  # the item before has left K and V; its record has been read
            sync_named(KV_EMPTY, T.THREADS)
        publish(
            shared.records, shared.record_full, n, kv_index, k_block, pattern_stop - pattern_first,
            bounds_blocks, full_blocks, slot, 0, 0,
        )  # fmt: skip
        batch = kv_index // num_kv_heads
        kv_head = kv_index % num_kv_heads
        key = k_block * 2 * KEYS
        _load_half_blocks(
            K, shared.k, shared.k_full.index(0), batch, kv_head, num_kv_heads, key, grid, T
        )
        is_first = True
        for g in range(group):
            head = kv_head * group + g
            head_index = kv_index * group + g
            if T.HAS_PATTERNS:
                for entry in range(pattern_first, pattern_stop):
                    block = gl.load(ENTRIES + 2 * entry)
                    pattern = gl.load(ENTRIES + 2 * entry + 1)
                    place = (
                        batch,
                        head,
                        num_heads,
                        head_index,
                        kv_head,
                        num_kv_heads,
                        key,
                        is_first,
                    )
                    ring, count = _issue(
                        ring, count, block, pattern, inputs, place, shared, grid, T, PATTERN
                    )
                    is_first = False
            if T.INTERVALS > 0:
                for run in range(bounds_first, bounds_stop):
                    first = gl.load(ENTRIES + 2 * run)
                    stop = gl.load(ENTRIES + 2 * run + 1)
                    for block in range(first, stop):
                        place = (
                            batch,
                            head,
                            num_heads,
                            head_index,
                            kv_head,
                            num_kv_heads,
                            key,
                            is_first,
                        )
                        ring, count = _issue(
                            ring, count, block, -1, inputs, place, shared, grid, T, BOUNDS
                        )
                        is_first = False
            for run in range(full_first, full_stop):
                first = gl.load(ENTRIES + 2 * run)
                stop = gl.load(ENTRIES + 2 * run + 1)
                # from the last: programs that start together read and add at the same place in L2
                for back in range(stop - first):
                    block = stop - 1 - back
                    place = (
                        batch,
                        head,
                        num_heads,
                        head_index,
                        kv_head,
                        num_kv_heads,
                        key,
                        is_first,
                    )
                    ring, count = _issue(
                        ring, count, block, -1, inputs, place, shared, grid, T, FULL
                    )
                    is_first = False
        if is_first:  # keys that no query sees: consumers wait for V all the same
            _load_half_blocks(
                V, shared.v, shared.v_full.index(0), batch, kv_head, num_kv_heads, key, grid, T
            )
        n += 1
        item = num_programs + broadcast(ticket)
        ticket = take_ticket(TICKETS)
    if n > 0:
        sync_named(KV_EMPTY, T.THREADS)
    publish(shared.records, shared.record_full, n, -1, 0, 0, 0, 0, 0, 0, 0)
    broadcast(ticket)
    leave_queue(TICKETS, num_programs)


# ------------------------------------------------------------------------------ consumers


@aggregate
class Grads:
    """The gradients of 64 keys, and S^T of the next step."""

    dk: gl.tensor  # [64, HEAD_DIM]
    dv: gl.tensor  # [64, HEAD_DIM]
    scores: gl.tensor  # [64 keys, 64 queries]
    ring: Ring  # the stage of the next step
    buffer: gl.tensor  # which of the two buffers of dS it takes
    left: gl.tensor  # steps behind the next one

    @gluon.constexpr_function
    def __init__(self, dk, dv, scores, ring, buffer, left):
        self.dk = dk
        self.dv = dv
        self.scores = scores
        self.ring = ring
        self.buffer = buffer
        self.left = left


@gluon.jit
def _scores(shared, stage, HALF, HEAD_DIM: gl.constexpr):
    """K Q^T of a stage, issued."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, QUERIES, 16])
    nothing = gl.zeros([KEYS, QUERIES], gl.float32, layout=LAYOUT)
    k = shared.k.index(HALF).reshape([KEYS, HEAD_DIM])
    q = shared.q.index(stage).reshape([QUERIES, HEAD_DIM])
    return warpgroup_mma(k, q.permute((1, 0)), nothing, use_acc=False, is_async=True)


@gluon.jit
def _leave_dq(dq, block_index, shared, WARPGROUP: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Give [64, HEAD_DIM / 2] to the adder in the order of the accumulator: 16 bytes a thread."""
    x = gl.reshape(dq, [4, 2, 8, HEAD_DIM // 16, 4, 2])
    x = gl.permute(x, (3, 0, 2, 4, 1, 5))
    x = gl.reshape(x, [HEAD_DIM // 8, 256])
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    row = (block_index * 2 + WARPGROUP) * (HEAD_DIM // 8)
    sync_named(DQ_EMPTY + WARPGROUP, ADDER_THREADS)
    shared.dq.index(WARPGROUP).store(x)
    shared.places.index(WARPGROUP).store(gl.full([1], 0, gl.int32, layout=ONE) + row)
    fence_async_shared()
    arrive_named(DQ_FULL + WARPGROUP, ADDER_THREADS)


@gluon.jit
def _store_part(PART, x, HEAD_DIM: gl.constexpr):
    """Write [64, HEAD_DIM] in the order of the accumulator."""
    x = gl.reshape(x, [4, 2, 8, HEAD_DIM // 8, 4, 2])
    x = gl.permute(x, (3, 0, 2, 4, 1, 5))
    x = gl.reshape(x, [64 * HEAD_DIM])
    gl.store(PART + gl.arange(0, 64 * HEAD_DIM, layout=x.type.layout), x)


@gluon.jit
def _step(
    grads, key, head_index, DQ, num_q_blocks, scale, shared, T, WARPGROUP: gl.constexpr,
    KIND: gl.constexpr,
):  # fmt: skip
    """One query block; its S^T is complete, and that of the next one is made here."""
    DTYPE: gl.constexpr = shared.k.dtype
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, QUERIES, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.HEAD_DIM, 16])
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.HEAD_DIM // 2, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    ACROSS: gl.constexpr = gl.SliceLayout(0, LAYOUT)
    HALF: gl.constexpr = T.HEAD_DIM // 2
    stage = grads.ring.stage
    q = shared.q.index(stage).reshape([QUERIES, T.HEAD_DIM])
    grad_out = shared.grad_out.index(stage).reshape([QUERIES, T.HEAD_DIM])
    # opaque: else the descriptors of K and V are hoisted out of the loop, and spilled
    v = shared.v.index(opaque(WARPGROUP)).reshape([KEYS, T.HEAD_DIM])
    nothing = gl.zeros([KEYS, QUERIES], gl.float32, layout=LAYOUT)
    mbarrier.wait(shared.grad_full.index(stage), grads.ring.phase)
    grad_weights = warpgroup_mma(v, grad_out.permute((1, 0)), nothing, use_acc=False, is_async=True)
    lse = shared.lse.index(stage).reshape([QUERIES]).load(ACROSS)
    scores = grads.scores
    if KIND == PATTERN:
        words = load_words(shared.words, stage * 2 + WARPGROUP, QUERIES)
        scores = mask_by_words(scores, words)
    if KIND == BOUNDS:
        scores = mask_by_bounds_across(scores, key, shared.bounds.index(stage), T.INTERVALS)
    weights = gl.exp2(scores * scale - lse[None, :])
    p = gl.convert_layout(weights.to(DTYPE), P_LAYOUT)
    dv = warpgroup_mma(p, grad_out, grads.dv, is_async=True)
    delta = shared.delta.index(stage).reshape([QUERIES]).load(ACROSS)
    grad_weights = warpgroup_mma_wait(1, deps=(grad_weights,))
    grad_scores = weights * (grad_weights - delta[None, :])
    if KIND != FULL:  # NaN of a hidden pair goes nowhere
        grad_scores = gl.where(weights == 0.0, 0.0, grad_scores)
    halves = grad_scores.to(DTYPE)
    ds = gl.convert_layout(halves, P_LAYOUT)
    block = gl.max(shared.blocks.index(stage).load(gl.BlockedLayout([1], [32], [4], [0])), 0)
    ring = grads.ring.next(STAGES)
    if DQ is not None:
        shared.grad_scores.index(grads.buffer * 2 + WARPGROUP).store(halves)
        fence_async_shared()
        sync_named(DS_STORED, 256)
        none = gl.zeros([QUERIES, HALF], gl.float32, layout=DQ_LAYOUT)
        first = shared.grad_scores.index(grads.buffer * 2).permute((1, 0))
        second = shared.grad_scores.index(grads.buffer * 2 + 1).permute((1, 0))
        k0 = (
            shared.k.index(opaque(0))
            .reshape([KEYS, T.HEAD_DIM])
            .slice(WARPGROUP * HALF, HALF, dim=1)
        )
        k1 = (
            shared.k.index(opaque(1))
            .reshape([KEYS, T.HEAD_DIM])
            .slice(WARPGROUP * HALF, HALF, dim=1)
        )
        dq = warpgroup_mma(first, k0, none, use_acc=False, is_async=True)
        dq = warpgroup_mma(second, k1, dq, is_async=True)
        dk = warpgroup_mma(ds, q, grads.dk, is_async=True)
        dv, dq, p = warpgroup_mma_wait(1, deps=(dv, dq, p))
        _leave_dq(dq, head_index * num_q_blocks + block, shared, WARPGROUP, T.HEAD_DIM)
        mbarrier.wait(shared.q_full.index(ring.stage), ring.phase, pred=grads.left > 0)
        scores = _scores(shared, ring.stage, opaque(WARPGROUP), T.HEAD_DIM)
        dk, ds = warpgroup_mma_wait(1, deps=(dk, ds))
        release_stage(Q_EMPTY, stage, STAGES, THREADS)
        scores = warpgroup_mma_wait(0, deps=(scores,))
    else:
        dk = warpgroup_mma(ds, q, grads.dk, is_async=True)
        mbarrier.wait(shared.q_full.index(ring.stage), ring.phase, pred=grads.left > 0)
        scores = _scores(shared, ring.stage, opaque(WARPGROUP), T.HEAD_DIM)
        dv, dk, p, ds, scores = warpgroup_mma_wait(0, deps=(dv, dk, p, ds, scores))
        release_stage(Q_EMPTY, stage, STAGES, THREADS)
    return Grads(dk, dv, scores, ring, grads.buffer ^ 1, grads.left - 1)


@gluon.jit
def _consume(WARPGROUP: gl.constexpr, shared, outputs, scalars, scales, grid, T):
    """A consumer warpgroup: keys 64 · WARPGROUP … of every item."""
    dk_rows, dv_rows, DQ, PARTS = outputs
    DK, DK_GRID = dk_rows
    DV, DV_GRID = dv_rows
    num_kv_heads, group, num_q_blocks, num_slots = scalars
    scale, softmax_scale = scales
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, QUERIES, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.HEAD_DIM, 16])
    n = num_kv_heads * 0
    ring = Ring(n, n)
    mbarrier.wait(shared.record_full.index(0), 0)
    kv_index = field(shared.fields, n, 0)
    while kv_index >= 0:
        k_block = field(shared.fields, n, 1)
        pattern_blocks = field(shared.fields, n, 2)
        bounds_blocks = field(shared.fields, n, 3)
        full_blocks = field(shared.fields, n, 4)
        slot = field(shared.fields, n, 5)
        batch = kv_index // num_kv_heads
        kv_head = kv_index % num_kv_heads
        first_key = k_block * 2 * KEYS + WARPGROUP * KEYS
        key = first_key + gl.arange(0, KEYS, layout=gl.SliceLayout(1, LAYOUT))
        blocks = full_blocks
        if T.HAS_PATTERNS:
            blocks += pattern_blocks
        if T.INTERVALS > 0:
            blocks += bounds_blocks
        dk = gl.zeros([KEYS, T.HEAD_DIM], gl.float32, layout=O_LAYOUT)
        dv = gl.zeros([KEYS, T.HEAD_DIM], gl.float32, layout=O_LAYOUT)
        mbarrier.wait(shared.k_full.index(0), n & 1)
        if blocks > 0:
            mbarrier.wait(shared.q_full.index(ring.stage), ring.phase)
            scores = _scores(shared, ring.stage, WARPGROUP, T.HEAD_DIM)
            scores = warpgroup_mma_wait(0, deps=(scores,))
            mbarrier.wait(shared.v_full.index(0), n & 1)
            grads = Grads(dk, dv, scores, ring, n * 0, blocks * group - 1)
            for g in range(group):
                head_index = kv_index * group + g
                if T.HAS_PATTERNS:
                    for _i in range(pattern_blocks):
                        grads = _step(
                            grads, key, head_index, DQ, num_q_blocks, scale, shared, T, WARPGROUP,
                            PATTERN,
                        )  # fmt: skip
                if T.INTERVALS > 0:
                    for _i in range(bounds_blocks):
                        grads = _step(
                            grads, key, head_index, DQ, num_q_blocks, scale, shared, T, WARPGROUP,
                            BOUNDS,
                        )  # fmt: skip
                for _i in range(full_blocks):
                    grads = _step(
                        grads, key, head_index, DQ, num_q_blocks, scale, shared, T, WARPGROUP,
                        FULL,
                    )  # fmt: skip
            ring = grads.ring
            dk = grads.dk
            dv = grads.dv
        else:
            mbarrier.wait(shared.v_full.index(0), n & 1)
        if slot < 0:
            shared.v.index(WARPGROUP).reshape([KEYS, T.HEAD_DIM]).store(dv.to(shared.v.dtype))
            fence_async_shared()
            store_rows(
                DV, DV_GRID, shared.v.index(WARPGROUP), batch, kv_head, num_kv_heads, first_key,
                grid, T.BOX, T.UNITS, T.HEAD_DIM,
            )  # fmt: skip
        else:
            part = ((kv_index * num_slots + slot) * 2 + WARPGROUP).to(gl.int64) * 2
            _store_part(PARTS + part * (KEYS * T.HEAD_DIM), dk, T.HEAD_DIM)
            _store_part(PARTS + (part + 1) * (KEYS * T.HEAD_DIM), dv, T.HEAD_DIM)
        sync_named(DS_STORED, 256)  # the other warpgroup has read this one's K for the last time
        if slot < 0:
            halves = (dk * softmax_scale).to(shared.k.dtype)
            shared.k.index(WARPGROUP).reshape([KEYS, T.HEAD_DIM]).store(halves)
            fence_async_shared()
            store_rows(
                DK, DK_GRID, shared.k.index(WARPGROUP), batch, kv_head, num_kv_heads, first_key,
                grid, T.BOX, T.UNITS, T.HEAD_DIM,
            )  # fmt: skip
            tma.store_wait(0)
        arrive_named(KV_EMPTY, T.THREADS)
        n += 1
        mbarrier.wait(shared.record_full.index(n & 1), (n >> 1) & 1)
        kv_index = field(shared.fields, n, 0)


# ------------------------------------------------------------------------------ adder


@gluon.jit
def _add(DQ, shared, group, T):
    """The warp that adds dQ of every step; halves come and go in the order of the consumers."""
    n = group * 0
    mbarrier.wait(shared.record_full.index(0), 0)
    kv_index = field(shared.fields, n, 0, 1)
    while kv_index >= 0:
        blocks = field(shared.fields, n, 4, 1)
        if T.HAS_PATTERNS:
            blocks += field(shared.fields, n, 2, 1)
        if T.INTERVALS > 0:
            blocks += field(shared.fields, n, 3, 1)
        arrive_named(KV_EMPTY, T.THREADS)  # the record has been read
        for _i in range(blocks * group):
            for half in gl.static_range(2):
                arrive_named(DQ_EMPTY + half, ADDER_THREADS)
            for half in gl.static_range(2):
                sync_named(DQ_FULL + half, ADDER_THREADS)
                row = gl.max(
                    shared.places.index(half).load(gl.BlockedLayout([1], [32], [1], [0])), 0
                )
                add_block(DQ, [row, 0], shared.dq.index(half))
                tma.store_wait(0)
        n += 1
        mbarrier.wait(shared.record_full.index(n & 1), (n >> 1) & 1)
        kv_index = field(shared.fields, n, 0, 1)


# ------------------------------------------------------------------------------ kernel


@gluon.jit(
    do_not_specialize=[
        "num_items", "num_programs", "num_owners", "num_kv_heads", "group", "num_q_blocks",
        "num_slots",
    ]
)  # fmt: skip
def attention_backward(
    Q,  # descriptors [1, 1, 64, HEAD_DIM]
    K,
    V,
    GRAD_OUT,
    DK,
    DV,
    Q_GRID,  # descriptors of the boxes of a grid, or None
    K_GRID,
    V_GRID,
    GRAD_OUT_GRID,
    DK_GRID,
    DV_GRID,
    LSE,  # descriptors [1, 64] of float32[batch * num_heads, rows]: base 2, +inf without keys
    DELTA,
    BOUNDS_ARRAY,  # descriptor [2 * INTERVALS, 64] of int32[2 * INTERVALS, rows], or None
    PATTERNS,  # descriptor [1, 2, 256] of int32[num_patterns, 2, 256], keys down; or None
    DQ,  # descriptor [HEAD_DIM / 8, 256] of float32[batch * num_heads * num_q_blocks * 2 *
    # HEAD_DIM / 8, 256], zeros; or None
    PARTS,  # float32[batch * num_kv_heads, num_slots, 2, 2, 64 * HEAD_DIM]: dK and dV of parts
    ITEMS,  # int32[items, 2]: (batch * num_kv_heads + kv_head, owner)
    OWNERS,  # int32[num_owners, 2]: (key block, slot in PARTS or -1)
    OFFSETS,  # int32[3, num_owners + 1]: where full, bounds and pattern entries of an owner begin
    COUNTS,  # int32[2, num_owners]: how many blocks its full and its bounds runs hold
    ENTRIES,  # int32[entries, 2]: (first, stop) of a run, or (block, pattern)
    TICKETS,  # int32[2]: zeros, and zeros again afterwards
    num_items,
    num_programs,
    num_owners,
    num_kv_heads,
    group,  # query heads of a key head
    num_q_blocks,
    num_slots,
    scale,  # softmax scale in base 2
    softmax_scale,
    grid,  # see GridRows.geometry; None where slots are tokens
    INTERVALS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    BOX: gl.constexpr,  # of 64 slots of a grid, or ()
    UNITS: gl.constexpr,
):
    """Gradients of 128 keys an item, and what they add to dQ."""
    DTYPE: gl.constexpr = K.dtype
    HAS_PATTERNS: gl.constexpr = PATTERNS is not None
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    q = gl.allocate_shared_memory(DTYPE, [STAGES, 1, 1, QUERIES, HEAD_DIM], Q.layout)
    grad_out = gl.allocate_shared_memory(DTYPE, [STAGES, 1, 1, QUERIES, HEAD_DIM], GRAD_OUT.layout)
    k = gl.allocate_shared_memory(DTYPE, [2, 1, 1, KEYS, HEAD_DIM], K.layout)
    v = gl.allocate_shared_memory(DTYPE, [2, 1, 1, KEYS, HEAD_DIM], V.layout)
    DS_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, QUERIES], DTYPE)
    if DQ is not None:
        grad_scores = gl.allocate_shared_memory(DTYPE, [4, KEYS, QUERIES], DS_LAYOUT)
        dq = gl.allocate_shared_memory(gl.float32, [2, HEAD_DIM // 8, 256], DQ.layout)
        places = gl.allocate_shared_memory(gl.int32, [2, 1], LINE)
    else:
        grad_scores = q
        dq = q
        places = q
    lse = gl.allocate_shared_memory(gl.float32, [STAGES, 1, QUERIES], LSE.layout)
    delta = gl.allocate_shared_memory(gl.float32, [STAGES, 1, QUERIES], DELTA.layout)
    records = gl.allocate_shared_memory(gl.int32, [2, 8], LINE)
    fields = reinterpret(records, gl.int32, [16, 1], LINE)
    blocks = gl.allocate_shared_memory(gl.int32, [STAGES, 1], LINE)
    if INTERVALS > 0:
        bounds = gl.allocate_shared_memory(
            gl.int32, [STAGES, 2 * INTERVALS, QUERIES], BOUNDS_ARRAY.layout
        )
    else:
        bounds = records
    if HAS_PATTERNS:
        patterns = gl.allocate_shared_memory(gl.int32, [STAGES, 1, 2, 256], PATTERNS.layout)
        words = reinterpret(patterns, gl.int32, [STAGES * 2, KEYS, 4], PLAIN)
    else:
        patterns = records
        words = records
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    grad_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    k_full = gl.allocate_shared_memory(gl.int64, [1, 1], BARRIER)
    v_full = gl.allocate_shared_memory(gl.int64, [1, 1], BARRIER)
    record_full = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    for i in gl.static_range(STAGES):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(grad_full.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(record_full.index(i), count=1)
    mbarrier.init(k_full.index(0), count=1)
    mbarrier.init(v_full.index(0), count=1)
    shared = Shared(
        q, grad_out, k, v, grad_scores, dq, places, lse, delta, bounds, patterns, words, records,
        fields, blocks, q_full, grad_full, k_full, v_full, record_full,
    )  # fmt: skip
    inputs = (
        (Q, Q_GRID),
        (GRAD_OUT, GRAD_OUT_GRID),
        (V, V_GRID),
        LSE,
        DELTA,
        BOUNDS_ARRAY,
        PATTERNS,
    )
    lists = (ITEMS, OWNERS, OFFSETS, COUNTS, ENTRIES, TICKETS)
    sizes = (num_kv_heads, group, num_q_blocks, num_slots)
    producer_sizes = (num_items, num_programs, num_owners, num_kv_heads, group)
    outputs = ((DK, DK_GRID), (DV, DV_GRID), DQ, PARTS)
    scales = (scale, softmax_scale)
    T = Tiling(INTERVALS, HAS_PATTERNS, HEAD_DIM, BOX, UNITS, DQ is not None)
    if DQ is not None:
        gl.warp_specialize(
            [
                (_consume, (0, shared, outputs, sizes, scales, grid, T)),
                (_consume, (1, shared, outputs, sizes, scales, grid, T)),
                (_produce, ((K, K_GRID), inputs, shared, lists, producer_sizes, grid, T)),
                (_add, (DQ, shared, group, T)),
            ],
            [4, 1, 1],
            [240, 24, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (0, shared, outputs, sizes, scales, grid, T)),
                (_consume, (1, shared, outputs, sizes, scales, grid, T)),
                (_produce, ((K, K_GRID), inputs, shared, lists, producer_sizes, grid, T)),
            ],
            [4, 1],
            [240, 24],
        )
