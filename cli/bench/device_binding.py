"""What it costs to bind a mask's lengths on the device: `plan.bind_`, as a step of a model does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from cmask.cli.bench.device_plan import difference, plan_for
from cmask.cli.bench.measure import Call, short, why_not
from cmask.cli.bench.problem import Problem
from cmask.cli.bench.timing import graph_ms, lone_us
from cmask.runtime import attention
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.on_device.plan import DevicePlan

REPEATS = 3
_REFUSED = " cannot be bound on the device: "


@dataclass(frozen=True)
class Timer:
    """What times a call: on the host [µs], on the GPU [ms]."""

    host_us: Callable[[Call], float] = lone_us
    gpu_ms: Callable[[Call], float] = graph_ms


GPU = Timer()


@dataclass(frozen=True)
class DeviceCost:
    """Of one `bind_`: GPU time [ms], host time [µs], device memory [bytes]; or why there is none.

    ms          in a CUDA graph, the copy of the host's table that each replay makes included
    trained_ms  likewise, where a backward needs its lists, too
    peak        the most that was held while binding, the plan included
    """

    ms: float | None = None
    host_us: float | None = None
    peak: int | None = None
    trained_ms: float | None = None
    why: str = ""


def device_cost(problem: Problem, timer: Timer = GPU) -> DeviceCost:
    """The same lengths as the problem's plan, in tensors; no figure if they make another mask."""
    try:
        return _cost(problem, timer)
    except BindError as error:
        return DeviceCost(why=f"refused: {_reason(error)}")
    except Exception as error:  # out of memory, no room, whatever the compiler raises
        return DeviceCost(why=f"{why_not(error)}: {short(error)}")


def _cost(p: Problem, timer: Timer) -> DeviceCost:
    before = torch.cuda.memory_allocated() if p.q.is_cuda else 0
    plan, call = _bound(p, trains=False)
    peak = _peak(call, before) if p.q.is_cuda else None
    host_us = timer.host_us(call)
    ms = timer.gpu_ms(call)  # last: once a graph holds it, each call copies the host's table
    trained, call = _bound(p, trains=True)  # another plan: the graph would miss its lists
    trained_ms = timer.gpu_ms(call)
    for each in (plan, trained):
        each.check()
        why = difference(each, p.plan.bound)
        if why:
            return DeviceCost(why=f"DIFFERS: {why}")
    return DeviceCost(ms, host_us, peak, trained_ms)


def _bound(p: Problem, *, trains: bool) -> tuple[DevicePlan, Call]:
    """A plan that has been attended, and what binds all that this needs again."""
    plan, lengths = plan_for(p.mask, p.plan.bound, p.q.device)

    def call() -> None:
        plan.bind_(**lengths)

    call()
    q, k, v = (x.detach().requires_grad_(trains) for x in (p.q, p.k, p.v))
    attention(q, k, v, plan)
    call()
    return plan, call


def _peak(call: Call, before: int) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(REPEATS):
        call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _reason(error: BindError) -> str:
    """Without the mask's name, which stands beside it."""
    text = str(error)
    return text.partition(_REFUSED)[2].removesuffix("; use bind") or text
