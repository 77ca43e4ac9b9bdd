"""Attention of few queries over a long key cache in Triton: contiguous or paged, ragged or not.

One program owns a packed block: the rows of all query heads that share a key head, so that keys
and values are read once for all of them.  It walks one of `num_splits` equal shares of the key
blocks that its rows see; a second kernel merges the shares by their log-sum-exps, in the order of
the shares, so that every run gives the same bits.

What a row sees comes as at most 4 intervals of keys.  They are walked one after the other: of
interval i, the blocks between its first start and its last stop over the rows of the packed block.
Those between the last start and the first stop are visible to every row and carry no mask.  A row
that has no interval i sees nothing in that walk.  The intervals of a row are disjoint, so that no
pair counts twice, even where the walks of two intervals meet in a block.

Sources: Dao et al., Flash-Decoding (2023); Kwon et al., PagedAttention (arXiv 2309.06180).
"""

import triton
import triton.language as tl

FAR = tl.constexpr(0x7FFFFF00)  # beyond every key; a block more is still an int32


@triton.jit
def _blocks(number, BLOCK_N: tl.constexpr):
    """How many blocks it takes to cover so many keys."""
    return (number + BLOCK_N - 1) // BLOCK_N


@triton.jit
def _interval(BOUNDS, num_rows, i, row, is_real, sees, first_key, num_keys, BLOCK_N: tl.constexpr):
    """Interval i of the rows [BLOCK_M], and the blocks between which it lies.

    -> (start, stop): keys of each row, empty where it sees none
       (first, full_first, full_stop, stop): blocks [first, stop) hold them, of which
       [full_first, full_stop) are visible to each real row
    """
    base = BOUNDS + 2 * tl.cast(i, tl.int64) * num_rows + row
    start = tl.load(base, mask=sees, other=0) + first_key
    stop = tl.minimum(tl.load(base + num_rows, mask=sees, other=0) + first_key, num_keys)
    sees = sees & (start < stop)
    start = tl.where(sees, start, FAR)
    stop = tl.where(sees, stop, 0)
    last = _blocks(tl.max(stop, 0), BLOCK_N)
    first = tl.minimum(tl.min(start, 0) // BLOCK_N, last)
    full_first = _blocks(tl.max(tl.where(is_real, start, 0), 0), BLOCK_N)
    full_stop = tl.min(tl.where(is_real, stop, FAR), 0) // BLOCK_N
    full_first = tl.minimum(full_first, last)
    full_stop = tl.maximum(full_stop, full_first)
    return start, stop, (first, full_first, full_stop, last)


@triton.jit
def _load_keys(
    X,  # pointer
    layout,  # (batch or page, head, key, column) strides, the first three in units of STEP
    place,  # batch, or page; of each key [BLOCK_N] where a page is smaller than a block
    head,
    first,  # key of the block
    seen,  # [BLOCK_N], or None: all
    PAGE_SIZE: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """[BLOCK_N, PADDED] of one head; zeros where no row sees the key: unread keys may hold NaN."""
    keys = tl.arange(0, BLOCK_N)
    columns = tl.arange(0, PADDED)
    # a product with a constant tells the compiler that whole 16 bytes can be read at once
    base = X + tl.cast(head, tl.int64) * layout[1] * STEP
    if PAGE_SIZE % BLOCK_N == 0:
        row = first if PAGE_SIZE == 0 else first % PAGE_SIZE
        base += tl.cast(place, tl.int64) * layout[0] * STEP
        base += tl.cast(row, tl.int64) * layout[2] * STEP
        offsets = keys * layout[2] * STEP
    else:
        rows = (first + keys) % PAGE_SIZE
        offsets = place.to(tl.int64) * layout[0] * STEP + rows.to(tl.int64) * layout[2] * STEP
    pointers = base + offsets[:, None] + (columns * layout[3])[None, :]
    if seen is None:
        if COLUMNS == PADDED:
            block = tl.load(pointers)
        else:
            block = tl.load(pointers, mask=(columns < COLUMNS)[None, :], other=0.0)
    else:
        block = tl.load(pointers, mask=seen[:, None] & (columns < COLUMNS)[None, :], other=0.0)
    return block


@triton.jit
def _attend(
    accumulator,  # [BLOCK_M, V_PADDED]
    row_max,  # [BLOCK_M], in base 2
    row_sum,  # [BLOCK_M]
    q,  # [BLOCK_M, PADDED]
    cache,  # (K, k_layout, V, v_layout, PAGES, batch, kv_head)
    block,
    start,  # [BLOCK_M], the keys of each row; unused where not MASKED
    stop,
    scale,
    MASKED: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    K_STEP: tl.constexpr,
    V_STEP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    V_PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One block of keys into the running softmax."""
    K, k_layout, V, v_layout, PAGES, batch, kv_head = cache
    first = block * BLOCK_N
    keys = first + tl.arange(0, BLOCK_N)
    if MASKED:
        visible = (keys[None, :] >= start[:, None]) & (keys[None, :] < stop[:, None])
        seen = tl.max(visible.to(tl.int32), 0) != 0  # [BLOCK_N]
    else:
        visible = None
        seen = None
    if PAGE_SIZE == 0:
        place = batch
    else:
        if PAGE_SIZE % BLOCK_N == 0:
            place = tl.load(PAGES + first // PAGE_SIZE)
        else:
            # entries of pages that no row sees may be anything
            if MASKED:
                place = tl.load(PAGES + keys // PAGE_SIZE, mask=seen, other=0)
            else:
                place = tl.load(PAGES + keys // PAGE_SIZE)
    k = _load_keys(
        K, k_layout, place, kv_head, first, seen, PAGE_SIZE, K_STEP, BLOCK_N, HEAD_DIM, PADDED
    )
    scores = tl.dot(q, k.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
    pivot = new_max
    if MASKED:  # a row that has seen nothing so far: -inf - -inf would be NaN
        pivot = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.math.exp2(scores * scale - pivot[:, None])
    rescale = tl.math.exp2(row_max - pivot)
    row_sum = row_sum * rescale + tl.sum(weights, 1)
    accumulator = accumulator * rescale[:, None]
    v = _load_keys(
        V, v_layout, place, kv_head, first, seen, PAGE_SIZE, V_STEP, BLOCK_N, V_HEAD_DIM, V_PADDED
    )
    accumulator = tl.dot(weights.to(v.dtype), v, accumulator, input_precision=PRECISION)
    return accumulator, new_max, row_sum


@triton.jit(
    do_not_specialize=[
        "pages_of_batch", "num_rows", "rows", "group", "num_kv_heads", "capacity", "num_splits",
        "least_blocks",
    ]
)  # fmt: skip
def decode_splits(
    Q,
    q_layout,  # (batch, head, row, column) strides
    K,  # [batch or pages, kv heads, keys or page size, head_dim]
    k_layout,  # its strides, the first three in units of K_STEP
    V,
    v_layout,
    OUT,  # [num_splits * batch, heads, rows, v_head_dim]
    out_layout,  # its strides
    LSE,  # float32[num_splits * batch, heads, rows]
    BOUNDS,  # int32[2 * NUM_INTERVALS, num_rows]: start_0, stop_0, start_1, ... of each row
    KV_LENS,  # int32[batch], or None: all of `capacity`, and row r of q is row r of BOUNDS
    KV_STARTS,  # int32[batch], or None: 0
    PAGES,  # int32[batch, pages_of_batch], or None
    pages_of_batch,
    num_rows,
    rows,
    group,
    num_kv_heads,
    capacity,
    num_splits,
    least_blocks,  # of a share
    scale,  # softmax scale in base 2
    lse_unit,  # ln 2 for natural logarithms, 1 for base 2
    NUM_INTERVALS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,  # 0: not paged
    K_STEP: tl.constexpr,
    V_STEP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    V_PADDED: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Output and log-sum-exp of one packed block over one share of its keys."""
    # blocks of the same keys are neighbours, so that they find them in L2
    num_packed = group * rows
    num_row_blocks = (num_packed + BLOCK_M - 1) // BLOCK_M
    program = tl.program_id(0)
    packed = program % num_row_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    program = program // num_row_blocks
    split = program % num_splits
    program = program // num_splits
    kv_head = program % num_kv_heads
    batch = program // num_kv_heads

    # rows far apart would see different keys: the heads of a row come before the next row
    is_real = packed < num_packed
    r = packed // group
    head = kv_head * group + packed % group
    if KV_LENS is None:
        first_key = 0
        num_keys = capacity
        row = r
        exists = is_real
    else:
        num_keys = tl.minimum(tl.maximum(tl.load(KV_LENS + batch), 0), capacity)
        first_key = 0 if KV_STARTS is None else tl.maximum(tl.load(KV_STARTS + batch), 0)
        row = num_keys - first_key - rows + r  # the last queries stand at the last keys
        exists = is_real & (row >= 0) & (row < num_rows)

    total = 0
    for i in tl.static_range(NUM_INTERVALS):
        _, _, blocks = _interval(
            BOUNDS, num_rows, i, row, is_real, exists, first_key, num_keys, BLOCK_N
        )
        total += blocks[3] - blocks[0]
    share = tl.maximum((total + num_splits - 1) // num_splits, least_blocks)
    begin = split * share  # of the blocks of all intervals, one behind the other
    end = tl.minimum(begin + share, total)

    columns = tl.arange(0, PADDED)
    q = tl.load(
        Q
        + (
            tl.cast(batch, tl.int64) * q_layout[0]
            + head.to(tl.int64) * q_layout[1]
            + r.to(tl.int64) * q_layout[2]
        )[:, None]
        + (columns * q_layout[3])[None, :],
        mask=is_real[:, None] & (columns < HEAD_DIM)[None, :],
        other=0.0,
    )
    # any pointer where there are no pages: it is not read
    pages = BOUNDS if PAGE_SIZE == 0 else PAGES + tl.cast(batch, tl.int64) * pages_of_batch
    cache = (K, k_layout, V, v_layout, pages, batch, kv_head)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    accumulator = tl.zeros([BLOCK_M, V_PADDED], tl.float32)

    before = 0  # blocks of earlier intervals
    for i in range(NUM_INTERVALS):
        start, stop, blocks = _interval(
            BOUNDS, num_rows, i, row, is_real, exists, first_key, num_keys, BLOCK_N
        )
        first, full_first, full_stop, last = blocks
        mine = tl.minimum(tl.maximum(begin - before + first, first), last)
        mine_stop = tl.minimum(tl.maximum(end - before + first, mine), last)
        before += last - first
        full_first = tl.minimum(tl.maximum(full_first, mine), mine_stop)
        full_stop = tl.minimum(tl.maximum(full_stop, full_first), mine_stop)
        for block in tl.range(full_first, full_stop, num_stages=NUM_STAGES):
            accumulator, row_max, row_sum = _attend(
                accumulator, row_max, row_sum, q, cache, block, start, stop, scale, False,
                PAGE_SIZE, K_STEP, V_STEP, BLOCK_N, HEAD_DIM, PADDED, V_HEAD_DIM, V_PADDED,
                PRECISION,
            )  # fmt: skip
        # the blocks before the full ones, then those behind them: few, and not worth a pipeline
        skipped = full_stop - full_first
        for n in tl.range(mine, mine_stop - skipped, num_stages=1):
            block = tl.where(n < full_first, n, n + skipped)
            accumulator, row_max, row_sum = _attend(
                accumulator, row_max, row_sum, q, cache, block, start, stop, scale, True,
                PAGE_SIZE, K_STEP, V_STEP, BLOCK_N, HEAD_DIM, PADDED, V_HEAD_DIM, V_PADDED,
                PRECISION,
            )  # fmt: skip

    saw_nothing = row_sum == 0.0
    row_sum = tl.where(saw_nothing, 1.0, row_sum)
    lse = tl.where(saw_nothing, float("-inf"), (row_max + tl.math.log2(row_sum)) * lse_unit)
    place = split * (tl.num_programs(0) // (num_row_blocks * num_splits * num_kv_heads)) + batch
    place = tl.cast(place, tl.int64)
    heads = group * num_kv_heads
    tl.store(LSE + (place * heads + head) * rows + r, lse, mask=is_real)
    v_columns = tl.arange(0, V_PADDED)
    out_rows = place * out_layout[0] + head.to(tl.int64) * out_layout[1]
    out_rows += r.to(tl.int64) * out_layout[2]
    written = tl.where((begin < end) | (split == 0), num_packed, 0)  # or the merge reads no share
    tl.store(
        OUT + out_rows[:, None] + (v_columns * out_layout[3])[None, :],
        (accumulator / row_sum[:, None]).to(OUT.dtype.element_ty),
        mask=(packed < written)[:, None] & (v_columns < V_HEAD_DIM)[None, :],
    )


@triton.jit(do_not_specialize=["num_splits", "batch_size", "heads", "rows"])
def merge_splits(
    PARTIAL,  # float32[num_splits, batch, heads, rows, V_HEAD_DIM]
    PARTIAL_LSE,  # float32[num_splits, batch, heads, rows], in base 2
    OUT,
    out_layout,  # (batch, head, row, column) strides
    LSE,  # float32[batch, heads, rows], natural
    num_splits,
    batch_size,
    heads,
    rows,
    SPLITS: tl.constexpr,  # num_splits, rounded up to a power of two
    V_HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """BLOCK columns of one row: the shares, weighted by what they sum up to."""
    index = tl.program_id(0)  # of a row, over batch and heads
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    splits = tl.arange(0, SPLITS)
    count = tl.cast(batch_size, tl.int64) * heads * rows
    places = splits * count + index
    lse = tl.load(PARTIAL_LSE + places, mask=splits < num_splits, other=float("-inf"))
    largest = tl.max(lse, 0)
    saw_nothing = largest == float("-inf")
    weights = tl.math.exp2(lse - tl.where(saw_nothing, 0.0, largest))  # [SPLITS]
    total = tl.where(saw_nothing, 1.0, tl.sum(weights, 0))
    partial = tl.load(
        PARTIAL + places[:, None] * V_HEAD_DIM + columns[None, :],
        mask=(lse > float("-inf"))[:, None] & (columns < V_HEAD_DIM)[None, :],
        other=0.0,
    )
    out = tl.sum(partial * weights[:, None], 0) / total
    row = index % rows
    head = index // rows % heads
    batch = tl.cast(index // rows // heads, tl.int64)
    base = OUT + batch * out_layout[0] + tl.cast(head, tl.int64) * out_layout[1]
    base += tl.cast(row, tl.int64) * out_layout[2]
    out = out.to(OUT.dtype.element_ty)
    tl.store(base + columns * out_layout[3], out, mask=columns < V_HEAD_DIM)
    if tl.program_id(1) == 0:
        natural = (largest + tl.math.log2(total)) * 0.6931471805599453
        tl.store(LSE + index, tl.where(saw_nothing, float("-inf"), natural))
