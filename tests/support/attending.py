"""Running attention on the kernels that this machine has, and judging all that it gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cmask import masks
from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.grammar.source import Source
from cmask.runtime import attention, load
from cmask.runtime.kernels.config import KernelConfig
from cmask.runtime.mask import Mask, Plan
from support.budgets import Results, Upstream, cancelled, check_budget, eager
from support.compiled import dense, planned

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CAUSAL = "region text; text sees text: causal"
FULL = "region text; text sees text: all"
ROWS = "table func[row]; query region q; key region k; q sees k: rows(func)"
REQUESTS = "group request* { query region q align end; key region k; q sees k: causal }"


MODALITIES = """
    group sample* {
        group part* { region text; region image }
        all sees all: causal
        image sees image: all
    }"""


def _is_interpreted() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)


KERNELS = ("reference", "triton") if DEVICE == "cuda" or _is_interpreted() else ("reference",)
on_every_kernel = pytest.mark.parametrize("kernel", KERNELS)


@cache
def shipped(name: str, seq: int) -> Mask:
    """A mask that ships, as a server loads it."""
    source = Source(name, masks.path(name).read_text(encoding="utf-8"))
    return load(compile_source(source, CompileOptions(seq=seq)).artifact)


def plan_of(body: str, **sizes: Any) -> Plan:
    """The plan of a mask of this body."""
    return planned(body, DEVICE, **sizes)


def random_inputs(
    plan: Plan,
    *,
    batch: int = 1,
    heads: tuple[int, int] = (2, 2),
    dims: tuple[int, int] = (64, 64),
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v that fit a plan; the same each time.  heads, dims: of q and k, of k and v."""
    generator = torch.Generator().manual_seed(plan.q_len * 1000 + plan.kv_len)
    shapes = (
        (batch, heads[0], plan.q_len, dims[0]),
        (batch, heads[1], plan.kv_len, dims[0]),
        (batch, heads[1], plan.kv_len, dims[1]),
    )
    q, k, v = (torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes)
    return q, k, v


def results(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    kernel: str,
    scale: float | None = None,
    configs: tuple[KernelConfig, ...] | None = None,
) -> tuple[Results, Tensor]:
    """Forward and backward, and the gradient that came in."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out, lse = attention(
        q, k, v, plan, return_lse=True, kernel=kernel, softmax_scale=scale, configs=configs
    )
    generator = torch.Generator().manual_seed(1)
    grad_out = torch.randn(out.shape, generator=generator).to(out.device, out.dtype)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), grad_out)
    return Results(out.detach(), lse.detach(), dq, dk, dv), grad_out


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    kernel: str,
    scale: float | None = None,
    configs: tuple[KernelConfig, ...] | None = None,
) -> Results:
    """All results are right; they are returned for what else a report says."""
    found, grad_out = results(q, k, v, plan, kernel, scale, configs)
    visible = visible_pairs(plan)
    exact, plain = (
        eager(q, k, v, visible, Upstream(grad_out), dtype=dtype, softmax_scale=scale)
        for dtype in (torch.float64, q.dtype)
    )
    check_budget(found, plain, exact, cancelled=cancelled(q, k, exact, Upstream(grad_out), scale))
    return found


@contextmanager
def deterministic(is_asked: bool = True) -> Iterator[None]:
    """Within, torch asks for the same bits in every run, or not."""
    torch.use_deterministic_algorithms(is_asked)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def plan_of_random_rows(rows: int, keys: int, count: int) -> Plan:
    """So many intervals a row: more patterns than a dictionary holds, so that row bounds mask."""
    generator = torch.Generator().manual_seed(count)
    ends = torch.randint(0, keys, (2 * count, rows), generator=generator).sort(0).values
    func = torch.cat([torch.zeros(1, rows, dtype=torch.int64), ends]).tolist()
    plan = plan_of(ROWS, q=rows, k=keys, func=func)
    assert plan.device_descriptor(64, 128).num_intervals > 0
    return plan


def same(a: Results, b: Results) -> bool:
    """Whether two runs agree in every bit."""
    return all(map(torch.equal, a, b))


def visible_pairs(plan: Plan) -> Tensor:
    """bool[q_len, kv_len] on the device."""
    return torch.from_numpy(dense(plan.bound)).to(DEVICE)


def exact_output(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
    """The output in float64."""
    nothing = Upstream(q.new_zeros(*q.shape[:-1], v.shape[-1]))
    return eager(q, k, v, visible_pairs(plan), nothing, dtype=torch.float64).out


def check_modalities(kernel: str, seed: int, longest: int) -> None:
    """Two samples of text and images in turn: causal, and a sample's images see each other."""
    random = np.random.default_rng(seed)
    text, image = (random.integers(0, longest, (2, 4)).tolist() for _ in range(2))
    plan = plan_of(MODALITIES, text=text, image=image)
    check(*random_inputs(plan, heads=(1, 1), dtype=torch.bfloat16), plan, kernel)
