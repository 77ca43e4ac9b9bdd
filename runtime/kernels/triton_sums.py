"""Gradients from what the Hopper backward has added up, in the order of its accumulators."""

import triton
import triton.language as tl
from torch import Tensor

from cmask.runtime.kernels.budget import padded_dim
from cmask.runtime.kernels.triton_blocks import rows_of_slots


@triton.jit(do_not_specialize=["num_heads", "q_len"])
def dq_of_sums(
    SUMS,  # float32[batch * heads, blocks, 64 * PADDED_DIM], in the order of the accumulator
    DQ,
    TOKENS,  # int32[q_len]: the row of each slot, or None where slots are rows
    batch_stride,
    head_stride,
    row_stride,
    num_heads,
    q_len,
    softmax_scale,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
):
    """64 rows of dQ: (half, octet of columns, warp, row of 8, lane, half of 16 rows, parity)."""
    head_index = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0)
    place = (head_index * tl.num_programs(0) + block) * (64 * PADDED_DIM)
    x = tl.load(SUMS + place + tl.arange(0, 64 * PADDED_DIM))
    x = tl.reshape(x, [2, PADDED_DIM // 16, 4, 8, 4, 2, 2])
    x = tl.permute(x, (2, 5, 3, 0, 1, 4, 6))
    x = tl.reshape(x, [64, PADDED_DIM]) * softmax_scale
    rows = rows_of_slots(TOKENS, block * 64 + tl.arange(0, 64), q_len)
    columns = tl.arange(0, PADDED_DIM)
    dq = DQ + (head_index // num_heads) * batch_stride + (head_index % num_heads) * head_stride
    dq += rows.to(tl.int64)[:, None] * row_stride + columns[None, :]
    inside = (rows >= 0)[:, None] & (columns < HEAD_DIM)[None, :]
    tl.store(dq, x.to(DQ.dtype.element_ty), mask=inside)


def write_dq_of_sums(sums: Tensor, dq: Tensor, softmax_scale: float, tokens: Tensor | None) -> None:
    """The sums, times the softmax scale, as dQ; sums: float32[batch * heads, blocks, …].

    tokens: int32[slots], the row of each slot, -1 where there is none; None: slots are rows.
    """
    batch, num_heads, q_len, head_dim = dq.shape
    dq_of_sums[(sums.shape[1], batch * num_heads)](
        sums,
        dq,
        tokens,
        *dq.stride()[:3],
        num_heads,
        q_len if tokens is None else len(tokens),
        softmax_scale,
        HEAD_DIM=head_dim,
        PADDED_DIM=padded_dim(head_dim),
        num_warps=8,
        enable_fp_fusion=True,
    )


@triton.jit(do_not_specialize=["num_heads", "kv_len", "num_slots"])
def dkdv_of_parts(
    PARTS,  # float32[batch * heads, num_slots, 2, 2, 64 * PADDED_DIM]
    HEAVY,  # int32[blocks, 3]: (key block, first slot, stop slot)
    TOKENS,  # int32[kv_len]: the row of each slot of keys, or None where slots are rows
    DK,
    dk_strides,  # of batch, head and row
    DV,
    dv_strides,
    num_heads,
    kv_len,
    num_slots,
    softmax_scale,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
):
    """64 rows of dK and dV of a key block: its parts, added in their order."""
    head_index = tl.program_id(1).to(tl.int64)
    heavy = HEAVY + 3 * (tl.program_id(0) // 2)
    half = tl.program_id(0) % 2
    rows = tl.load(heavy) * 128 + half * 64 + tl.arange(0, 64)
    rows = rows_of_slots(TOKENS, rows, kv_len)
    SIZE: tl.constexpr = 64 * PADDED_DIM
    dk = tl.zeros([SIZE], tl.float32)
    dv = tl.zeros([SIZE], tl.float32)
    for slot in range(tl.load(heavy + 1), tl.load(heavy + 2)):
        part = PARTS + ((head_index * num_slots + slot) * 2 + half) * 2 * SIZE
        dk += tl.load(part + tl.arange(0, SIZE))
        dv += tl.load(part + SIZE + tl.arange(0, SIZE))
    batch, head = head_index // num_heads, head_index % num_heads
    _store_in_order(DK, dk_strides, batch, head, rows, dk * softmax_scale, HEAD_DIM, PADDED_DIM)
    _store_in_order(DV, dv_strides, batch, head, rows, dv, HEAD_DIM, PADDED_DIM)


@triton.jit
def _store_in_order(
    X, strides, batch, head, rows, x, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr
):
    """An accumulator's (octet of columns, warp, row of 8, lane, half of 16 rows, parity)."""
    x = tl.reshape(x, [PADDED_DIM // 8, 4, 8, 4, 2, 2])
    x = tl.permute(x, (1, 4, 2, 0, 3, 5))
    x = tl.reshape(x, [64, PADDED_DIM])
    columns = tl.arange(0, PADDED_DIM)
    base = X + batch * strides[0] + head * strides[1]
    base += rows.to(tl.int64)[:, None] * strides[2] + columns[None, :]
    inside = (rows >= 0)[:, None] & (columns < HEAD_DIM)[None, :]
    tl.store(base, x.to(X.dtype.element_ty), mask=inside)


def write_dkdv_of_parts(
    parts: Tensor,
    heavy: Tensor,
    dk: Tensor,
    dv: Tensor,
    softmax_scale: float,
    tokens: Tensor | None,
) -> None:
    """DK and dV of the key blocks that were done in parts; tokens as in `write_dq_of_sums`."""
    batch, num_heads, kv_len, head_dim = dk.shape
    dkdv_of_parts[(2 * len(heavy), batch * num_heads)](
        parts,
        heavy,
        tokens,
        dk,
        dk.stride()[:3],
        dv,
        dv.stride()[:3],
        num_heads,
        kv_len if tokens is None else len(tokens),
        parts.shape[1],
        softmax_scale,
        HEAD_DIM=head_dim,
        PADDED_DIM=padded_dim(head_dim),
        num_warps=8,
        enable_fp_fusion=True,
    )
