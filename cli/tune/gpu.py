"""Candidates as calls on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cmask.cli.bench.case import Case
from cmask.cli.bench.directions import contender
from cmask.cli.bench.measure import Clock, Contender, Verdict
from cmask.cli.bench.peers import Attention
from cmask.cli.bench.problem import Problem, make_problem
from cmask.cli.bench.rows import count
from cmask.cli.bench.settings import Direction
from cmask.cli.bench.timing import GpuClock, free
from cmask.cli.tune.agreement import Agreement
from cmask.cli.tune.run import Device
from cmask.cli.tune.settings import Settings
from cmask.cli.tune.space import Candidate, Walks, combined, default_of, schedules
from cmask.grammar.source import Source
from cmask.runtime import attention
from cmask.runtime.kernels import choose_kernel
from cmask.runtime.kernels.budget import Budget
from cmask.runtime.kernels.config import Direction as Of
from cmask.runtime.kernels.config import KernelConfig


class GpuStand:
    """The current CUDA device, and a mask on it."""

    def __init__(self, source: Source, settings: Settings, forward_shape: tuple[int, int]) -> None:
        self._case = Case(source.name, source, settings.seq, sizes=settings.sizes)
        self._settings, self.forward_shape = settings, forward_shape
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._problem: tuple[tuple[str, int], Problem] | None = None
        self.clock: Clock = GpuClock(self._stream)
        self.device = device_here()
        self.inputs = ""

    def bench(self, budget: Budget, way: Direction) -> MaskBench:
        """One direction, with inputs of its dtype and head dimension."""
        key = (budget.dtype, budget.head_dim)
        if self._problem is None or self._problem[0] != key:
            self._problem = None
            free()
            settings = self._settings.of_bench(*key)
            problem = make_problem(self._case, settings, "cuda", self._stream)
            self._problem = (key, problem)
        self.inputs = inputs_of(self._problem[1])
        return MaskBench(self._problem[1], budget, way)


def device_here() -> Device:
    """The current CUDA device."""
    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    architecture = 10 * properties.major + properties.minor
    return Device(properties.name, architecture, properties.shared_memory_per_block_optin)


def inputs_of(problem: Problem) -> str:
    """Batch × tokens, and heads."""
    shape = problem.shape
    heads = f"{shape.heads}/{shape.kv_heads}" if shape.group > 1 else f"{shape.heads}"
    return f"{shape.batch} × {count(problem.plan.q_len)} tokens, {heads} heads"


class MaskBench:
    """One direction of one mask, bound and with inputs.

    kernel  of the forward where nothing is measured; None: the device's
    """

    def __init__(
        self, problem: Problem, budget: Budget, way: Direction, kernel: str | None = None
    ) -> None:
        capability = divmod(budget.architecture, 10)
        kernel = kernel or choose_kernel("cuda", capability, budget.dtype, budget.head_dim)
        assert kernel is not None, "every GPU that torch serves has a kernel"
        shape = problem.plan.forward_shape
        self._forward = default_of("fwd", budget, kernel, shape).configs
        self._problem, self._budget, self._way = problem, budget, way
        self._agreement = Agreement(problem, way)

    def make(self, candidate: Candidate) -> Contender:
        """A forward, or the gradients of the default's forward."""
        if self._way == "fwd":
            return _forward(self._problem, candidate.configs)
        attend = _attend(self._problem, (*self._forward, *candidate.configs))
        return contender(self._problem, Attention(attend), "bwd")

    def check(self, made: Contender) -> Verdict:
        """By float64 where it is sampled, and by the default's results everywhere."""
        return self._agreement.check(made)

    def follow_ups(self, fastest: Sequence[Candidate]) -> list[Candidate]:
        """Pairs of the best, and other orders of work for the fastest."""
        pairs = combined(fastest, self._budget) if self._way == "bwd" else []
        bases = [*fastest[:1], *pairs]
        return pairs + [each for base in bases for each in schedules(base, self._walks)]

    @cached_property
    def _walks(self) -> Mapping[Of, Walks]:
        """As `prepare` asks for a schedule."""
        p, shape = self._problem, self._problem.shape
        row_bytes = (shape.head_dim + shape.v_head_dim) * p.q.element_size()
        by_query = Walks(shape.batch * shape.heads, shape.group, p.plan.num_kv_slots * row_bytes)
        by_key = Walks(
            shape.batch * shape.kv_heads, 1, p.plan.num_q_slots * shape.group * row_bytes
        )
        return {"forward": by_query, "dq": by_query, "dkdv": by_key}


def _attend(
    problem: Problem, configs: tuple[KernelConfig, ...], **options: Any
) -> Callable[[Tensor, Tensor, Tensor], Any]:
    plan: Any = problem.plan  # frozen, so no AttentionPlan to mypy
    return lambda q, k, v: attention(q, k, v, plan, configs=configs, **options)


def _forward(problem: Problem, configs: tuple[KernelConfig, ...]) -> Contender:
    """Its answer: output and log-sum-exp."""
    attend = _attend(problem, configs, return_lse=True)

    @contextmanager
    def around() -> Iterator[None]:
        with torch.no_grad():
            yield

    return Contender(lambda: attend(problem.q, problem.k, problem.v), around=around)
