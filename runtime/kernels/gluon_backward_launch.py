"""The backward of a Hopper forward: by the Hopper kernel where its launch says so, else Triton's.

The Hopper kernel adds dQ, and writes dK and dV of key blocks in parts, to float32 memory in the
order of its accumulators; triton_sums.py brings them in order.  dQ is added by whoever comes first:
not deterministic.  Where `torch.use_deterministic_algorithms` asks for it, a kernel of its own
makes dQ: a Hopper one, or Triton's where `configs` name it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cmask.runtime.kernels import triton_backward
from cmask.runtime.kernels.budget import padded_dim
from cmask.runtime.kernels.gluon_backward_dq_sm90 import attention_backward_dq
from cmask.runtime.kernels.gluon_backward_sm90 import attention_backward
from cmask.runtime.kernels.gluon_descriptors import (
    boxes_of,
    is_readable,
    line_of,
    patterns_of,
    readable,
    words_of,
)
from cmask.runtime.kernels.launch import Launch
from cmask.runtime.kernels.tensors import LOG2_E, aligned_zeros
from cmask.runtime.kernels.tickets import current_tickets
from cmask.runtime.kernels.triton_sums import write_dkdv_of_parts, write_dq_of_sums

_QUERIES = 64  # of a block
_MAX_REGISTERS = 168  # a thread at launch: two warpgroups of 240, and the producer


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
    """Writes the gradients; no dimension may be empty.

    launches: forward, dkdv, and dq where dQ is not to come from the same kernel as dK and dV.
    With `launch.grid`, tensors are in the caller's order, else in slots.
    """
    for_dkdv = launches[1]
    if not for_dkdv.is_gluon:
        triton_backward.backward(
            q, k, v, out, lse, grad_out, grad_lse, launches, softmax_scale, dq=dq, dk=dk, dv=dv
        )
        return
    if for_dkdv.has_empty_rows:  # 0 * NaN would be NaN
        empty = (lse == -torch.inf)[..., None]
        q, grad_out = q.masked_fill(empty, 0), grad_out.masked_fill(empty, 0)
    if for_dkdv.has_unread_keys:
        unread = (for_dkdv.key_is_read[: k.shape[2]] == 0)[:, None]
        k, v = k.masked_fill(unread, 0), v.masked_fill(unread, 0)
    grid = for_dkdv.grid
    tokens = None if grid is None else for_dkdv.tokens
    q, k, v, grad_out = (readable(x, grid) for x in (q, k, v, grad_out))
    delta, lse_base_2 = triton_backward.rows_of(out, grad_out, lse, grad_lse, tokens)
    targets = [x if is_readable(x, grid) else aligned_zeros(x) for x in (dq, dk, dv)]
    sums = (
        None
        if len(launches) > 2
        else _zeros_for_dq(q, q.shape[2] if tokens is None else len(tokens))
    )
    rows = (lse_base_2, delta)
    by_key((q, k, v, grad_out), rows, for_dkdv, softmax_scale, targets[1], targets[2], sums)
    if sums is None:
        inputs = triton_backward.Inputs(q, k, v, grad_out)
        write_dq = by_query if launches[2].is_gluon else triton_backward.write_dq
        write_dq(inputs, *rows, launches[2], softmax_scale, targets[0])
    else:
        write_dq_of_sums(sums, targets[0], softmax_scale, tokens)
    for x, target in zip((dq, dk, dv), targets, strict=True):
        if x is not target:
            x.copy_(target)


def _zeros_for_dq(q: Tensor, num_slots: int) -> Tensor:
    """float32[batch * heads, query blocks, 2, 32 * head_dim]."""
    batch, heads, _, head_dim = q.shape
    shape = (batch * heads, -(-num_slots // _QUERIES), 2, 32 * padded_dim(head_dim))
    return torch.zeros(shape, dtype=torch.float32, device=q.device)


def by_key(
    inputs: tuple[Tensor, ...],
    rows: tuple[Tensor, Tensor],
    launch: Launch,
    softmax_scale: float,
    dk: Tensor,
    dv: Tensor,
    sums: Tensor | None,
) -> None:
    """One launch of the Hopper kernel.  rows: (base-2 LSE, delta), padded to whole blocks."""
    q, k, v, grad_out = inputs
    _, num_heads, q_len, head_dim = q.shape
    grid = launch.grid
    programs = _programs(launch, q.device)
    heads, d = k.shape[0] * k.shape[1], padded_dim(head_dim)
    parts = torch.empty(heads, launch.num_slots, 2, 2, 64 * d, dtype=torch.float32, device=q.device)
    attention_backward[(programs,)](
        *(line_of(x, 64, d, grid) for x in (q, k, v, grad_out, dk, dv)),
        *(boxes_of(x, 64, d, grid) for x in (q, k, v, grad_out, dk, dv)),
        *(words_of(x, [1, _QUERIES]) for x in rows),
        words_of(launch.bounds, [2 * launch.num_intervals, _QUERIES])
        if launch.num_intervals
        else None,
        patterns_of(launch.patterns) if launch.has_patterns else None,
        None if sums is None else words_of(sums.view(-1, 256), [d // 8, 256]),
        parts,
        launch.items,
        launch.owners,
        launch.offsets,
        launch.counts,
        launch.entries,
        current_tickets(q.device),
        len(launch.items),
        programs,
        launch.counts.shape[1],
        k.shape[1],
        num_heads // k.shape[1],
        -(-(q_len if grid is None else len(launch.tokens)) // _QUERIES),
        launch.num_slots,
        softmax_scale * LOG2_E,
        softmax_scale,
        None if grid is None else grid.geometry,
        **_options(launch, d),
    )
    if launch.num_slots:
        tokens = None if grid is None else launch.tokens
        write_dkdv_of_parts(parts, launch.heavy, dk, dv, softmax_scale, tokens)


def by_query(
    inputs: triton_backward.Inputs,
    lse: Tensor,
    delta: Tensor,
    launch: Launch,
    softmax_scale: float,
    dq: Tensor,
) -> None:
    """One launch of the Hopper kernel for dQ alone.  lse (base 2), delta: in whole blocks."""
    q, k, v, grad_out = inputs
    grid = launch.grid
    programs = _programs(launch, q.device)
    d = padded_dim(q.shape[3])
    tensors = (q, k, v, grad_out, dq)
    attention_backward_dq[(programs,)](
        *(line_of(x, 64, d, grid) for x in tensors),
        *(boxes_of(x, 64, d, grid) for x in tensors),
        patterns_of(launch.patterns) if launch.has_patterns else None,
        lse,
        delta,
        launch.items,
        launch.offsets,
        launch.counts,
        launch.entries,
        launch.bounds,
        current_tickets(q.device),
        len(launch.items),
        programs,
        launch.counts.shape[1],
        q.shape[1],
        q.shape[1] // k.shape[1],
        int(k.shape[0] > 1),
        launch.bounds.shape[1],
        lse.shape[1],
        softmax_scale * LOG2_E,
        softmax_scale,
        None if grid is None else grid.geometry,
        **_options(launch, d),
    )


def _programs(launch: Launch, device: torch.device) -> int:
    """One for each processor, if there is so much work."""
    properties: Any = torch.cuda.get_device_properties(device)
    return min(len(launch.items), int(properties.multi_processor_count))


def _options(launch: Launch, head_dim: int) -> dict[str, Any]:
    """Constants and launch parameters that both kernels have."""
    grid = launch.grid
    return {
        "INTERVALS": launch.num_intervals,
        "HEAD_DIM": head_dim,
        "BOX": () if grid is None else grid.box(64),
        "UNITS": 1 if grid is None else grid.volume // 64,
        "num_warps": 4,
        "maxnreg": _MAX_REGISTERS,
        "enable_fp_fusion": True,
    }
