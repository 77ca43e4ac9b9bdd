"""Attention backward in Triton: three kernels, deterministic, no atomics.

    backward_rows  per query row: delta = sum(dO * O) - dLSE, and the log-sum-exp in base 2, +inf
                   for rows without keys and rows past the end: exp2(score - inf) is exactly 0
    backward_dkdv  one program per (key block, key head): dK and dV, over the query blocks that
                   see the key block and the query heads that share the key head
    backward_dq    one program per (query block, head): dQ, over key blocks as in the forward

Scores are computed again from Q, K and the log-sum-exp: P = exp2(score - lse), dS = P * (dP -
delta).  Where a pair is hidden, selects put P and dS to 0, so that NaN in a key that no query
sees, or in a query that sees no key, goes nowhere.

Source: Dao, FlashAttention-2 (arXiv 2307.08691), algorithm 2, with dQ in a kernel of its own.
"""

from typing import NamedTuple

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
    piece_of_rows,
    precision_of,
    rows_of_heads,
)
from cmask.runtime.kernels.triton_blocks import (
    load_piece,
    load_rows,
    rows_of_slots,
    store_rows,
)
from cmask.runtime.kernels.triton_masking import (
    interval_bits,
    interval_bits_across,
    pattern_bits,
)

_LARGEST_BLOCK = 128  # every block_m divides it
_ROW_BLOCK = 32  # rows of one `backward_rows` program


@triton.jit(do_not_specialize=["num_heads", "q_len", "num_slots", "padded_len"])
def backward_rows(
    OUT,
    GRAD_OUT,
    LSE,  # float32[batch * num_heads, q_len]
    GRAD_LSE,  # the same, read only if HAS_GRAD_LSE
    DELTA,  # float32[batch * num_heads, padded_len]
    LSE_BASE_2,  # the same
    TOKENS,  # int32[num_slots]: the row of each slot, or None where slots are rows
    out_batch_stride,
    out_head_stride,
    out_row_stride,
    grad_batch_stride,
    grad_head_stride,
    grad_row_stride,
    num_heads,
    q_len,
    num_slots,
    padded_len,
    HAS_GRAD_LSE: tl.constexpr,
    BLOCK: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
):
    """Delta and base-2 log-sum-exp of BLOCK slots of one head."""
    blocks = padded_len // BLOCK
    head_index = (tl.program_id(0) // blocks).to(tl.int64)
    slots = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    rows = rows_of_slots(TOKENS, slots, num_slots).to(tl.int64)
    batch, head = head_index // num_heads, head_index % num_heads
    dims = tl.arange(0, PADDED_DIM)[None, :]
    exists = rows >= 0
    inside = exists[:, None] & (dims < HEAD_DIM)
    out = OUT + batch * out_batch_stride + head * out_head_stride
    out = tl.load(out + rows[:, None] * out_row_stride + dims, mask=inside, other=0.0)
    grad = GRAD_OUT + batch * grad_batch_stride + head * grad_head_stride
    grad = tl.load(grad + rows[:, None] * grad_row_stride + dims, mask=inside, other=0.0)
    lse = tl.load(LSE + head_index * q_len + rows, mask=exists, other=float("-inf"))
    delta = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
    if HAS_GRAD_LSE:
        delta -= tl.load(GRAD_LSE + head_index * q_len + rows, mask=exists, other=0.0)
    sees_nothing = lse == float("-inf")
    tl.store(DELTA + head_index * padded_len + slots, tl.where(sees_nothing, 0.0, delta))
    lse = tl.where(sees_nothing, float("inf"), lse * 1.4426950408889634)
    tl.store(LSE_BASE_2 + head_index * padded_len + slots, lse)


@triton.jit
def _add_to_dkdv(
    dk,  # [BLOCK_N, HEAD_DIM]
    dv,  # [BLOCK_N, V_HEAD_DIM]
    k,
    v,
    queries,  # (Q, q_layout, GRAD_OUT, grad_layout, LSE_BASE_2, DELTA, padded_len)
    batch,
    head,
    head_index,  # of batch and head
    block,
    visible,  # [BLOCK_N, BLOCK_M], read only if MASKED
    scale,
    MASKED: tl.constexpr,
    EMPTY_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
    TMA: tl.constexpr,
):
    """One block of queries into dK and dV; scores are transposed, keys down and queries across."""
    Q, q_layout, GRAD_OUT, grad_layout, LSE_BASE_2, DELTA, padded_len = queries
    row = block * BLOCK_M
    lse = load_piece(LSE_BASE_2, padded_len, head_index, row, BLOCK_M, TMA)
    q = load_rows(Q, q_layout, batch, head, row, BLOCK_M, HEAD_DIM, TMA)
    if MASKED and EMPTY_ROWS:  # 0 * NaN would be NaN
        q = tl.where((lse == float("inf"))[:, None], 0.0, q)
    scores = tl.dot(k, q.T, input_precision=PRECISION)  # [BLOCK_N, BLOCK_M]
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    weights = tl.math.exp2(scores * scale - lse[None, :])
    grad = load_rows(GRAD_OUT, grad_layout, batch, head, row, BLOCK_M, V_HEAD_DIM, TMA)
    if MASKED and EMPTY_ROWS:
        grad = tl.where((lse == float("inf"))[:, None], 0.0, grad)
    dv = tl.dot(weights.to(grad.dtype), grad, dv, input_precision=PRECISION)
    grad_weights = tl.dot(v, grad.T, input_precision=PRECISION)  # [BLOCK_N, BLOCK_M]
    delta = load_piece(DELTA, padded_len, head_index, row, BLOCK_M, TMA)
    grad_scores = weights * (grad_weights - delta[None, :])
    if MASKED:
        grad_scores = tl.where(weights == 0.0, 0.0, grad_scores)
    dk = tl.dot(grad_scores.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(
    do_not_specialize=["num_blocks", "num_kv_heads", "heads_per_kv_head", "padded_len", "num_rows"]
)
def backward_dkdv(
    Q,  # descriptors, or pointers with layouts
    q_layout,
    K,
    k_layout,
    V,
    v_layout,
    GRAD_OUT,
    grad_layout,
    DK,
    dk_layout,
    DV,
    dv_layout,
    LSE_BASE_2,  # float32[batch * num_heads, padded_len]
    DELTA,  # the same
    BOUNDS,  # int32[2 * NUM_INTERVALS, num_rows]
    ITEMS,  # int32[items, 2]: (batch * num_kv_heads + kv_head, key block)
    OFFSETS,  # int32[3, num_blocks + 1], by key block
    ENTRIES,  # int32[entries, 2]: (first, stop) of query blocks, or (query block, pattern)
    PATTERNS,  # int32[num_patterns, BLOCK_N, 4], transposed
    num_blocks,
    num_kv_heads,
    heads_per_kv_head,
    padded_len,
    num_rows,
    scale,  # softmax scale in base 2
    softmax_scale,
    NUM_INTERVALS: tl.constexpr,
    HAS_PATTERNS: tl.constexpr,
    EMPTY_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    TMA: tl.constexpr,
):
    """The gradients of BLOCK_N keys and values of one key head."""
    item = tl.program_id(0).to(tl.int64)
    head_index = tl.load(ITEMS + 2 * item)
    k_block = tl.load(ITEMS + 2 * item + 1)
    batch = head_index // num_kv_heads
    kv_head = head_index % num_kv_heads
    keys = k_block * BLOCK_N + tl.arange(0, BLOCK_N)

    queries = (Q, q_layout, GRAD_OUT, grad_layout, LSE_BASE_2, DELTA, padded_len)
    row = k_block * BLOCK_N
    k = load_rows(K, k_layout, batch, kv_head, row, BLOCK_N, HEAD_DIM, TMA)
    v = load_rows(V, v_layout, batch, kv_head, row, BLOCK_N, V_HEAD_DIM, TMA)
    dk = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    dv = tl.zeros([BLOCK_N, V_HEAD_DIM], tl.float32)
    for i in range(heads_per_kv_head):
        head = kv_head * heads_per_kv_head + i
        query_head = head_index * heads_per_kv_head + i
        for run in range(tl.load(OFFSETS + k_block), tl.load(OFFSETS + k_block + 1)):
            first, stop = tl.load(ENTRIES + 2 * run), tl.load(ENTRIES + 2 * run + 1)
            for block in tl.range(first, stop, num_stages=NUM_STAGES):
                dk, dv = _add_to_dkdv(
                    dk, dv, k, v, queries, batch, head, query_head, block, None, scale,
                    False, EMPTY_ROWS, BLOCK_M, HEAD_DIM, V_HEAD_DIM, PRECISION, TMA,
                )  # fmt: skip
        if NUM_INTERVALS > 0:
            offsets = OFFSETS + (num_blocks + 1) + k_block
            for run in range(tl.load(offsets), tl.load(offsets + 1)):
                first, stop = tl.load(ENTRIES + 2 * run), tl.load(ENTRIES + 2 * run + 1)
                for block in tl.range(first, stop, num_stages=NUM_STAGES):
                    visible = interval_bits_across(
                        BOUNDS, num_rows, keys[:, None], block, NUM_INTERVALS, BLOCK_M, TMA
                    )
                    dk, dv = _add_to_dkdv(
                        dk, dv, k, v, queries, batch, head, query_head, block, visible, scale,
                        True, EMPTY_ROWS, BLOCK_M, HEAD_DIM, V_HEAD_DIM, PRECISION, TMA,
                    )  # fmt: skip
        if HAS_PATTERNS:
            offsets = OFFSETS + 2 * (num_blocks + 1) + k_block
            for entry in tl.range(tl.load(offsets), tl.load(offsets + 1), num_stages=NUM_STAGES):
                block, pattern = tl.load(ENTRIES + 2 * entry), tl.load(ENTRIES + 2 * entry + 1)
                visible = pattern_bits(PATTERNS, pattern, BLOCK_N, BLOCK_M)
                dk, dv = _add_to_dkdv(
                    dk, dv, k, v, queries, batch, head, query_head, block, visible, scale,
                    True, EMPTY_ROWS, BLOCK_M, HEAD_DIM, V_HEAD_DIM, PRECISION, TMA,
                )  # fmt: skip
    store_rows(DV, dv_layout, batch, kv_head, row, dv, BLOCK_N, V_HEAD_DIM, TMA)
    dk = dk * softmax_scale
    store_rows(DK, dk_layout, batch, kv_head, row, dk, BLOCK_N, HEAD_DIM, TMA)


@triton.jit
def _add_to_dq(
    dq,  # [BLOCK_M, HEAD_DIM]
    q,
    grad,  # [BLOCK_M, V_HEAD_DIM]
    lse,
    delta,
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
    """One block of keys into dQ."""
    K, k_layout, V, v_layout, KEY_IS_READ, batch, kv_head = keys_of_head
    k = load_rows(K, k_layout, batch, kv_head, block * BLOCK_N, BLOCK_N, HEAD_DIM, TMA)
    v = load_rows(V, v_layout, batch, kv_head, block * BLOCK_N, BLOCK_N, V_HEAD_DIM, TMA)
    if MASKED and UNREAD_KEYS:  # 0 * NaN would be NaN
        keys = block * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.where((tl.load(KEY_IS_READ + keys) != 0)[:, None], k, 0.0)
    scores = tl.dot(q, k.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    weights = tl.math.exp2(scores * scale - lse[:, None])
    grad_weights = tl.dot(grad, v.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    grad_scores = weights * (grad_weights - delta[:, None])
    if MASKED:
        grad_scores = tl.where(weights == 0.0, 0.0, grad_scores)
    return tl.dot(grad_scores.to(k.dtype), k, dq, input_precision=PRECISION)


@triton.jit(
    do_not_specialize=["num_blocks", "num_heads", "heads_per_kv_head", "padded_len", "num_rows"]
)
def backward_dq(
    Q,  # descriptors, or pointers with layouts
    q_layout,
    K,
    k_layout,
    V,
    v_layout,
    GRAD_OUT,
    grad_layout,
    DQ,
    dq_layout,
    LSE_BASE_2,  # float32[batch * num_heads, padded_len]
    DELTA,  # the same
    ITEMS,  # int32[items, 2]: (batch * num_heads + head, query block)
    OFFSETS,  # int32[3, num_blocks + 1], by query block
    ENTRIES,  # int32[entries, 2]
    PATTERNS,  # int32[num_patterns, BLOCK_M, 4]
    BOUNDS,  # int32[2 * NUM_INTERVALS, num_rows]
    KEY_IS_READ,  # int32[num_kv_blocks * BLOCK_N]
    num_blocks,
    num_heads,
    heads_per_kv_head,
    padded_len,
    num_rows,
    scale,  # softmax scale in base 2
    softmax_scale,
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
    """The gradient of BLOCK_M queries of one head."""
    item = tl.program_id(0).to(tl.int64)
    head_index = tl.load(ITEMS + 2 * item)
    q_block = tl.load(ITEMS + 2 * item + 1)
    batch = head_index // num_heads
    head = head_index % num_heads
    kv_head = head // heads_per_kv_head
    rows = q_block * BLOCK_M + tl.arange(0, BLOCK_M)
    row = head_index.to(tl.int64) * padded_len

    lse = tl.load(LSE_BASE_2 + row + rows)
    delta = tl.load(DELTA + row + rows)
    keys_of_head = (K, k_layout, V, v_layout, KEY_IS_READ, batch, kv_head)
    q = load_rows(Q, q_layout, batch, head, q_block * BLOCK_M, BLOCK_M, HEAD_DIM, TMA)
    grad = load_rows(
        GRAD_OUT, grad_layout, batch, head, q_block * BLOCK_M, BLOCK_M, V_HEAD_DIM, TMA
    )
    dq = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for run in range(tl.load(OFFSETS + q_block), tl.load(OFFSETS + q_block + 1)):
        first, stop = tl.load(ENTRIES + 2 * run), tl.load(ENTRIES + 2 * run + 1)
        for block in tl.range(first, stop, num_stages=NUM_STAGES):
            dq = _add_to_dq(
                dq, q, grad, lse, delta, keys_of_head, block, None, scale,
                False, UNREAD_KEYS, BLOCK_N, HEAD_DIM, V_HEAD_DIM, PRECISION, TMA,
            )  # fmt: skip
    if NUM_INTERVALS > 0:
        offsets = OFFSETS + (num_blocks + 1) + q_block
        for run in range(tl.load(offsets), tl.load(offsets + 1)):
            first, stop = tl.load(ENTRIES + 2 * run), tl.load(ENTRIES + 2 * run + 1)
            for block in tl.range(first, stop, num_stages=NUM_STAGES):
                keys = block * BLOCK_N + tl.arange(0, BLOCK_N)
                visible = interval_bits(BOUNDS, rows, keys, num_rows, NUM_INTERVALS)
                dq = _add_to_dq(
                    dq, q, grad, lse, delta, keys_of_head, block, visible, scale,
                    True, UNREAD_KEYS, BLOCK_N, HEAD_DIM, V_HEAD_DIM, PRECISION, TMA,
                )  # fmt: skip
    if HAS_PATTERNS:
        offsets = OFFSETS + 2 * (num_blocks + 1) + q_block
        for entry in tl.range(tl.load(offsets), tl.load(offsets + 1), num_stages=NUM_STAGES):
            block, pattern = tl.load(ENTRIES + 2 * entry), tl.load(ENTRIES + 2 * entry + 1)
            visible = pattern_bits(PATTERNS, pattern, BLOCK_M, BLOCK_N)
            dq = _add_to_dq(
                dq, q, grad, lse, delta, keys_of_head, block, visible, scale,
                True, UNREAD_KEYS, BLOCK_N, HEAD_DIM, V_HEAD_DIM, PRECISION, TMA,
            )  # fmt: skip
    dq = dq * softmax_scale
    store_rows(DQ, dq_layout, batch, head, q_block * BLOCK_M, dq, BLOCK_M, HEAD_DIM, TMA)


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    launches: tuple[Launch, ...],
    softmax_scale: float,
    *,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
) -> None:
    """Writes the gradients; no dimension may be empty."""
    _, for_dkdv, for_dq = launches
    inputs = Inputs(aligned(q), aligned(k), aligned(v), aligned(grad_out))
    delta, lse_base_2 = rows_of(out, inputs.grad_out, lse, grad_lse)
    targets = [x if is_aligned(x) else aligned_zeros(x) for x in (dq, dk, dv)]
    _dkdv(inputs, lse_base_2, delta, for_dkdv, softmax_scale, *targets[1:])
    write_dq(inputs, lse_base_2, delta, for_dq, softmax_scale, targets[0])
    for x, target in zip((dq, dk, dv), targets, strict=True):
        if x is not target:
            x.copy_(target)


class Inputs(NamedTuple):
    """What all kernels read, aligned."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad_out: Tensor


def rows_of(
    out: Tensor,
    grad_out: Tensor,
    lse: Tensor,
    grad_lse: Tensor | None,
    tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(delta, base-2 lse) as float32[batch * heads, padded_len], a multiple of 128.

    tokens: int32[slots], the row of each slot, -1 where there is none; None: slots are rows.
    """
    batch, num_heads, q_len, v_head_dim = out.shape
    num_slots = q_len if tokens is None else len(tokens)
    padded_len = -(-num_slots // _LARGEST_BLOCK) * _LARGEST_BLOCK
    out = out if out.stride(-1) == 1 else out.contiguous()
    delta = torch.empty(batch * num_heads, padded_len, dtype=torch.float32, device=out.device)
    lse_base_2 = torch.empty_like(delta)
    lse = lse.contiguous()
    backward_rows[(batch * num_heads * (padded_len // _ROW_BLOCK),)](
        out,
        grad_out,
        lse,
        lse if grad_lse is None else grad_lse.contiguous(),
        delta,
        lse_base_2,
        tokens,
        *out.stride()[:3],
        *grad_out.stride()[:3],
        num_heads,
        q_len,
        num_slots,
        padded_len,
        HAS_GRAD_LSE=grad_lse is not None,
        BLOCK=_ROW_BLOCK,
        HEAD_DIM=v_head_dim,
        PADDED_DIM=padded_dim(v_head_dim),
        num_warps=4,
        enable_fp_fusion=True,
    )
    return delta, lse_base_2


def _dkdv(
    inputs: Inputs,
    lse: Tensor,
    delta: Tensor,
    launch: Launch,
    softmax_scale: float,
    grad_k: Tensor,
    grad_v: Tensor,
) -> None:
    q, k, v, grad_out = inputs
    m, n, d, dv = launch.block_m, launch.block_n, padded_dim(q.shape[-1]), padded_dim(v.shape[-1])
    tma = has_tma(q)
    backward_dkdv[(len(launch.items),)](
        *rows_of_heads(q, m, d, tma),
        *rows_of_heads(k, n, d, tma),
        *rows_of_heads(v, n, dv, tma),
        *rows_of_heads(grad_out, m, dv, tma),
        *rows_of_heads(grad_k, n, d, tma),
        *rows_of_heads(grad_v, n, dv, tma),
        piece_of_rows(lse, m, tma),
        piece_of_rows(delta, m, tma),
        piece_of_rows(launch.bounds, m, tma),
        launch.items,
        launch.offsets,
        launch.entries,
        launch.patterns,
        launch.offsets.shape[1] - 1,
        k.shape[1],
        q.shape[1] // k.shape[1],
        lse.shape[1],
        launch.bounds.shape[1],
        softmax_scale * LOG2_E,
        softmax_scale,
        NUM_INTERVALS=launch.num_intervals,
        HAS_PATTERNS=bool(launch.has_patterns),
        EMPTY_ROWS=bool(launch.has_empty_rows),
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


def write_dq(
    inputs: Inputs,
    lse: Tensor,
    delta: Tensor,
    launch: Launch,
    softmax_scale: float,
    grad_q: Tensor,
) -> None:
    """The gradient of Q by a kernel of its own, deterministic."""
    q, k, v, grad_out = inputs
    m, n, d, dv = launch.block_m, launch.block_n, padded_dim(q.shape[-1]), padded_dim(v.shape[-1])
    tma = has_tma(q)
    backward_dq[(len(launch.items),)](
        *rows_of_heads(q, m, d, tma),
        *rows_of_heads(k, n, d, tma),
        *rows_of_heads(v, n, dv, tma),
        *rows_of_heads(grad_out, m, dv, tma),
        *rows_of_heads(grad_q, m, d, tma),
        lse,
        delta,
        launch.items,
        launch.offsets,
        launch.entries,
        launch.patterns,
        launch.bounds,
        launch.key_is_read,
        launch.offsets.shape[1] - 1,
        q.shape[1],
        q.shape[1] // k.shape[1],
        lse.shape[1],
        launch.bounds.shape[1],
        softmax_scale * LOG2_E,
        softmax_scale,
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
