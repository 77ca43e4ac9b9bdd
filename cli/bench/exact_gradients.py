"""Gradients of sampled keys and values in float64, by all queries that see them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cmask.cli.bench.case import dense
from cmask.cli.bench.exact import Vectors
from cmask.cli.bench.file_case import by_bounds, row_bounds
from cmask.cli.bench.problem import Problem

KEYS = 8  # of one head of one batch element: their queries are worked out in full
_CANDIDATES = 64
_MOST_ROWS = 4096  # of masks whose rows the host works out
_ROWS_AT_ONCE = 512

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


def exact_dkdv(problem: Problem) -> tuple[Vectors, Vectors]:
    """Gradients of sampled keys and of their values."""
    p, random = problem, np.random.default_rng(1)
    b, head = int(random.integers(p.shape.batch)), int(random.integers(p.shape.kv_heads))
    bounds = row_bounds(p.plan.bound)
    keys, seen = _sample_keys(p, random, None if bounds is not None else _MOST_ROWS)
    sums = _Sums(p, b, head, torch.from_numpy(keys).to(p.q.device))
    for rows, visible in _visible(p, np.flatnonzero(seen.any(1)), bounds):
        sums.add(rows, visible, torch.from_numpy(seen).to(p.q.device)[rows])
    return sums.vectors()


def _sample_keys(
    problem: Problem, random: np.random.Generator, most_rows: int | None
) -> tuple[Ints, Bools]:
    """Keys, the last one included, and bool[q_len, keys]: who sees them.

    most_rows: see them together, if one key alone is not seen by more.
    """
    q_len, kv_len = problem.lengths
    keys = random.integers(0, kv_len, KEYS if most_rows is None else _CANDIDATES)
    keys[0] = kv_len - 1
    keys = np.unique(keys)
    seen = problem.plan.bound.visible(np.arange(q_len), keys)
    if most_rows is not None:
        order = np.argsort(seen.sum(0), kind="stable")
        together = np.logical_or.accumulate(seen[:, order], axis=1).sum(0)
        count = min(KEYS, max(1, int((together <= most_rows).sum())))
        keys, seen = keys[order[:count]], seen[:, order[:count]]
    return keys, seen


def _visible(
    problem: Problem, rows: Ints, bounds: NDArray[np.int32] | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Some rows at a time, and bool[rows, kv_len] of them on the device."""
    device, kv_len = problem.q.device, problem.plan.kv_len
    mod = None if bounds is None else by_bounds(bounds, str(device))
    for part in np.split(rows, range(_ROWS_AT_ONCE, len(rows), _ROWS_AT_ONCE)):
        here = torch.from_numpy(part).to(device)
        if mod is not None:
            yield here, dense(mod, here, torch.arange(kv_len, device=device))
        else:
            seen = problem.plan.bound.visible(part, np.arange(kv_len))
            yield here, torch.from_numpy(seen).to(device)


class _Sums:
    """Gradients of some keys of one head, and the squares of their terms, query by query."""

    def __init__(self, problem: Problem, b: int, head: int, keys: Tensor) -> None:
        self._problem, self._b, self._head, self._keys = problem, b, head, keys
        self._k, self._v = problem.k[b, head].double(), problem.v[b, head].double()
        self._dk, self._dv = torch.zeros_like(self._k[keys]), torch.zeros_like(self._v[keys])
        self._dk_terms = self._k.new_zeros(len(keys))
        self._dv_terms = self._v.new_zeros(len(keys))

    def add(self, rows: Tensor, visible: Tensor, seen: Tensor) -> None:
        """What these queries, all heads of the group, say.

        visible: bool[rows, kv_len]; seen: bool[rows, keys]
        """
        p, scale = self._problem, self._problem.shape.head_dim**-0.5
        for h in range(self._head * p.shape.group, (self._head + 1) * p.shape.group):
            q, grad = p.q[self._b, h, rows].double(), p.grad_out[self._b, h, rows].double()
            scores = (scale * q @ self._k.T).masked_fill_(~visible, -torch.inf)
            lse = torch.logsumexp(scores, 1, keepdim=True)
            delta = (grad * (torch.exp(scores - lse) @ self._v)).sum(1, keepdim=True)
            weights = torch.exp(scores[:, self._keys] - lse) * seen
            of_weights = grad @ self._v[self._keys].T
            self._dk += scale * (weights * (of_weights - delta)).T @ q
            self._dv += weights.T @ grad
            largest = scale * weights * (of_weights.abs() + delta.abs())
            self._dk_terms += largest.square().T @ q.square().sum(1)
            self._dv_terms += weights.square().T @ grad.square().sum(1)

    def vectors(self) -> tuple[Vectors, Vectors]:
        """Of dK and of dV."""
        at = (
            torch.full_like(self._keys, self._b),
            torch.full_like(self._keys, self._head),
            self._keys,
        )
        return (
            Vectors(at, self._dk, self._dk_terms.sqrt()),
            Vectors(at, self._dv, self._dv_terms.sqrt()),
        )
