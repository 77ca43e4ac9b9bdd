"""Decoding by a plan: new queries at the end of a key cache, contiguous or paged."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from cmask.runtime.autocast import autocast_dtype, cast
from cmask.runtime.checks import check_cache, check_list, checked_scale
from cmask.runtime.derive.bound import BoundMask
from cmask.runtime.kernels import choose_kernel, decode_operator, operator
from cmask.runtime.kernels.decode_config import MAX_SPLITS, DecodeConfig
from cmask.runtime.kernels.decode_rows import DecodeKind, Decoding, decoding_of, why_not_rows
from cmask.runtime.kernels.prepare import check_device, check_kernel
from cmask.runtime.mask import Plan


@overload
def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    plan: Plan,
    *,
    kv_lens: Tensor | None = ...,
    kv_starts: Tensor | None = ...,
    page_table: Tensor | None = ...,
    softmax_scale: float | None = ...,
    return_lse: Literal[False] = ...,
    kernel: str | None = ...,
    num_splits: int | None = ...,
    config: DecodeConfig | None = ...,
) -> Tensor: ...


@overload
def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    plan: Plan,
    *,
    kv_lens: Tensor | None = ...,
    kv_starts: Tensor | None = ...,
    page_table: Tensor | None = ...,
    softmax_scale: float | None = ...,
    return_lse: Literal[True],
    kernel: str | None = ...,
    num_splits: int | None = ...,
    config: DecodeConfig | None = ...,
) -> tuple[Tensor, Tensor]: ...


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    plan: Plan,
    *,
    kv_lens: Tensor | None = None,
    kv_starts: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    kernel: str | None = None,
    num_splits: int | None = None,
    config: DecodeConfig | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of a sequence's last queries over its cache, for each sequence of a batch.

    q            [batch, num_q_heads, rows, head_dim]: 1 to 64 new tokens; more are right, but
                 read the cache again for each 64 / (num_q_heads / num_kv_heads)
    k_cache      [batch or 1, num_kv_heads, capacity, head_dim], or with a page_table
                 [num_pages, page_size, num_kv_heads, head_dim]; any strides
    v_cache      the same with v_head_dim
    plan         of a mask whose rows see at most 4 intervals of keys
    kv_lens      int32[batch]: keys of each sequence, new tokens included; at most the capacity
    kv_starts    int32[batch]: where each sequence begins in its cache (left padding); 0 if None
    page_table   int32[batch, max_pages]: page of keys [i * page_size, (i + 1) * page_size) of a
                 sequence; entries of pages that no query sees may be anything
    num_splits   shares into which the keys are cut, each a program's; chosen by lengths if None
    config       block shape of the kernel; chosen if None
    kernel       "triton" (GPUs), or "reference" (any device, and what a CPU takes)
    return_lse   also return the natural log-sum-exp, float32[batch, num_q_heads, rows]

    Without kv_lens all sequences are as long as the plan, and its rows are the queries: a plan of
    `bind(rows=(start, stop))`.

    With kv_lens the plan is of all rows of the mask, bound once for the longest sequence that the
    cache can hold.  Row r of q is the token at position kv_lens - kv_starts - rows + r of its
    sequence and sees what that row of the mask sees among the keys that there are.  For causal
    masks, windows, sinks, chunks and whatever else looks the same from the first token on, that is
    the mask of a sequence of this length.  Lengths stay on the device: nothing is read back, and
    nothing is compiled or allocated anew when they change, so that calls can be captured in a CUDA
    graph.  A row before the first token does not exist: its output is 0, its LSE -inf.

    Pages and keys that no query of a sequence sees are never read, whatever they hold.  Results
    have the same bits in every run.  There are no gradients.

    Within `torch.autocast` q is cast to its dtype where that is the cache's, which stays as it is.

    Raises ValueError that names the argument, what was expected and what came.
    """
    k, v = k_cache, v_cache
    if k.dtype == autocast_dtype(q):
        q = cast(q, k.dtype)
    if page_table is not None and k.ndim == v.ndim == 4:
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    check_cache(q, k, v, page_table)
    capacity = k.shape[2] * (1 if page_table is None else page_table.shape[1])
    _check_lists(q, kv_lens, kv_starts)
    scale = checked_scale(softmax_scale, q.shape[-1])
    kind = DecodeKind(
        *(q.shape[0], q.shape[1], k.shape[1], q.shape[2], q.shape[3], v.shape[3]),
        *(q.dtype, q.device),
        capacity=capacity,
        page_size=0 if page_table is None else k.shape[2],
        is_ragged=kv_lens is not None,
        kernel=kernel,
        num_splits=num_splits,
        config=config,
    )
    decoding = plan.decoding.get(kind)
    if decoding is None:
        decoding = _prepare(plan, kind)
    lists = tuple(None if x is None else x.contiguous() for x in (kv_lens, kv_starts, page_table))
    out, lse = decode_operator.decode_by(
        decoding,
        *(q, k, v, scale),
        lists=lists,  # type: ignore[arg-type]
        is_plain=operator.is_plain(q, k, v),
    )
    return (out, lse) if return_lse else out


def _check_lists(q: Tensor, kv_lens: Tensor | None, kv_starts: Tensor | None) -> None:
    for name, x in (("kv_lens", kv_lens), ("kv_starts", kv_starts)):
        if x is not None:
            check_list(name, x, (q.shape[0],), q.device)
    if kv_starts is not None and kv_lens is None:
        raise ValueError("kv_starts needs kv_lens: where a sequence begins says not where it ends")


@torch.compiler.disable(  # type: ignore[no-untyped-call, untyped-decorator]
    reason="the first call of a kind by a plan brings its rows to the device: make one before "
    "torch.compile traces with fullgraph=True"
)
def _prepare(plan: Plan, kind: DecodeKind) -> Decoding:
    """Check what only the plan and the kind of call decide, and put the rows on the device."""
    check_device(plan.device, kind.device)
    fault = why_not_rows(plan.bound) or _misfit(plan.bound, kind)
    if fault:
        raise ValueError(f"plan cannot be decoded by: {fault}")
    if kind.num_splits is not None and not 1 <= kind.num_splits <= MAX_SPLITS:
        raise ValueError(f"num_splits must be from 1 to {MAX_SPLITS}, got {kind.num_splits}")
    return decoding_of(plan, kind, _kernel(kind))


def _misfit(bound: BoundMask, kind: DecodeKind) -> str:
    """Why the lengths of a call do not fit the plan's, in words; empty if they do."""
    if not kind.is_ragged:
        if kind.rows != bound.q_len:
            return f"q has {kind.rows} rows, the plan {bound.q_len}, and there are no kv_lens"
        if kind.capacity < bound.kv_len:
            return f"the cache has room for {kind.capacity} keys, the plan has {bound.kv_len}"
        return ""
    segments = bound.segments
    if bound.rows != (0, bound.tokens.length("q")):
        return "with kv_lens it must be of all rows of the mask, not of bind(rows=...)"
    if any((s.q_start, s.q_stop) != (s.k_start, s.k_stop) for s in segments):
        return "with kv_lens each token must be query and key, the mask has regions of one side"
    if kind.capacity > bound.kv_len:
        return (
            f"the cache has room for {kind.capacity} keys, the plan for {bound.kv_len}: bind the "
            "mask for the longest sequence"
        )
    return ""


def _kernel(kind: DecodeKind) -> str:
    """The kernel of a call; raises ValueError if it does not run there."""
    dtype, widest = str(kind.dtype).removeprefix("torch."), max(kind.head_dim, kind.v_head_dim)
    if kind.kernel not in (None, "triton", "reference"):
        raise ValueError(f"kernel must be triton or reference, got {kind.kernel!r}")
    kernel = kind.kernel
    if kernel is None:
        kernel = (
            "triton"
            if kind.device.type == "cuda"
            else choose_kernel(kind.device.type, (0, 0), dtype, widest)
        )
    if kernel is None:
        raise ValueError(f'no kernel decodes on {kind.device}; kernel="reference" runs anywhere')
    if kernel == "triton":
        check_kernel("triton", dtype, widest, kind.device)
    return kernel
