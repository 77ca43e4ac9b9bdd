"""Sampled results against float64, worked out from the mask's own definition.

An error is a vector's distance from the exact one, by what its terms would add up to if they all
stood at right angles: roundings of the terms count, and sums that cancel do not make them larger.
bfloat16 leaves about 2e-3; a vector of zeros has an error of about 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cmask.cli.bench.problem import Problem

SAMPLES = 24
TOLERANCE = 2e-2
LSE_TOLERANCE = 5e-3  # absolute


@dataclass(frozen=True, eq=False)
class Vectors:
    """Exact vectors of some (batch, head, token).

    at     their places, three tensors of indices
    exact  float64[samples, dim]
    scale  float64[samples]: root of the sum of the squares of their terms
    """

    at: tuple[Tensor, Tensor, Tensor]
    exact: Tensor
    scale: Tensor

    def error(self, found: Tensor) -> float:
        """The largest error; NaN if anything is NaN."""
        distance = (found.detach()[self.at].double() - self.exact).norm(dim=-1)
        nothing = torch.where(distance == 0, 0.0, torch.inf).to(distance)
        relative = torch.where(self.scale > 0, distance / self.scale, nothing)
        relative = torch.where(distance.isnan(), distance, relative)
        return float(relative.max())


@dataclass(frozen=True, eq=False)
class Row:
    """One query of one head, in float64.

    keys     the keys that it sees
    weights  of them; they add up to 1
    """

    keys: Tensor
    weights: Tensor
    lse: float


@dataclass(frozen=True, eq=False)
class Rows:
    """The sampled queries."""

    at: tuple[Tensor, Tensor, Tensor]
    rows: Sequence[Row]
    lse: Tensor


def sample_rows(problem: Problem) -> Rows:
    """Some queries, the first and the last of them included."""
    p, random = problem, np.random.default_rng(0)
    tokens = random.integers(0, p.plan.q_len, SAMPLES)
    tokens[:2] = 0, p.plan.q_len - 1
    batch = random.integers(0, p.shape.batch, SAMPLES)
    heads = random.integers(0, p.shape.heads, SAMPLES)
    visible = p.plan.bound.visible(tokens, np.arange(p.plan.kv_len))
    device = p.q.device
    rows = [
        _row(p, int(b), int(h), int(t), torch.from_numpy(seen).to(device))
        for b, h, t, seen in zip(batch, heads, tokens, visible, strict=True)
    ]
    b, h, t = (torch.from_numpy(x).to(device) for x in (batch, heads, tokens))
    return Rows((b, h, t), rows, torch.tensor([row.lse for row in rows], device=device))


def _row(problem: Problem, b: int, h: int, token: int, seen: Tensor) -> Row:
    p, keys = problem, seen.nonzero()[:, 0]
    if not len(keys):
        return Row(keys, torch.zeros(0, dtype=torch.float64, device=p.q.device), -torch.inf)
    scores = p.k[b, h // p.shape.group, keys].double() @ p.q[b, h, token].double()
    scores = scores / p.shape.head_dim**0.5
    lse = torch.logsumexp(scores, 0)
    return Row(keys, torch.exp(scores - lse), float(lse))


def exact_out(problem: Problem, rows: Rows) -> Vectors:
    """Outputs of the sampled queries."""
    found, scales = [], []
    for b, h, _, row in _each(rows):
        values = problem.v[b, h // problem.shape.group, row.keys].double()
        found.append(row.weights @ values)
        scales.append((row.weights[:, None] * values).norm())
    return Vectors(rows.at, torch.stack(found), torch.stack(scales))


def exact_dq(problem: Problem, rows: Rows) -> Vectors:
    """Gradients of the sampled queries, by all keys that they see."""
    p, found, scales = problem, [], []
    for b, h, token, row in _each(rows):
        head = h // p.shape.group
        keys, values = p.k[b, head, row.keys].double(), p.v[b, head, row.keys].double()
        of_weights = values @ p.grad_out[b, h, token].double()
        delta = row.weights @ of_weights
        scale = row.weights / p.shape.head_dim**0.5
        found.append((scale * (of_weights - delta)) @ keys)
        terms = scale * (of_weights.abs() + delta.abs())
        scales.append((terms[:, None] * keys).norm())
    return Vectors(rows.at, torch.stack(found), torch.stack(scales))


def _each(rows: Rows) -> list[tuple[int, int, int, Row]]:
    places = zip(*(x.tolist() for x in rows.at), strict=True)
    return [(*at, row) for at, row in zip(places, rows.rows, strict=True)]


def lse_error(rows: Rows, lse: Tensor) -> float:
    """The largest difference of a natural log-sum-exp; of rows that see nothing, both -inf."""
    found = lse[rows.at].double()
    same = found == rows.lse
    return float(torch.where(same, 0.0, (found - rows.lse).abs()).max())


def difference(found: Sequence[Tensor], ours: Sequence[Tensor]) -> float:
    """Distance of whole results by their length, the largest of them; NaN if any is."""
    apart = []
    for a, b in zip(found, ours, strict=True):
        pairs = list(zip(a, b, strict=True))  # one element of the batch at a time
        square = sum(float((x.float() - y.float()).square().sum()) for x, y in pairs)
        whole = sum(float(y.float().square().sum()) for _, y in pairs)
        apart.append((square / whole) ** 0.5 if whole else square)
    return float(np.max(apart))
