"""dQ from what the Hopper backward has added up, in the order of its accumulators."""

import triton
import triton.language as tl
from torch import Tensor

from cmask.runtime.kernels.tensors import padded_dim


@triton.jit(do_not_specialize=["num_heads", "q_len"])
def dq_of_sums(
    SUMS,  # float32[batch * heads, blocks, 64 * PADDED_DIM], in the order of the accumulator
    DQ,
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
    rows = block * 64 + tl.arange(0, 64)
    columns = tl.arange(0, PADDED_DIM)
    dq = DQ + (head_index // num_heads) * batch_stride + (head_index % num_heads) * head_stride
    dq += rows.to(tl.int64)[:, None] * row_stride + columns[None, :]
    inside = (rows < q_len)[:, None] & (columns < HEAD_DIM)[None, :]
    tl.store(dq, x.to(DQ.dtype.element_ty), mask=inside)


def write_dq_of_sums(sums: Tensor, dq: Tensor, softmax_scale: float) -> None:
    """The sums, times the softmax scale, as dQ; sums: float32[batch * heads, blocks, …]."""
    batch, num_heads, q_len, head_dim = dq.shape
    dq_of_sums[(sums.shape[1], batch * num_heads)](
        sums,
        dq,
        *dq.stride()[:3],
        num_heads,
        q_len,
        softmax_scale,
        HEAD_DIM=head_dim,
        PADDED_DIM=padded_dim(head_dim),
        num_warps=8,
        enable_fp_fusion=True,
    )
