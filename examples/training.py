"""Training by cmask's attention and by PyTorch's, side by side: the examples' loop and options.

Runs that differ in nothing but rounding drift apart slowly.  In float32 the drift stays tiny.  In
half precision `Curves.noise` says what is to be expected: how far the same rounding takes PyTorch's
dense attention from its own run in float32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from cmask import masks
from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.grammar.source import Source
from cmask.runtime import Mask, Plan, load
from transformer import Attend, by_matrix, by_plan

LEARNING_RATE, BETAS, EPS = 1e-3, (0.9, 0.95), 1e-6
_LINES = 10  # of losses printed

Batch = TypeVar("Batch")
Model = Callable[..., Tensor]  # (batch, attend) -> its output


@dataclass(frozen=True)
class Curves:
    """The loss of each step by cmask, by a dense mask, and by a dense mask in float32."""

    cmask: list[float] = field(default_factory=list)
    dense: list[float] = field(default_factory=list)
    exact: list[float] = field(default_factory=list)

    @property
    def gap(self) -> float:
        """The largest relative gap between cmask and dense, of all steps."""
        return _largest_gap(self.cmask, self.dense)

    @property
    def noise(self) -> float:
        """The same between dense and its run in float32: 0 if that is the dtype."""
        return _largest_gap(self.dense, self.exact)


def _largest_gap(found: list[float], expected: list[float]) -> float:
    return max(abs(a - b) / b for a, b in zip(found, expected, strict=True))


@dataclass(frozen=True)
class Task(Generic[Batch]):
    """What an example trains.

    model  built anew, with seeded weights; in float32, autocast does the rest
    draw   step -> its plan and its batch, the same in each run
    loss   (model, batch, attend) -> float32[]
    """

    model: nn.Module
    draw: Callable[[int], tuple[Plan, Batch]]
    loss: Callable[[Model, Batch, Attend], Tensor]


def options_of(doc: str | None, argv: list[str] | None, **defaults: object) -> argparse.Namespace:
    """The options of all examples, and those of `defaults`; argv: None for the command line's."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kernel", help="of cmask's attention: gluon, triton, reference")
    parser.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND")
    parser.add_argument("--checkpoint", action="store_true", help="activation checkpointing")
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args(argv)


def mask_of(name: str) -> Mask:
    """A shipped mask without sizes; `cmask compile NAME` writes the same to a file for `load`."""
    source = Source(name, masks.path(name).read_text(encoding="utf-8"))
    return load(compile_source(source, CompileOptions(symbolic=True)).artifact)


def compare(task: Task[Batch], options: argparse.Namespace) -> Curves:
    """Train by each attention from the same weights on the same data; print and return losses."""
    dtype = getattr(torch, options.dtype)
    cmask = _Run(task, lambda plan: by_plan(plan, options.kernel), dtype, options)
    dense = _Run(task, by_matrix, dtype, options)
    exact = dense if dtype == torch.float32 else _Run(task, by_matrix, torch.float32, options)
    curves = Curves()
    for step in range(options.steps):
        plan, batch = task.draw(step)
        curves.cmask.append(cmask.step(plan, batch))
        curves.dense.append(dense.step(plan, batch))
        curves.exact.append(curves.dense[-1] if exact is dense else exact.step(plan, batch))
        if step % max(1, options.steps // _LINES) == 0 or step == options.steps - 1:
            print(f"step {step:4}  cmask {curves.cmask[-1]:.6f}  dense {curves.dense[-1]:.6f}")
    print(f"largest relative gap {curves.gap:.1e}; dense {options.dtype} to dense float32", end=" ")
    print(f"{curves.noise:.1e}")
    return curves


class _Run(Generic[Batch]):
    """One model in training."""

    def __init__(
        self,
        task: Task[Batch],
        attend_by: Callable[[Plan], Attend],
        dtype: torch.dtype,
        options: argparse.Namespace,
    ) -> None:
        self.task, self.attend_by, self.dtype = task, attend_by, dtype
        self.eager = deepcopy(task.model).to(options.device)
        self.model: Model = self.eager
        if options.compile:
            self.model = torch.compile(self.eager, backend=options.compile)
        self.optimizer = torch.optim.AdamW(self.eager.parameters(), LEARNING_RATE, BETAS, EPS)
        self.attends: dict[Plan, Attend] = {}
        self.device = torch.device(options.device).type

    def step(self, plan: Plan, batch: Batch) -> float:
        """The loss before the step."""
        with torch.autocast(self.device, self.dtype, enabled=self.dtype != torch.float32):
            if plan not in self.attends:
                self.attends[plan] = self.attend_by(plan)
                if self.model is not self.eager:  # a plan's first call prepares: not to be traced
                    self.task.loss(self.eager, batch, self.attends[plan])
            loss = self.task.loss(self.model, batch, self.attends[plan])
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.item()
