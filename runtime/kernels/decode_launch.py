"""The host side of the decode kernel: strides, grids, partial results."""

from __future__ import annotations

import torch
from torch import Tensor

from cmask.runtime.kernels.budget import padded_dim
from cmask.runtime.kernels.decode_config import DecodeLaunch
from cmask.runtime.kernels.tensors import ALIGNMENT, LOG2_E, precision_of
from cmask.runtime.kernels.triton_decode import decode_splits, merge_splits

_LN_2 = 1 / LOG2_E
_MERGED_COLUMNS = 128  # of a row, that one program of the merge sums up


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: Tensor,
    kv_lens: Tensor | None,
    kv_starts: Tensor | None,
    page_table: Tensor | None,
    launch: DecodeLaunch,
    softmax_scale: float,
    *,
    out: Tensor,
) -> Tensor:
    """Writes `out`, returns the log-sum-exp; no dimension may be empty.

    k, v: [batch or pages, kv heads, keys or page size, dim].
    """
    batch, heads, rows, head_dim = q.shape
    v_head_dim = v.shape[3]
    lse = torch.empty(batch, heads, rows, dtype=torch.float32, device=q.device)
    partial, partial_lse = out, lse
    splits = launch.num_splits
    if splits > 1:
        partial = torch.empty(
            splits * batch, heads, rows, v_head_dim, dtype=torch.float32, device=q.device
        )
        partial_lse = torch.empty(splits, batch, heads, rows, dtype=lse.dtype, device=q.device)
    group = heads // k.shape[1]
    page_size = 0 if page_table is None else k.shape[2]
    pages = 0 if page_table is None else page_table.shape[1]
    k, v = _within_reach(k, launch.block_n), _within_reach(v, launch.block_n)
    k_layout, k_step = _layout_of_keys(k)
    v_layout, v_step = _layout_of_keys(v)
    decode_splits[(-(-group * rows // launch.block_m) * splits * k.shape[1] * batch,)](
        q, q.stride(), k, k_layout, v, v_layout, partial, partial.stride(), partial_lse,
        bounds, kv_lens, kv_starts, page_table, pages, bounds.shape[1], rows, group, k.shape[1],
        pages * page_size if page_size else k.shape[2],
        splits, launch.least_blocks, softmax_scale * LOG2_E, _LN_2 if splits == 1 else 1.0,
        NUM_INTERVALS=bounds.shape[0] // 2,
        PAGE_SIZE=page_size,
        K_STEP=k_step,
        V_STEP=v_step,
        BLOCK_M=launch.block_m,
        BLOCK_N=launch.block_n,
        HEAD_DIM=head_dim,
        PADDED=padded_dim(head_dim),
        V_HEAD_DIM=v_head_dim,
        V_PADDED=padded_dim(v_head_dim),
        NUM_STAGES=stages_of_loop(launch.num_stages, page_size),
        PRECISION=precision_of(q.dtype),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        enable_fp_fusion=True,
    )  # fmt: skip
    if splits > 1:
        columns = min(_MERGED_COLUMNS, padded_dim(v_head_dim))
        merge_splits[(batch * heads * rows, -(-v_head_dim // columns))](
            partial, partial_lse, out, out.stride(), lse, splits, batch, heads, rows,
            SPLITS=1 << (splits - 1).bit_length(),
            V_HEAD_DIM=v_head_dim,
            BLOCK=columns,
            enable_fp_fusion=True,
        )  # fmt: skip
    return lse


def stages_of_loop(num_stages: int, page_size: int) -> int:
    """Triton's stages: pages come through two loads, each of which it gives half of them."""
    return 2 * num_stages - 1 if page_size else num_stages


def _layout_of_keys(x: Tensor) -> tuple[tuple[int, int, int, int], int]:
    """The strides, the first three in steps of 16 bytes where they all are; and the step.

    Keys that do not begin at multiples of 16 bytes are read one number at a time: right, but slow.
    """
    step = ALIGNMENT // x.element_size()
    *outer, last = x.stride()
    if last != 1 or x.data_ptr() % ALIGNMENT or any(stride % step for stride in outer):
        step = 1
    a, b, c = (stride // step for stride in outer)
    return (a, b, c, last), step


def _within_reach(x: Tensor, keys: int) -> Tensor:
    """`x`, whose next keys and columns lie no further than an int32 counts; else a copy."""
    farthest = max(keys * abs(x.stride(2)), padded_dim(x.shape[3]) * abs(x.stride(3)))
    return x if farthest < 1 << 31 else x.contiguous()
