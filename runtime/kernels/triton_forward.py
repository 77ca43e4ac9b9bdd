"""Attention forward in Triton: any GPU that Triton compiles for, and its interpreter.

One program owns `BLOCK_M` queries of one head, taken from the schedule.  It walks the key blocks
that those queries see, first the full runs (no mask code), then the runs masked by row bounds,
then the blocks masked by a pattern of the dictionary, with the online softmax: running maximum
and sum of each row in base 2, the accumulator rescaled when the maximum moves.

A block of keys past the end of a head reads zeros, never the next head.

Source: Dao, FlashAttention-2 (arXiv 2307.08691), algorithm 1.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from cmask.runtime.kernels.budget import padded_dim
from cmask.runtime.kernels.launch import Launch
from cmask.runtime.kernels.tensors import (
    LOG2_E,
    aligned,
    aligned_zeros,
    has_tma,
    is_aligned,
    precision_of,
    rows_of_heads,
)
from cmask.runtime.kernels.triton_blocks import load_rows, store_rows
from cmask.runtime.kernels.triton_masking import interval_bits, pattern_bits


@triton.jit
def _attend(
    accumulator,  # [BLOCK_M, V_HEAD_DIM]
    row_max,  # [BLOCK_M], in base 2
    row_sum,  # [BLOCK_M]
    q,  # [BLOCK_M, HEAD_DIM]
    keys_of_head,  # (K, k_layout, V, v_layout, KEY_IS_READ, batch, kv_head)
    block,
    visible,  # [BLOCK_M, BLOCK_N], read only if MASKED
    scale,
    MASKED: tl.constexpr,
    UNREAD_KEYS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
    TMA: tl.constexpr,
):
    """One block of keys into the running softmax."""
    K, k_layout, V, v_layout, KEY_IS_READ, batch, kv_head = keys_of_head
    k = load_rows(K, k_layout, batch, kv_head, block * BLOCK_N, BLOCK_N, HEAD_DIM, TMA)
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
    v = load_rows(V, v_layout, batch, kv_head, block * BLOCK_N, BLOCK_N, V_HEAD_DIM, TMA)
    if MASKED and UNREAD_KEYS:  # 0 * NaN would be NaN
        keys = block * BLOCK_N + tl.arange(0, BLOCK_N)
        v = tl.where((tl.load(KEY_IS_READ + keys) != 0)[:, None], v, 0.0)
    accumulator = tl.dot(weights.to(v.dtype), v, accumulator, input_precision=PRECISION)
    return accumulator, new_max, row_sum


@triton.jit(do_not_specialize=["num_blocks", "num_heads", "heads_per_kv_head", "q_len", "num_rows"])
def attention_forward(
    Q,  # descriptors, or pointers with layouts
    q_layout,
    K,
    k_layout,
    V,
    v_layout,
    OUT,
    out_layout,
    LSE,  # float32[batch, num_heads, q_len]
    ITEMS,  # int32[items, 2]: (batch * num_heads + head, query block)
    OFFSETS,  # int32[3, num_blocks + 1]: where full, bounds and pattern entries of a block begin
    ENTRIES,  # int32[entries, 2]: (first, stop) of a run, or (block, pattern)
    PATTERNS,  # int32[num_patterns, BLOCK_M, 4]
    BOUNDS,  # int32[2 * NUM_INTERVALS, num_rows]
    KEY_IS_READ,  # int32[num_kv_blocks * BLOCK_N]
    num_blocks,
    num_heads,
    heads_per_kv_head,
    q_len,
    num_rows,
    scale,  # softmax scale in base 2
    NUM_INTERVALS: tl.constexpr,
    HAS_PATTERNS: tl.constexpr,
    UNREAD_KEYS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    TMA: tl.constexpr,
):
    """Output and log-sum-exp of BLOCK_M queries of one head."""
    item = tl.program_id(0).to(tl.int64)
    head_index = tl.load(ITEMS + 2 * item)
    q_block = tl.load(ITEMS + 2 * item + 1)
    batch = head_index // num_heads
    head = head_index % num_heads
    kv_head = head // heads_per_kv_head
    rows = q_block * BLOCK_M + tl.arange(0, BLOCK_M)

    keys_of_head = (K, k_layout, V, v_layout, KEY_IS_READ, batch, kv_head)
    q = load_rows(Q, q_layout, batch, head, q_block * BLOCK_M, BLOCK_M, HEAD_DIM, TMA)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    accumulator = tl.zeros([BLOCK_M, V_HEAD_DIM], tl.float32)

    for run in range(tl.load(OFFSETS + q_block), tl.load(OFFSETS + q_block + 1)):
        first, stop = tl.load(ENTRIES + 2 * run), tl.load(ENTRIES + 2 * run + 1)
        for block in tl.range(first, stop, num_stages=NUM_STAGES):
            accumulator, row_max, row_sum = _attend(
                accumulator, row_max, row_sum, q, keys_of_head, block, None, scale,
                False, UNREAD_KEYS, BLOCK_N, HEAD_DIM, V_HEAD_DIM, PRECISION, TMA,
            )  # fmt: skip
    if NUM_INTERVALS > 0:
        offsets = OFFSETS + (num_blocks + 1) + q_block
        for run in range(tl.load(offsets), tl.load(offsets + 1)):
            first, stop = tl.load(ENTRIES + 2 * run), tl.load(ENTRIES + 2 * run + 1)
            for block in tl.range(first, stop, num_stages=NUM_STAGES):
                keys = block * BLOCK_N + tl.arange(0, BLOCK_N)
                visible = interval_bits(BOUNDS, rows, keys, num_rows, NUM_INTERVALS)
                accumulator, row_max, row_sum = _attend(
                    accumulator, row_max, row_sum, q, keys_of_head, block, visible, scale,
                    True, UNREAD_KEYS, BLOCK_N, HEAD_DIM, V_HEAD_DIM, PRECISION, TMA,
                )  # fmt: skip
    if HAS_PATTERNS:
        offsets = OFFSETS + 2 * (num_blocks + 1) + q_block
        for entry in tl.range(tl.load(offsets), tl.load(offsets + 1), num_stages=NUM_STAGES):
            block, pattern = tl.load(ENTRIES + 2 * entry), tl.load(ENTRIES + 2 * entry + 1)
            visible = pattern_bits(PATTERNS, pattern, BLOCK_M, BLOCK_N)
            accumulator, row_max, row_sum = _attend(
                accumulator, row_max, row_sum, q, keys_of_head, block, visible, scale,
                True, UNREAD_KEYS, BLOCK_N, HEAD_DIM, V_HEAD_DIM, PRECISION, TMA,
            )  # fmt: skip

    saw_nothing = row_sum == 0.0
    row_sum = tl.where(saw_nothing, 1.0, row_sum)
    lse = (row_max + tl.math.log2(row_sum)) * 0.6931471805599453
    lse = tl.where(saw_nothing, float("-inf"), lse)
    tl.store(LSE + head_index.to(tl.int64) * q_len + rows, lse, mask=rows < q_len)
    out = accumulator / row_sum[:, None]
    store_rows(OUT, out_layout, batch, head, q_block * BLOCK_M, out, BLOCK_M, V_HEAD_DIM, TMA)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    launches: tuple[Launch, ...],
    softmax_scale: float,
    *,
    out: Tensor,
) -> Tensor:
    """Writes `out`, returns the log-sum-exp; no dimension may be empty."""
    launch = launches[0]
    batch, num_heads, q_len, head_dim = q.shape
    m, n, d, dv = launch.block_m, launch.block_n, padded_dim(head_dim), padded_dim(v.shape[-1])
    target = out if is_aligned(out) else aligned_zeros(out)
    lse = torch.empty(batch, num_heads, q_len, dtype=torch.float32, device=q.device)
    tma = has_tma(q)
    attention_forward[(len(launch.items),)](
        *rows_of_heads(aligned(q), m, d, tma),
        *rows_of_heads(aligned(k), n, d, tma),
        *rows_of_heads(aligned(v), n, dv, tma),
        *rows_of_heads(target, m, dv, tma),
        lse,
        launch.items,
        launch.offsets,
        launch.entries,
        launch.patterns,
        launch.bounds,
        launch.key_is_read,
        launch.offsets.shape[1] - 1,
        num_heads,
        num_heads // k.shape[1],
        q_len,
        launch.bounds.shape[1],
        softmax_scale * LOG2_E,
        NUM_INTERVALS=launch.num_intervals,
        HAS_PATTERNS=bool(launch.has_patterns),
        UNREAD_KEYS=bool(launch.has_unread_keys),
        BLOCK_M=m,
        BLOCK_N=n,
        HEAD_DIM=d,
        V_HEAD_DIM=dv,
        NUM_STAGES=launch.num_stages,
        PRECISION=precision_of(q.dtype),
        TMA=tma,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        enable_fp_fusion=True,
    )
    if target is not out:
        out.copy_(target)
    return lse
