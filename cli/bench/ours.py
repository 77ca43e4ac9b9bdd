"""cmask's attention as a function of q, k and v, by the kernel of its choice or a named one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cmask.cli.bench.peers import Attention
from cmask.cli.bench.problem import Problem
from cmask.cli.bench.settings import Direction
from cmask.runtime import attention
from cmask.runtime.kernels.config import KernelConfig

HOPPER_BACKWARD = KernelConfig(
    direction="dkdv", block_m=64, block_n=128, num_warps=8, num_stages=2, kernel="gluon"
)


def ours(problem: Problem, kernel: str | None, direction: Direction) -> Attention:
    """`attention` itself."""
    return Attention(_by(problem, kernel, direction))


def with_lse(problem: Problem, kernel: str | None) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of one forward."""
    p, plan = problem, _plan(problem)
    return attention(p.q, p.k, p.v, plan, kernel=kernel, return_lse=True)


def _by(problem: Problem, kernel: str | None, direction: Direction) -> Any:
    plan = _plan(problem)
    if kernel == "gluon" and direction == "bwd":  # asked for by its configuration
        configs = (HOPPER_BACKWARD,)
        return lambda q, k, v: attention(q, k, v, plan, configs=configs)
    return lambda q, k, v: attention(q, k, v, plan, kernel=kernel)


def _plan(problem: Problem) -> Any:
    return problem.plan  # frozen, so no AttentionPlan to mypy
