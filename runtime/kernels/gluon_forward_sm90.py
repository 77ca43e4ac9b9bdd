"""Attention forward on Hopper (sm_90a): a producer warp, consumer warpgroups, a queue of work.

A program is persistent.  It draws items (a head and a block of 64 queries per consumer warpgroup)
from a global counter and walks the key blocks that those queries see:

    producer    draws an item ahead, loads Q (two items in flight), then K and V of each block by
                TMA into a ring of stages; the words of a pattern arrive on their K block's barrier
    consumers   one warpgroup per 64 queries: S = Q K^T, mask, online softmax, O += P V

What is in flight in a consumer at block j, from top to bottom of `_attend`:

    my turn | Q K_j^T issued | O rescaled | P_{j-1} V_{j-1} issued | the other's turn
    | Q K_j^T done, stage of K_j free | mask, maximum, exponentials, sums: all beside P V
    | K_{j+1} has arrived | P V done, stage of V_{j-1} free | P_j rounded

So the exponentials of one warpgroup overlap its own second product and the other's first.  The
wait for K_{j+1} stands before the last wait on purpose: it ends a basic block, without which
ptxas moves that wait above the exponentials and the overlap is lost.

Measured on an H200 (Triton 3.6.0): see docs/performance.md.  The compiled code is checked in the
tests without a GPU: no spills in loops, no serialised wgmma, exponentials between the two waits.
So is what it computes: tests/support/hopper runs this source as Python on a machine whose copies
come as late and in as odd an order as they may, and finds races and deadlocks.

Sources: Shah et al., FlashAttention-3 (arXiv 2407.08608); lazy rescaling: FlashAttention-4.
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
from cmask.runtime.kernels.gluon_rows import corner, is_in_grid, linear, load_rows, store_rows
from cmask.runtime.kernels.gluon_softmax import (
    load_bounds,
    load_words,
    mask_by_bounds,
    mask_by_words,
    pack_weights,
    rescale_result,
    row_sums,
    softmax_step,
    unpack_weights,
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

TURN = gl.constexpr(5)  # 5, 6: whose turn it is at the tensor cores
K_EMPTY = gl.constexpr(8)  # 8, 9, 10: a stage of keys has been read
V_EMPTY = gl.constexpr(11)  # 11, 12, 13: a stage of values has been read
Q_EMPTY = gl.constexpr(14)  # 14, 15: a query block is done, its output has left the buffer
FULL = gl.constexpr(0)
BOUNDS = gl.constexpr(1)
PATTERN = gl.constexpr(2)
LN_2 = gl.constexpr(0.6931471805599453)


@aggregate
class Tiling:
    """What is known when the kernel is compiled.

    BOX: the box of a grid that 64 slots are, or () where slots are tokens; KEY_BOX: of a key block.
    UNITS, KEY_UNITS: how many of them a tile of the grid is cut into.
    PIECES: queries and keys lie in so many pieces of PIECE columns each, side by side: a buffer's
    columns are a power of two, and 192 of 256 would be a quarter of Q K^T for nothing.
    """

    WARPGROUPS: gl.constexpr
    THREADS: gl.constexpr  # of the consumers and the producer: who meets at an empty stage
    STAGES: gl.constexpr
    Q_BUFFERS: gl.constexpr
    BLOCK_N: gl.constexpr
    PIECES: gl.constexpr
    PIECE: gl.constexpr
    V_HEAD_DIM: gl.constexpr
    COLUMNS: gl.constexpr  # of a buffer that holds a query block and later its output
    INTERVALS: gl.constexpr
    HAS_PATTERNS: gl.constexpr
    BOX: gl.constexpr
    UNITS: gl.constexpr
    KEY_BOX: gl.constexpr
    KEY_UNITS: gl.constexpr

    @gluon.constexpr_function
    def __init__(
        self, WARPGROUPS, STAGES, Q_BUFFERS, BLOCK_N, PIECES, PIECE, V_HEAD_DIM, INTERVALS,
        HAS_PATTERNS, BOX, UNITS, KEY_BOX, KEY_UNITS,
    ):  # fmt: skip
        self.WARPGROUPS = gl.constexpr(WARPGROUPS)
        self.THREADS = gl.constexpr(WARPGROUPS * 128 + 32)
        self.STAGES = gl.constexpr(STAGES)
        self.Q_BUFFERS = gl.constexpr(Q_BUFFERS)
        self.BLOCK_N = gl.constexpr(BLOCK_N)
        self.PIECES = gl.constexpr(PIECES)
        self.PIECE = gl.constexpr(PIECE)
        self.V_HEAD_DIM = gl.constexpr(V_HEAD_DIM)
        self.COLUMNS = gl.constexpr(max(PIECES * PIECE, V_HEAD_DIM))
        self.INTERVALS = gl.constexpr(INTERVALS)
        self.HAS_PATTERNS = gl.constexpr(HAS_PATTERNS)
        self.BOX = gl.constexpr(BOX)
        self.UNITS = gl.constexpr(UNITS)
        self.KEY_BOX = gl.constexpr(KEY_BOX)
        self.KEY_UNITS = gl.constexpr(KEY_UNITS)


@aggregate
class Shared:
    """Shared memory: buffers and the barriers that say they are full."""

    q: gl.shared_memory_descriptor  # [… * COLUMNS / PIECE, 1, 1, 64, PIECE]
    out: gl.shared_memory_descriptor  # the same memory, [… * COLUMNS / V_HEAD_DIM, …, V_HEAD_DIM]
    k: gl.shared_memory_descriptor  # [STAGES * PIECES, 1, 1, BLOCK_N, PIECE]
    v: gl.shared_memory_descriptor  # [STAGES, 1, 1, BLOCK_N, V_HEAD_DIM]
    patterns: gl.shared_memory_descriptor  # [STAGES, 1, WARPGROUPS, 256]
    words: gl.shared_memory_descriptor  # the same memory, [STAGES * WARPGROUPS, 64, 4]
    records: gl.shared_memory_descriptor  # [2, 8]: the items in flight
    fields: gl.shared_memory_descriptor  # the same memory, [16, 1]
    q_full: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    record_full: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(
        self, q, out, k, v, patterns, words, records, fields, q_full, k_full, v_full, record_full
    ):
        self.q = q
        self.out = out
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


@gluon.jit
def _queries_of(buffer, T):
    """The first piece of a query buffer in `Shared.q`."""
    return buffer * (T.COLUMNS // T.PIECE)


@gluon.jit
def _output_of(buffer, T):
    """The output in `Shared.out` that lies within a query buffer: the first that begins there.

    A buffer of 192 columns has room for one of 128 wherever outputs begin.
    """
    return (buffer * T.COLUMNS + T.V_HEAD_DIM - 1) // T.V_HEAD_DIM


# ------------------------------------------------------------------------------ rows in memory


@gluon.jit
def _store_lse(LSE, lse, head_index, q_len, slot, grid, BOX: gl.constexpr, UNITS: gl.constexpr):
    """64 values of LSE, in the caller's order of tokens; none where LSE is no address."""
    wanted = LSE.to(gl.int64) != 0
    i = gl.arange(0, 64, layout=lse.type.layout)
    base = LSE + head_index.to(gl.int64) * q_len
    if len(BOX) == 0:
        gl.store(base + slot + i, lse, mask=(slot + i < q_len) & wanted)
    else:
        if is_in_grid(slot, grid):
            frame, row, column = corner(slot, grid, BOX, UNITS)
            if len(BOX) == 2:
                row = row + i // BOX[1]
                column = column + i % BOX[1]
                frame = row * 0
            else:
                frame = frame + i // (BOX[1] * BOX[2])
                row = row + i // BOX[2] % BOX[1]
                column = column + i % BOX[2]
            frames, rows, columns, first_token = grid[4], grid[5], grid[6], grid[7]
            token = first_token + (frame * rows + row) * columns + column
            inside = (frame < frames) & (row < rows) & (column < columns)
            gl.store(base + token, lse, mask=inside & wanted)
        else:
            line_first, line_length = grid[8], grid[9]
            line = linear(slot, grid) + i
            gl.store(base + line_first + line, lse, mask=(line < line_length) & wanted)


# ------------------------------------------------------------------------------ producer


@aggregate
class Issued:
    """Where the producer stands: K blocks issued, the stage of the next, and V's arrears.

    V of a block is issued behind K of the next one: consumers need it that much later.
    """

    count: gl.tensor
    stage: gl.tensor
    v_stage: gl.tensor
    v_block: gl.tensor  # the block whose V is owed, or -1

    @gluon.constexpr_function
    def __init__(self, count, stage, v_stage, v_block):
        self.count = count
        self.stage = stage
        self.v_stage = v_stage
        self.v_block = v_block


@gluon.jit
def _issue_v(state, keys, shared, T):
    """V of the block that is owed."""
    _K, V, _PATTERNS, batch, head, num_kv_heads, first_key, grid = keys
    if state.v_block >= 0:
        v, v_grid = V
        if state.count > T.STAGES:
            sync_named(V_EMPTY + state.v_stage, T.THREADS)
        barrier = shared.v_full.index(state.v_stage)
        mbarrier.expect(barrier, v.block_type.nbytes)
        load_rows(
            v, v_grid, barrier, shared.v.index(state.v_stage), batch, head, num_kv_heads,
            state.v_block * T.BLOCK_N - first_key, grid, T.KEY_BOX, T.KEY_UNITS, T.V_HEAD_DIM,
        )  # fmt: skip


@gluon.jit
def _issue_block(state, block, pattern, keys, shared, T):
    """K of a block, its pattern (-1: none), then V of the block before."""
    K, _V, PATTERNS, batch, head, num_kv_heads, first_key, grid = keys
    k, k_grid = K
    if state.count >= T.STAGES:
        sync_named(K_EMPTY + state.stage, T.THREADS)
    barrier = shared.k_full.index(state.stage)
    if T.HAS_PATTERNS:
        if pattern >= 0:
            mbarrier.expect(barrier, T.PIECES * k.block_type.nbytes + PATTERNS.block_type.nbytes)
            load_block(PATTERNS, [pattern, 0, 0], barrier, shared.patterns.index(state.stage))
        else:
            mbarrier.expect(barrier, T.PIECES * k.block_type.nbytes)
    else:
        mbarrier.expect(barrier, T.PIECES * k.block_type.nbytes)
    for piece in gl.static_range(T.PIECES):
        load_rows(
            k, k_grid, barrier, shared.k.index(state.stage * T.PIECES + piece), batch, head,
            num_kv_heads, block * T.BLOCK_N - first_key, grid, T.KEY_BOX, T.KEY_UNITS, T.PIECE,
            piece * T.PIECE,
        )  # fmt: skip
    _issue_v(state, keys, shared, T)
    next_stage = state.stage + 1
    return Issued(
        state.count + 1, gl.where(next_stage == T.STAGES, 0, next_stage), state.stage, block
    )


@gluon.jit
def _produce(Q, K, V, PATTERNS, shared, lists, scalars, grid, T):
    """The producer warp: from the first ticket to the end of the queue."""
    ITEMS, OFFSETS, COUNTS, ENTRIES, TICKETS = lists
    (
        num_items, num_programs, num_blocks, num_heads, heads_per_kv_head, kv_batch_step, first_key
    ) = scalars  # fmt: skip
    q, q_grid = Q
    item = gl.program_id(0)
    ticket = take_ticket(TICKETS)
    zero = item * 0
    state = Issued(zero, zero, zero, zero - 1)
    n = zero
    while item < num_items:
        head_index = gl.load(ITEMS + 2 * item)
        q_block = gl.load(ITEMS + 2 * item + 1)
        full, bounds, patterns, full_blocks, bounds_blocks = entries_of(
            OFFSETS, COUNTS, num_blocks, q_block
        )
        full_first, full_stop = full
        bounds_first, bounds_stop = bounds
        pattern_first, pattern_stop = patterns
        buffer = n % T.Q_BUFFERS
        if n >= T.Q_BUFFERS:  # the item before last has left: its record is read, its O stored
            sync_named(Q_EMPTY + buffer, T.THREADS)
        publish(
            shared.records, shared.record_full, n, head_index, q_block, bounds_first,
            bounds_stop - bounds_first, full_first, bounds_blocks, full_blocks,
            pattern_stop - pattern_first,
        )  # fmt: skip
        batch = head_index // num_heads
        head = head_index % num_heads
        for i in gl.static_range(T.WARPGROUPS):
            place = buffer * T.WARPGROUPS + i
            barrier = shared.q_full.index(place)
            mbarrier.expect(barrier, T.PIECES * q.block_type.nbytes)
            for piece in gl.static_range(T.PIECES):
                load_rows(
                    q, q_grid, barrier, shared.q.index(_queries_of(place, T) + piece), batch, head,
                    num_heads, (q_block * T.WARPGROUPS + i) * 64, grid, T.BOX, T.UNITS, T.PIECE,
                    piece * T.PIECE,
                )  # fmt: skip
        kv_head = head // heads_per_kv_head
        keys = (
            K,
            V,
            PATTERNS,
            batch * kv_batch_step,
            kv_head,
            num_heads // heads_per_kv_head,
            first_key,
            grid,
        )
        if T.HAS_PATTERNS:
            for entry in range(pattern_first, pattern_stop):
                block = gl.load(ENTRIES + 2 * entry)
                pattern = gl.load(ENTRIES + 2 * entry + 1)
                state = _issue_block(state, block, pattern, keys, shared, T)
        if T.INTERVALS > 0:
            for run in range(bounds_first, bounds_stop):
                first = gl.load(ENTRIES + 2 * run)
                stop = gl.load(ENTRIES + 2 * run + 1)
                for block in range(first, stop):
                    state = _issue_block(state, block, -1, keys, shared, T)
        for run in range(full_first, full_stop):
            first = gl.load(ENTRIES + 2 * run)
            stop = gl.load(ENTRIES + 2 * run + 1)
            for block in range(first, stop):
                state = _issue_block(state, block, -1, keys, shared, T)
        _issue_v(state, keys, shared, T)
        state = Issued(state.count, state.stage, state.v_stage, zero - 1)
        n += 1
        item = num_programs + broadcast(ticket)
        ticket = take_ticket(TICKETS)
    if n >= T.Q_BUFFERS:
        sync_named(Q_EMPTY + n % T.Q_BUFFERS, T.THREADS)
    publish(shared.records, shared.record_full, n, -1, 0, 0, 0, 0, 0, 0, 0)
    broadcast(ticket)
    leave_queue(TICKETS, num_programs)


# ------------------------------------------------------------------------------ consumers


@aggregate
class Item:
    """64 queries of one head, and the buffer that holds them and later their output."""

    head_index: gl.tensor  # batch * num_heads + head
    slot: gl.tensor  # the first
    buffer: gl.tensor

    @gluon.constexpr_function
    def __init__(self, head_index, slot, buffer):
        self.head_index = head_index
        self.slot = slot
        self.buffer = buffer


@aggregate
class Rows:
    """The running softmax of 64 queries, and the block whose P V is still owed."""

    accumulator: gl.tensor  # [64, V_HEAD_DIM], to be multiplied by `rescale` before the next P V
    weights: gl.tensor  # P of the last block, [64, BLOCK_N / 2] pairs
    rescale: gl.tensor  # [64]
    row_max: gl.tensor  # [64], in base 2
    row_sum: gl.tensor  # [64, 4]: a part for each of four lanes
    k: Ring  # the next K block
    v: Ring  # the V block that is owed
    left: gl.tensor  # blocks behind the next one

    @gluon.constexpr_function
    def __init__(self, accumulator, weights, rescale, row_max, row_sum, k, v, left):
        self.accumulator = accumulator
        self.weights = weights
        self.rescale = rescale
        self.row_max = row_max
        self.row_sum = row_sum
        self.k = k
        self.v = v
        self.left = left


@gluon.jit
def _scores(q, stage, shared, T):
    """Q K^T of a stage, issued; q: the first piece of the queries."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.BLOCK_N, 16])
    scores = gl.zeros([64, T.BLOCK_N], gl.float32, layout=LAYOUT)
    for piece in gl.static_range(T.PIECES):
        queries = shared.q.index(q + piece).reshape([64, T.PIECE])
        k = shared.k.index(stage * T.PIECES + piece).reshape([T.BLOCK_N, T.PIECE])
        scores = warpgroup_mma(queries, k.permute((1, 0)), scores, use_acc=piece > 0, is_async=True)
    return scores


@gluon.jit
def _weigh(rows, shared, T):
    """The owed P V, issued; (accumulator, weights), which stay alive until it is waited for."""
    DTYPE: gl.constexpr = shared.v.dtype
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.V_HEAD_DIM, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    accumulator = rescale_result(rows.accumulator, rows.rescale)
    mbarrier.wait(shared.v_full.index(rows.v.stage), rows.v.phase)
    weights = unpack_weights(rows.weights, DTYPE, P_LAYOUT)
    v = shared.v.index(rows.v.stage).reshape([T.BLOCK_N, T.V_HEAD_DIM])
    return warpgroup_mma(weights, v, accumulator, is_async=True), weights


@gluon.jit
def _sum_up(row_max, row_sum, item, output, T):
    """Log-sum-exps to memory; (batch, head, factors of the accumulator) for `_write`.

    All of it runs beside the last P V: behind it, it was 1% of a window's time.
    """
    _out, _out_grid, LSE, num_heads, q_len, grid = output
    total = gl.convert_layout(gl.sum(row_sum, 1), row_max.type.layout)
    saw_nothing = total == 0.0
    total = gl.where(saw_nothing, 1.0, total)
    lse = gl.where(saw_nothing, float("-inf"), (row_max + gl.log2(total)) * LN_2)
    _store_lse(LSE, lse, item.head_index, q_len, item.slot, grid, T.BOX, T.UNITS)
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.V_HEAD_DIM, 16])
    factors = gl.convert_layout(1.0 / total, gl.SliceLayout(1, O_LAYOUT))
    return item.head_index // num_heads, item.head_index % num_heads, factors


@gluon.jit
def _write(accumulator, summed_up, item, shared, output, T):
    """The output of an item on its way to memory."""
    out, out_grid, _LSE, num_heads, _q_len, grid = output
    batch, head, factors = summed_up
    target = shared.out.index(_output_of(item.buffer, T))
    output = (accumulator * factors[:, None]).to(shared.out.dtype)
    target.reshape([64, T.V_HEAD_DIM]).store(output)
    fence_async_shared()
    store_rows(
        out, out_grid, target, batch, head, num_heads, item.slot, grid, T.BOX, T.UNITS, T.V_HEAD_DIM
    )


@gluon.jit
def _release_q(n, T):
    """The n-th item's output has left its buffer: the producer may load queries there."""
    tma.store_wait(0)
    arrive_named(Q_EMPTY + n % T.Q_BUFFERS, T.THREADS)


@gluon.jit
def _attend(
    rows, q, block, mask, scale, shared, WARPGROUP: gl.constexpr, KIND: gl.constexpr, T
):  # fmt: skip
    """One more block; K of it is known to have arrived."""
    if KIND == BOUNDS:
        BOUNDS_ARRAY, row_slots, num_rows = mask
        bounds = load_bounds(BOUNDS_ARRAY, row_slots, num_rows, T.INTERVALS)
    if T.WARPGROUPS == 2:
        sync_named(TURN + WARPGROUP, 256)
    scores = _scores(q, rows.k.stage, shared, T)
    accumulator, weights = _weigh(rows, shared, T)
    if T.WARPGROUPS == 2:
        arrive_named(TURN + (WARPGROUP + 1) % 2, 256)
    if KIND == PATTERN:
        words = load_words(shared.words, rows.k.stage * T.WARPGROUPS + WARPGROUP, T.BLOCK_N)
    scores = warpgroup_mma_wait(1, deps=(scores,))
    release_stage(K_EMPTY, rows.k.stage, T.STAGES, T.THREADS)
    scores = warpgroup_mma_wait(1, deps=(scores,))  # keeps ptxas from sinking the release
    if KIND == BOUNDS:
        scores = mask_by_bounds(scores, block, bounds, T.INTERVALS)
    if KIND == PATTERN:
        scores = mask_by_words(scores, words)
    weights32, row_max, row_sum, rescale = softmax_step(
        scores, rows.row_max, rows.row_sum, scale, False, KIND != FULL
    )
    next_k = rows.k.next(T.STAGES)
    mbarrier.wait(shared.k_full.index(next_k.stage), next_k.phase, pred=rows.left > 0)
    accumulator, weights = warpgroup_mma_wait(0, deps=(accumulator, weights))
    release_stage(V_EMPTY, rows.v.stage, T.STAGES, T.THREADS)
    rescale = gl.convert_layout(rescale, gl.SliceLayout(1, accumulator.type.layout))
    # before the wait, ptxas would serialise all wgmma
    pairs = pack_weights(weights32, shared.v.dtype)
    return Rows(accumulator, pairs, rescale, row_max, row_sum, next_k, rows.k, rows.left - 1)


@gluon.jit
def _begin(k_ring, q, first, mask, scale, shared, blocks, WARPGROUP: gl.constexpr, T):
    """The first block of an item, which has no P V beside it.

    It is masked whatever its kind is: a full one by words of ones or by its rows' bounds.
    """
    BOUNDS_ARRAY, row_slots, num_rows = mask
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.V_HEAD_DIM, 16])
    pattern_blocks, first_block = first
    if T.INTERVALS > 0:
        bounds = load_bounds(BOUNDS_ARRAY, row_slots, num_rows, T.INTERVALS)
    mbarrier.wait(shared.k_full.index(k_ring.stage), k_ring.phase)
    if T.WARPGROUPS == 2:
        sync_named(TURN + WARPGROUP, 256)
    scores = _scores(q, k_ring.stage, shared, T)
    if T.WARPGROUPS == 2:
        arrive_named(TURN + (WARPGROUP + 1) % 2, 256)
    if T.HAS_PATTERNS:
        words = load_words(shared.words, k_ring.stage * T.WARPGROUPS + WARPGROUP, T.BLOCK_N)
        words = gl.where(pattern_blocks > 0, words, -1)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    release_stage(K_EMPTY, k_ring.stage, T.STAGES, T.THREADS)
    if T.HAS_PATTERNS:
        scores = mask_by_words(scores, words)
    if T.INTERVALS > 0:
        scores = mask_by_bounds(scores, first_block, bounds, T.INTERVALS)
    row_max = gl.full([64], float("-inf"), gl.float32, layout=gl.SliceLayout(1, S_LAYOUT))
    row_sum = row_sums(gl.zeros([64, T.BLOCK_N], gl.float32, layout=S_LAYOUT))
    weights, row_max, row_sum, _ = softmax_step(
        scores, row_max, row_sum, scale, True, T.HAS_PATTERNS or T.INTERVALS > 0
    )
    next_k = k_ring.next(T.STAGES)
    mbarrier.wait(shared.k_full.index(next_k.stage), next_k.phase, pred=blocks > 1)
    pairs = pack_weights(weights, shared.v.dtype)
    nothing = gl.zeros([64, T.V_HEAD_DIM], gl.float32, layout=O_LAYOUT)
    ones = gl.full([64], 1.0, gl.float32, layout=gl.SliceLayout(1, O_LAYOUT))
    return Rows(nothing, pairs, ones, row_max, row_sum, next_k, k_ring, blocks - 2)


@gluon.jit
def _nothing(T):
    """(accumulator, row_max, row_sum) of 64 queries that see no key."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.V_HEAD_DIM, 16])
    return (
        gl.zeros([64, T.V_HEAD_DIM], gl.float32, layout=O_LAYOUT),
        gl.full([64], float("-inf"), gl.float32, layout=gl.SliceLayout(1, S_LAYOUT)),
        row_sums(gl.zeros([64, T.BLOCK_N], gl.float32, layout=S_LAYOUT)),
    )


@gluon.jit
def _consume(WARPGROUP: gl.constexpr, shared, lists, num_rows, scale, output, T):
    """A consumer warpgroup: rows 64 · WARPGROUP … of every item.

    To issue an item's last P V beside the next item's first block was tried in several forms: 3 to
    5% slower on short rows (docs/performance.md).
    """
    ENTRIES, BOUNDS_ARRAY = lists
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.BLOCK_N, 16])
    n = num_rows * 0
    k_ring = Ring(n, n)
    if T.WARPGROUPS == 2:
        if WARPGROUP == 1:
            arrive_named(TURN + 0, 256)
    mbarrier.wait(shared.record_full.index(0), 0)
    head_index = field(shared.fields, n, 0)
    while head_index >= 0:
        q_block = field(shared.fields, n, 1)
        bounds_first = field(shared.fields, n, 2)
        bounds_runs = field(shared.fields, n, 3)
        full_first = field(shared.fields, n, 4)
        bounds_blocks = field(shared.fields, n, 5)
        full_blocks = field(shared.fields, n, 6)
        pattern_blocks = field(shared.fields, n, 7)
        item = Item(
            head_index,
            (q_block * T.WARPGROUPS + WARPGROUP) * 64,
            n % T.Q_BUFFERS * T.WARPGROUPS + WARPGROUP,
        )
        row_slots = item.slot + gl.arange(0, 64, layout=gl.SliceLayout(1, S_LAYOUT))
        mask = (BOUNDS_ARRAY, row_slots, num_rows)
        blocks = full_blocks
        if T.HAS_PATTERNS:
            blocks += pattern_blocks
        if T.INTERVALS > 0:
            blocks += bounds_blocks
        q = _queries_of(item.buffer, T)
        mbarrier.wait(shared.q_full.index(item.buffer), n // T.Q_BUFFERS & 1)
        if blocks > 0:
            start = n
            stop = n
            if T.INTERVALS > 0:
                run = gl.where(bounds_runs > 0, bounds_first, full_first)
                start = gl.load(ENTRIES + 2 * run)
                stop = gl.load(ENTRIES + 2 * run + 1)
            first = (pattern_blocks, start)
            rows = _begin(k_ring, q, first, mask, scale, shared, blocks, WARPGROUP, T)
            if T.Q_BUFFERS == 2:
                if n > 0:  # the store of the item before ran on meanwhile
                    _release_q(n - 1, T)
            if T.HAS_PATTERNS:
                for _i in range(pattern_blocks - 1):
                    rows = _attend(rows, q, 0, mask, scale, shared, WARPGROUP, PATTERN, T)
            if T.INTERVALS > 0:
                start += 1
                for i in range(bounds_runs):  # the next run is loaded before this one is walked
                    run = bounds_first + gl.where(i + 1 < bounds_runs, i + 1, i)
                    next_start = gl.load(ENTRIES + 2 * run)
                    next_stop = gl.load(ENTRIES + 2 * run + 1)
                    for block in range(start, stop):
                        rows = _attend(rows, q, block, mask, scale, shared, WARPGROUP, BOUNDS, T)
                    start = next_start
                    stop = next_stop
            for _i in range(rows.left + 1):  # what is left is full: only the number matters
                rows = _attend(rows, q, 0, mask, scale, shared, WARPGROUP, FULL, T)
            k_ring = rows.k
            accumulator, weights = _weigh(rows, shared, T)
            summed_up = _sum_up(rows.row_max, rows.row_sum, item, output, T)
            accumulator, weights = warpgroup_mma_wait(0, deps=(accumulator, weights))
            release_stage(V_EMPTY, rows.v.stage, T.STAGES, T.THREADS)
        else:
            if T.Q_BUFFERS == 2:
                if n > 0:
                    _release_q(n - 1, T)
            accumulator, row_max, row_sum = _nothing(T)
            summed_up = _sum_up(row_max, row_sum, item, output, T)
        _write(accumulator, summed_up, item, shared, output, T)
        if T.Q_BUFFERS == 1:
            _release_q(n, T)
        n += 1
        mbarrier.wait(shared.record_full.index(n & 1), (n >> 1) & 1)
        head_index = field(shared.fields, n, 0)
    tma.store_wait(0)
    if T.WARPGROUPS == 2:
        if WARPGROUP == 0:
            sync_named(TURN + 0, 256)


# ------------------------------------------------------------------------------ kernel


@gluon.jit(
    do_not_specialize=[
        "num_items", "num_programs", "num_blocks", "num_heads", "heads_per_kv_head",
        "kv_batch_step", "q_len", "num_rows", "first_key",
    ]
)  # fmt: skip
def attention_forward(
    Q,  # descriptors [1, 1, 64, PIECE] of rows in a line
    K,  # [1, 1, BLOCK_N, PIECE]
    V,  # [1, 1, BLOCK_N, V_HEAD_DIM]
    OUT,
    Q_GRID,  # descriptors of the boxes of a grid, or None
    K_GRID,
    V_GRID,
    OUT_GRID,
    PATTERNS,  # descriptor [1, WARPGROUPS, 256] of int32[num_patterns, WARPGROUPS, 256], or None
    LSE,  # float32[batch, num_heads, q_len], or the address 0: not wanted
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
    heads_per_kv_head,
    kv_batch_step,  # 0 where all batches share K and V, else 1
    q_len,
    num_rows,
    first_key,  # where K and V begin: their descriptors hold no key before it
    grid,  # see GridRows.geometry; None where slots are tokens
    scale,  # softmax scale in base 2
    INTERVALS: gl.constexpr,
    WARPGROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    Q_BUFFERS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    PIECES: gl.constexpr,
    PIECE: gl.constexpr,
    V_HEAD_DIM: gl.constexpr,
    BOX: gl.constexpr,
    UNITS: gl.constexpr,
    KEY_BOX: gl.constexpr,
    KEY_UNITS: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
):
    """Output and log-sum-exp of 64 · WARPGROUPS queries an item."""
    HAS_PATTERNS: gl.constexpr = PATTERNS is not None
    T = Tiling(
        WARPGROUPS, STAGES, Q_BUFFERS, BLOCK_N, PIECES, PIECE, V_HEAD_DIM, INTERVALS,
        HAS_PATTERNS, BOX, UNITS, KEY_BOX, KEY_UNITS,
    )  # fmt: skip
    DTYPE: gl.constexpr = K.dtype
    NUM_Q: gl.constexpr = Q_BUFFERS * WARPGROUPS
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    Q_COLUMNS: gl.constexpr = NUM_Q * max(PIECES * PIECE, V_HEAD_DIM)
    if PIECES * PIECE >= V_HEAD_DIM:
        q_buffers = gl.allocate_shared_memory(
            DTYPE, [Q_COLUMNS // PIECE, 1, 1, 64, PIECE], Q.layout
        )
        out_buffers = reinterpret(
            q_buffers, DTYPE, [Q_COLUMNS // V_HEAD_DIM, 1, 1, 64, V_HEAD_DIM], OUT.layout
        )
    else:
        out_buffers = gl.allocate_shared_memory(DTYPE, [NUM_Q, 1, 1, 64, V_HEAD_DIM], OUT.layout)
        q_buffers = reinterpret(out_buffers, DTYPE, [Q_COLUMNS // PIECE, 1, 1, 64, PIECE], Q.layout)
    k_stages = gl.allocate_shared_memory(DTYPE, [STAGES * PIECES, 1, 1, BLOCK_N, PIECE], K.layout)
    v_stages = gl.allocate_shared_memory(DTYPE, [STAGES, 1, 1, BLOCK_N, V_HEAD_DIM], V.layout)
    records = gl.allocate_shared_memory(gl.int32, [2, 8], LINE)
    fields = reinterpret(records, gl.int32, [16, 1], LINE)
    if HAS_PATTERNS:
        patterns = gl.allocate_shared_memory(
            gl.int32, [STAGES, 1, WARPGROUPS, 256], PATTERNS.layout
        )
        words = reinterpret(patterns, gl.int32, [STAGES * WARPGROUPS, 64, 4], PLAIN)
    else:
        patterns = records
        words = records
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [NUM_Q, 1], BARRIER)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    record_full = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    for i in gl.static_range(NUM_Q):
        mbarrier.init(q_full.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(record_full.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
    shared = Shared(
        q_buffers, out_buffers, k_stages, v_stages, patterns, words, records, fields, q_full,
        k_full, v_full, record_full,
    )  # fmt: skip
    lists = (ENTRIES, BOUNDS_ARRAY)
    output = (OUT, OUT_GRID, LSE, num_heads, q_len, grid)
    producer_lists = (ITEMS, OFFSETS, COUNTS, ENTRIES, TICKETS)
    producer_sizes = (
        num_items, num_programs, num_blocks, num_heads, heads_per_kv_head, kv_batch_step,
        first_key,
    )  # fmt: skip
    if WARPGROUPS == 2:
        gl.warp_specialize(
            [
                (_consume, (0, shared, lists, num_rows, scale, output, T)),
                (_consume, (1, shared, lists, num_rows, scale, output, T)),
                (_produce, ((Q, Q_GRID), (K, K_GRID), (V, V_GRID), PATTERNS, shared,
                            producer_lists, producer_sizes, grid, T)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_consume, (0, shared, lists, num_rows, scale, output, T)),
                (_produce, ((Q, Q_GRID), (K, K_GRID), (V, V_GRID), PATTERNS, shared,
                            producer_lists, producer_sizes, grid, T)),
            ],
            [1],
            [24],
        )  # fmt: skip
