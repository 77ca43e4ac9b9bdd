"""The one numeric rule: at most twice the error of plain PyTorch in the same dtype.

Errors are taken against float64.  One rounding of the result to its own dtype counts as an error
that PyTorch may happen not to make (where a row sees one key, say), and 1e-6 is added for
results near 0.  Gradients are of weights that come back from the log-sum-exp, exp(score - lse), so
that its rounding counts for them, too: |lse| half steps of float32.  In dQ and dK, dP and delta
cancel where a row sees one key, which PyTorch's softmax does without an error: their roundings
count as well, where a caller says how large they are.  There is no tolerance to tune.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SLACK = 1e-6


class Results(NamedTuple):
    """Everything that attention computes."""

    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


class Upstream(NamedTuple):
    """Gradients that come in; lse: None where the log-sum-exp is not used."""

    out: Tensor
    lse: Tensor | None = None


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor,
    upstream: Upstream,
    *,
    dtype: torch.dtype,
    softmax_scale: float | None = None,
) -> Results:
    """Plain attention in `dtype` with autograd; keys that no query sees count as zeros."""
    inputs = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
    a, b, c = inputs
    read = visible.any(0)[:, None]
    sees = visible.any(1)
    group = a.shape[1] // b.shape[1]
    a = torch.where(sees[:, None], a, 0.0)
    b, c = (
        torch.where(read, x, 0.0).expand(a.shape[0], -1, -1, -1).repeat_interleave(group, 1)
        for x in (b, c)
    )
    scale = a.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = (a @ b.transpose(-1, -2)) * scale
    scores = torch.where(visible, scores, -torch.inf)
    lse = torch.logsumexp(scores.to(torch.promote_types(dtype, torch.float32)), -1)
    weights = torch.where(visible, torch.where(sees[:, None], scores, 0.0).softmax(-1), 0.0)
    out = weights @ c
    grad_out = torch.where(sees[:, None], upstream.out.to(dtype), 0.0)
    loss = (out * grad_out).sum()
    if upstream.lse is not None:
        loss = loss + (torch.where(sees, lse, 0.0) * upstream.lse.to(lse.dtype)).sum()
    grads = torch.autograd.grad(loss, inputs)
    return Results(out.detach(), lse.detach(), *grads)


def cancelled(
    q: Tensor, k: Tensor, exact: Results, upstream: Upstream, softmax_scale: float | None = None
) -> float:
    """How large dP and delta may be in dQ and dK: sums of |dO · O|, times what they multiply."""
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    delta = (upstream.out.to(exact.out.dtype) * exact.out).abs().sum(-1)
    return _largest(delta) * max(_largest(q), _largest(k)) * abs(scale)


def check_budget(
    found: Results,
    plain: Results,
    exact: Results,
    names: tuple[str, ...] = Results._fields,
    cancelled: float = 0.0,
) -> None:
    """Each result's largest error is within the rule, and infinities stand where they should."""
    for name in names:
        f, p, e = (getattr(results, name) for results in (found, plain, exact))
        assert f.shape == e.shape, name
        assert not f.isnan().any(), f"{name} holds NaN"
        finite = e.isfinite()
        assert torch.equal(f.isfinite(), finite), f"{name}: infinities differ"
        if not finite.any():
            continue
        error = (f.double() - e)[finite].abs().max().item()
        eager_error = (p.double() - e)[finite].abs().max().item()
        half_steps = torch.finfo(f.dtype).eps / 2
        if name in ("dq", "dk", "dv"):
            half_steps += torch.finfo(found.lse.dtype).eps / 2 * _largest(exact.lse)
        rounding = half_steps * _largest(e)
        if name in ("dq", "dk"):  # a half step of dP and one of delta
            rounding += torch.finfo(found.lse.dtype).eps * cancelled
        allowed = 2 * (eager_error + rounding) + SLACK
        assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"


def _largest(x: Tensor) -> float:
    """The largest finite magnitude, 0 if there is none."""
    finite = x[x.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0
