"""The Hopper backward against float64, and as training code meets it, on a Hopper GPU."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cmask import masks
from cmask.runtime import attention
from cmask.runtime.kernels.config import GLUON_BACKWARD, GLUON_BACKWARD_DQ
from support.attending import (
    check,
    deterministic,
    plan_of,
    plan_of_random_rows,
    random_inputs,
    results,
    same,
    shipped,
)
from support.grids import CLEAR, IMAGE_FIRST, VIDEO

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]


def trained(name: str, length: int, seed: int = 0) -> tuple[Any, ...]:
    """(plan, q, k, v, grad_out) of a shipped mask; the kernels are those that are chosen."""
    plan = shipped(name, length).bind(device="cuda")
    q, k, v = random_inputs(plan, heads=(4, 2), dims=(128, 128), dtype=torch.bfloat16)
    generator = torch.Generator(device="cuda").manual_seed(seed)
    grad_out = torch.randn(q.shape, device="cuda", generator=generator).to(q.dtype)
    return plan, *(x.requires_grad_() for x in (q, k, v)), grad_out


@pytest.mark.parametrize("name", masks.names())
def test_a_shipped_mask_has_its_gradients(name: str) -> None:
    plan = shipped(name, 1500).bind(device="cuda")
    q, k, v = random_inputs(plan, heads=(4, 2), dims=(128, 128), dtype=torch.bfloat16)
    check(q, k, v, plan, "gluon", configs=(GLUON_BACKWARD,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", ["causal", "clear_r8", "hstu", "sink_window"])
def test_head_dims_and_dtypes(name: str, head_dim: int, dtype: torch.dtype) -> None:
    plan = shipped(name, 1000).bind(device="cuda")
    dims = (head_dim, head_dim)
    q, k, v = random_inputs(plan, batch=2, heads=(6, 2), dims=dims, dtype=dtype)
    check(q, k, v, plan, "gluon", configs=(GLUON_BACKWARD,))


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 200, 257])
def test_a_length_works(length: int) -> None:
    plan = plan_of("region text; text sees text: causal", text=length)
    q, k, v = random_inputs(plan, heads=(2, 1), dims=(64, 64), dtype=torch.bfloat16)
    check(q, k, v, plan, "gluon", configs=(GLUON_BACKWARD,))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_rows_have_several_intervals(count: int) -> None:
    plan = plan_of_random_rows(64 * 200, 500, count)
    q, k, v = random_inputs(plan, heads=(1, 1), dims=(64, 64), dtype=torch.bfloat16)
    check(q, k, v, plan, "gluon", configs=(GLUON_BACKWARD,))


@pytest.mark.parametrize("body", [CLEAR, IMAGE_FIRST])
@pytest.mark.parametrize("text", [0, 1, 100, 200])
@pytest.mark.parametrize("grid", [(24, 40), (33, 47), (5, 9)])
def test_a_grid_is_read_in_place(grid: tuple[int, int], text: int, body: str) -> None:
    body = "param radius = 8\n" + body if "radius" in body else body
    plan = plan_of(body, text=text, height=grid[0], width=grid[1])
    q, k, v = random_inputs(plan, batch=2, heads=(4, 2), dims=(64, 64), dtype=torch.bfloat16)
    check(q, k, v, plan, "gluon")
    (prepared,) = (kind for kind in plan.prepared.values() if len(kind.launches) == 2)
    assert all(launch.grid is not None for launch in prepared.launches)


@pytest.mark.parametrize("dims", [(64, 64), (128, 128)])
@pytest.mark.parametrize("text", [0, 70])
def test_a_video_is_read_in_place(text: int, dims: tuple[int, int]) -> None:
    plan = plan_of(VIDEO, text=text, frames=7, height=13, width=21)
    q, k, v = random_inputs(plan, batch=2, heads=(2, 2), dims=dims, dtype=torch.bfloat16)
    check(q, k, v, plan, "gluon")


def test_key_blocks_of_a_grid_are_done_in_parts() -> None:
    """Text that every pixel sees is more work than one program should have."""
    plan = plan_of("param radius = 4\n" + CLEAR, text=100, height=120, width=160)
    q, k, v = random_inputs(plan, heads=(1, 1), dims=(64, 64), dtype=torch.bfloat16)
    check(q, k, v, plan, "gluon")
    assert any(launch.num_slots for kind in plan.prepared.values() for launch in kind.launches)


def test_what_nobody_sees_may_hold_nan() -> None:
    body = "query region q; key region k; q sees k: first(300)"
    plan = plan_of(body, q=200, k=400)
    q, k, v = random_inputs(plan, heads=(2, 1), dims=(64, 64), dtype=torch.bfloat16)
    expected, _ = results(q, k, v, plan, "gluon", configs=(GLUON_BACKWARD,))
    k[:, :, 300:] = v[:, :, 300:] = torch.nan
    found, _ = results(q, k, v, plan, "gluon", configs=(GLUON_BACKWARD,))
    assert found.dq.isfinite().all()
    assert torch.equal(found.dk, expected.dk)
    assert (found.dk[:, :, 300:] == 0).all()
    assert (found.dv[:, :, 300:] == 0).all()


@pytest.mark.parametrize("dims", [(64, 64), (128, 128)])
@pytest.mark.parametrize("name", masks.names())
def test_dq_by_a_kernel_of_its_own(name: str, dims: tuple[int, int]) -> None:
    """Deterministic; the same bits in every run."""
    plan = shipped(name, 1500).bind(device="cuda")
    q, k, v = random_inputs(plan, heads=(4, 2), dims=dims, dtype=torch.bfloat16)
    configs = (GLUON_BACKWARD, GLUON_BACKWARD_DQ)
    with deterministic():
        first = check(q, k, v, plan, "gluon", configs=configs)
        again, _ = results(q, k, v, plan, "gluon", configs=configs)
    assert same(first, again)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("asked_by", ["torch", "argument"])
def test_it_is_deterministic_where_it_is_asked_to_be(asked_by: str) -> None:
    """Under load from another stream, too."""
    plan, q, k, v, grad_out = trained("shared_prompt", 2048)
    argument = True if asked_by == "argument" else None
    side, noise = torch.cuda.Stream(), torch.randn(8192, 8192, device="cuda")
    first = None
    with deterministic(asked_by == "torch"):
        for _ in range(20):
            with torch.cuda.stream(side):
                noise = noise.sin()
            out = attention(q, k, v, plan, deterministic=argument)
            grads = torch.autograd.grad(out, (q, k, v), grad_out)
            first = grads if first is None else first
            assert all(map(torch.equal, first, grads))


# ------------------------------------------------------------------ as training code calls it


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Equal but for the order of sums: two roundings to bfloat16 apart, 2^-8 together."""
    for a, b in zip(found, expected, strict=True):
        assert (a.float() - b.float()).norm() <= 2**-8 * b.float().norm()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["hstu", "shared_prompt", "clear_r8"])
def test_it_is_what_training_gets(name: str) -> None:
    """Eager, compiled, checkpointed and accumulated: the gradients of the portable kernels."""
    plan, q, k, v, grad_out = trained(name, 2000)
    call = functools.partial(attention, plan=plan)
    portable = functools.partial(attention, plan=plan, kernel="triton")
    expected = torch.autograd.grad(portable(q, k, v), (q, k, v), grad_out)
    for way in (call, torch.compile(call, fullgraph=True)):
        close(torch.autograd.grad(way(q, k, v), (q, k, v), grad_out), expected)
    for _ in range(2):
        checkpoint(call, q, k, v, use_reentrant=False).backward(grad_out)
    close((q.grad, k.grad, v.grad), tuple(2 * x for x in expected))


def test_gradients_come_in_with_any_strides_and_through_the_log_sum_exp() -> None:
    plan, q, k, v, grad_out = trained("causal", 700)
    grad_lse = torch.randn(q.shape[:3], device="cuda")
    grads = []
    for kernel, dense in (("triton", grad_out), (None, grad_out.transpose(1, 2).contiguous())):
        given = dense if kernel else dense.transpose(1, 2)
        found = attention(q, k, v, plan, return_lse=True, kernel=kernel)
        grads.append(torch.autograd.grad(found, (q, k, v), (given, grad_lse)))
    close(grads[1], grads[0])
    one = torch.ones((), device="cuda", dtype=q.dtype).expand(q.shape)  # strides of 0
    ways = (
        torch.autograd.grad(attention(q, k, v, plan, kernel=kernel), (q, k, v), one)
        for kernel in (None, "triton")
    )
    close(*ways)


def test_it_runs_on_several_streams_and_in_graphs() -> None:
    calls = [trained("sink_window", 3000, seed) for seed in range(4)]
    grads = [torch.autograd.grad(attention(*c[1:4], c[0]), c[1:4], c[4]) for c in calls]
    streams = [torch.cuda.Stream() for _ in calls]
    graphs, captured = [], []
    for plan, q, k, v, grad_out in calls:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured.append(torch.autograd.grad(attention(q, k, v, plan), (q, k, v), grad_out))
        graphs.append(graph)
    torch.cuda.synchronize()
    for _ in range(5):
        found = []
        for stream, graph, (plan, q, k, v, grad_out) in zip(streams, graphs, calls, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
                found.append(torch.autograd.grad(attention(q, k, v, plan), (q, k, v), grad_out))
        torch.cuda.synchronize()
        for a, b, expected in zip(found, captured, grads, strict=True):
            close(a, expected)
            close(b, expected)
