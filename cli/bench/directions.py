"""An implementation as a call without arguments: its forward, or its gradients alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from cmask.cli.bench.measure import Contender
from cmask.cli.bench.peers import Attention
from cmask.cli.bench.problem import Problem
from cmask.cli.bench.settings import Direction

Results = tuple[Tensor, ...]


def contender(problem: Problem, attention: Attention, direction: Direction) -> Contender:
    """(out,) of the forward, or (dq, dk, dv), as `results` has them: heads before tokens."""
    made = _forward if direction == "fwd" else _backward
    return made(problem, attention)


def _forward(problem: Problem, attention: Attention) -> Contender:
    q, k, v = (attention.to(x) for x in (problem.q, problem.k, problem.v))

    @contextmanager
    def around() -> Iterator[None]:
        with torch.no_grad(), attention.around():
            yield

    return Contender(
        lambda: attention.attend(q, k, v),
        lambda result: (attention.back(_first(result)),),
        around,
        attention.spelling,
    )


def _backward(problem: Problem, attention: Attention) -> Contender:
    """Gradients of a forward that is made here, once.

    A backward runs on the stream of its forward and of its leaves: to be captured, that must not
    be the default one.
    """
    p = problem
    grad_out = attention.to(p.grad_out)

    def around() -> AbstractContextManager[Any]:
        return nullcontext() if p.stream is None else torch.cuda.stream(p.stream)

    if p.stream is not None:
        p.stream.wait_stream(torch.cuda.current_stream())
    with around(), torch.enable_grad(), attention.around():
        leaves = [attention.to(x).detach().clone().requires_grad_() for x in (p.q, p.k, p.v)]
        out = _first(attention.attend(*leaves))
    return Contender(
        lambda: torch.autograd.grad(out, leaves, grad_out, retain_graph=True),
        lambda grads: tuple(attention.back(x) for x in grads),
        around,
        attention.spelling,
    )


def _first(result: Any) -> Tensor:
    found: Tensor = result[0] if isinstance(result, tuple) else result
    return found
