"""Packed [tokens, heads, head_dim]: a group per request, lengths of 0 and 1."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.grammar.source import Source
from cmask.runtime import Plan, attention, load
from support.attending import DEVICE, REQUESTS, on_every_kernel, plan_of
from support.budgets import Results, Upstream, check_budget, eager

LENGTHS = [  # new tokens and cached keys of each request
    pytest.param([5, 0, 1, 1, 8], [9, 3, 1, 20, 8], id="lengths 0 and 1 among others"),
    pytest.param([0, 0], [4, 0], id="no queries"),
    pytest.param([1], [1], id="one of each"),
    pytest.param([1, 1, 1], [17, 1, 30], id="decoding"),
]


def packed(q_lens: list[int], k_lens: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """q [tokens, 4, 32], k and v [tokens, 2, 32], cut from one projection: strided."""
    random = torch.Generator().manual_seed(0)
    queries, keys = sum(q_lens), sum(k_lens)
    q = torch.randn(queries, 8, 32, generator=random).to(DEVICE)[:, ::2]
    k, v = torch.randn(keys, 4, 32, generator=random).to(DEVICE).chunk(2, 1)
    return q, k, v


def as_batch(x: Tensor) -> Tensor:
    """[tokens, heads, head_dim] -> [1, heads, tokens, head_dim], the same memory."""
    return x.transpose(0, 1)[None]


def attended(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, grad: Tensor, kernel: str
) -> tuple[Results, Tensor]:
    """Results by packed tokens and the output, as a batch of one."""
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    out, lse = attention(*map(as_batch, inputs), plan, return_lse=True, kernel=kernel)
    grads = torch.autograd.grad(out, inputs, as_batch(grad))
    return Results(out.detach(), lse.detach(), *map(as_batch, grads)), out.detach()


@on_every_kernel
@pytest.mark.parametrize(("q_lens", "k_lens"), LENGTHS)
def test_each_request_is_attended_as_alone(
    q_lens: list[int], k_lens: list[int], kernel: str
) -> None:
    q, k, v = packed(q_lens, k_lens)
    random = torch.Generator().manual_seed(1)
    grad = torch.randn(q.shape, generator=random).to(DEVICE)
    found, out = attended(q, k, v, plan_of(REQUESTS, q=q_lens, k=k_lens), grad, kernel)
    assert out[0].transpose(0, 1).is_contiguous()  # packed as the queries are
    visible = torch.zeros(len(q), len(k), dtype=torch.bool, device=DEVICE)
    stops = zip(accumulate(q_lens), accumulate(k_lens), strict=True)
    for m, n, (q_stop, k_stop) in zip(q_lens, k_lens, stops, strict=True):
        # the last query is at the last key
        visible[q_stop - m : q_stop, k_stop - n : k_stop] = visible.new_ones(m, n).tril(n - m)
    assert not found.out[:, :, ~visible.any(1)].any()
    if visible.any():
        exact, plain = (
            eager(*map(as_batch, (q, k, v)), visible, Upstream(as_batch(grad)), dtype=dtype)
            for dtype in (torch.float64, torch.float32)
        )
        check_budget(found, plain, exact)


def test_the_example_of_the_page_runs() -> None:
    page = Path(__file__).parents[2] / "docs" / "serving.md"
    example = page.read_text(encoding="utf-8").split("```python\n")[2].partition("```")[0]
    source = Source("requests", f"mask requests {{ {REQUESTS} }}")
    mask = load(compile_source(source, CompileOptions(symbolic=True)).artifact)
    q, k, v = (x.cpu() for x in packed([5, 0, 1], [9, 3, 20]))
    names: dict[str, Any] = {"attention": attention, "mask": mask, "q": q, "k": k, "v": v}
    assert REQUESTS in example
    exec(example, names)
    assert names["out"].shape == q.shape
    last = k[12:, 1].T  # query head 3 has key head 1
    weights = (q[5, 3] @ last / 32**0.5).softmax(-1)
    torch.testing.assert_close(names["out"][5, 3], weights @ v[12:, 1])
