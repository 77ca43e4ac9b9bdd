"""cmask's attention as a function of q, k and v, by the kernel of its choice or a named one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cmask.cli.bench.peers import Attention
from cmask.cli.bench.problem import Problem
from cmask.runtime import attention


def ours(problem: Problem, kernel: str | None, *, deterministic: bool | None = None) -> Attention:
    """`attention` itself."""
    plan = _plan(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = attention(q, k, v, plan, kernel=kernel, deterministic=deterministic)
        return out

    return Attention(attend)


def with_lse(problem: Problem, kernel: str | None) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of one forward."""
    p, plan = problem, _plan(problem)
    return attention(p.q, p.k, p.v, plan, kernel=kernel, return_lse=True)


def _plan(problem: Problem) -> Any:
    return problem.plan  # frozen, so no AttentionPlan to mypy
