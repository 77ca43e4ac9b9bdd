"""Attention as everyone defines it, dense, by autograd: exact in float64, plain in a low dtype."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NAMES = ("out", "lse", "dq", "dk", "dv")


@dataclass(frozen=True)
class Results:
    """What attention gives, forward and backward."""

    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, visible: NDArray[np.bool_], scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; keys that no query sees are never mixed in, a blind row is 0, -inf."""
    seen = torch.from_numpy(visible).to(q.device)
    read = seen.any(0)[:, None]
    group = q.shape[1] // k.shape[1]
    k, v = (torch.where(read, x, 0).repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    sees = seen.any(1)
    safe = torch.where(sees[:, None], scores.masked_fill(~seen, -torch.inf), 0.0)
    weights = torch.where(seen, torch.softmax(safe, -1), 0.0)
    lse = torch.where(sees, torch.logsumexp(safe, -1), -torch.inf)
    return weights @ v, lse


def dense_results(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: NDArray[np.bool_],
    grad_out: Tensor,
    *,
    dtype: torch.dtype = torch.float64,
    scale: float | None = None,
) -> Results:
    """All results, computed in one dtype throughout."""
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in (q, k, v))
    out, lse = dense_attention(q, k, v, visible, scale)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), grad_out.to(dtype))
    return Results(out.detach(), lse.detach(), dq, dk, dv)


def assert_within_budget(found: Results, exact: Results, plain: Results) -> None:
    """At most twice the error of plain torch in the same dtype, and 1e-6: no hand-tuned number."""
    for name in NAMES:
        value, wanted, low = (getattr(x, name).double() for x in (found, exact, plain))
        assert value.shape == wanted.shape, name
        assert not value.isnan().any(), f"{name} holds NaN"
        blind = wanted == -torch.inf
        assert torch.equal(value == -torch.inf, blind), f"{name}: other rows are blind"
        error, allowed = (
            (x - wanted).masked_fill(blind, 0).abs().max().item() if wanted.numel() else 0.0
            for x in (value, low)
        )
        limit = 2 * allowed + 1e-6 * max(1.0, _largest(wanted))
        assert error <= limit, f"{name} is off by {error:.3g}, allowed are {limit:.3g}"


def _largest(x: Tensor) -> float:
    finite = x[x.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0
