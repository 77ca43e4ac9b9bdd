"""What it costs to make a mask known: both ways to bind, next to create_block_mask."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask

from cmask.cli.bench.device_binding import DeviceCost, device_cost
from cmask.cli.bench.measure import short, why_not
from cmask.cli.bench.problem import Problem
from cmask.cli.bench.rows import Binding
from cmask.runtime.mask import Mask

REPEATS = 3
_LISTS = tuple(
    f"{kind}{side}_{what}"
    for kind in ("", "full_")
    for side in ("kv", "q")
    for what in ("num_blocks", "indices")
)


@dataclass(frozen=True)
class Cost:
    """Median time [ms], most device memory meanwhile [bytes]; or why there is none."""

    ms: float | None
    peak: int | None = None
    why: str = ""


def binding_of(problem: Problem) -> Binding:
    """All of them, without what only the first call costs; `bind_` where there is a GPU."""
    p = problem
    ours = _cost(lambda: bind_anew(p.mask, str(p.q.device)))
    binding = Binding(ours.ms or 0.0, ours.peak, p.facts.descriptor_bytes)
    if p.q.is_cuda:
        binding = with_device(binding, device_cost(p))
    if not p.case.spellings:
        return binding
    arguments = (p.mask_mod(p.case.spellings[0]), None, None, *p.lengths)
    eager = _cost(lambda: create_block_mask(*arguments, device=p.q.device))
    compiled = Cost(None, why="its compiler does not end at this length" if p.compiles else "")
    if p.compiles_block_mask:
        fast = torch.compile(create_block_mask)
        compiled = _cost(lambda: fast(*arguments, device=p.q.device))
    return replace(
        binding,
        eager_ms=eager.ms,
        eager_peak=eager.peak,
        eager_why=eager.why,
        compiled_ms=compiled.ms,
        compiled_peak=compiled.peak,
        compiled_why=compiled.why,
        block_mask_bytes=block_mask_bytes(p.block_mask(p.case.spellings[0])),
    )


def with_device(binding: Binding, cost: DeviceCost) -> Binding:
    """The same with what `bind_` costs."""
    return replace(
        binding,
        device_ms=cost.ms,
        device_trained_ms=cost.trained_ms,
        device_host_us=cost.host_us,
        device_peak=cost.peak,
        device_why=cost.why,
    )


def bind_anew(mask: Mask, device: str) -> None:
    """Bind as for lengths that the artifact does not hold, and put the forward's blocks there."""
    plan = Mask(replace(mask.body, descriptors=(), configs=())).bind(device=device)
    plan.device_descriptor(*plan.forward_shape)


def block_mask_bytes(block_mask: Any) -> int:
    """Of all lists of a BlockMask, both directions."""
    lists = (getattr(block_mask, name, None) for name in _LISTS)
    return sum(x.numel() * x.element_size() for x in lists if x is not None)


def _cost(call: Callable[[], Any]) -> Cost:
    is_gpu = torch.cuda.is_available()
    times = []
    held = 0
    try:
        call()
        if is_gpu:
            torch.cuda.synchronize()
            held = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        for _ in range(REPEATS):
            begun = time.perf_counter()
            call()
            if is_gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
    except Exception as error:  # out of memory, or whatever the compiler raises
        return Cost(None, why=f"{why_not(error)}: {short(error)}")
    peak = torch.cuda.max_memory_allocated() - held if is_gpu else None
    return Cost(statistics.median(times) * 1e3, peak)
