"""The Hopper kernels without a GPU: their sources run as Python on a machine that means harm."""

from __future__ import annotations

import pytest
import torch

from cmask import masks
from cmask.runtime import attention
from cmask.runtime.kernels.config import (
    GLUON_BACKWARD,
    GLUON_BACKWARD_DQ,
    GLUON_SHAPES,
    GLUON_STAGES,
    KernelConfig,
)
from cmask.runtime.mask import Plan
from support.attending import (
    CAUSAL,
    Results,
    check,
    deterministic,
    exact_output,
    plan_of,
    plan_of_random_rows,
    random_inputs,
    results,
    same,
    shipped,
    visible_pairs,
)
from support.budgets import Upstream, check_budget, eager
from support.by_head import eager_by_head
from support.grids import CLEAR, IMAGE_FIRST, VIDEO
from support.hopper.calls import calls_run_here
from support.hopper.machine import GpuError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the kernels itself")

BY_64 = KernelConfig(
    direction="forward", block_m=64, block_n=64, num_warps=4, num_stages=2, kernel="gluon"
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Products are small, and tests run side by side."""
    torch.set_num_threads(1)


def check_here(
    plan: Plan,
    heads: tuple[int, int] = (2, 1),
    dims: tuple[int, int] = (64, 64),
    dtype: torch.dtype = torch.bfloat16,
    configs: tuple[KernelConfig, ...] = (GLUON_BACKWARD,),
    seed: int = 0,
    is_deterministic: bool = False,
) -> Results:
    """Both directions by the Hopper kernels, against float64."""
    q, k, v = random_inputs(plan, batch=2, heads=heads, dims=dims, dtype=dtype)
    with calls_run_here(seed=seed), deterministic(is_deterministic):
        return check(q, k, v, plan, "gluon", configs=configs)


@pytest.mark.parametrize("name", masks.names())
def test_a_shipped_mask_is_attended_to(name: str) -> None:
    check_here(shipped(name, 300).bind())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["hstu", "sink_window", "clear_r8"])
def test_head_dim_128(name: str, dtype: torch.dtype) -> None:
    check_here(shipped(name, 300).bind(), heads=(4, 2), dims=(128, 128), dtype=dtype)


DIMS = [(16, 16), (96, 96), (192, 128), (256, 256), (40, 104), (128, 64), (96, 64), (160, 40)]


@pytest.mark.parametrize("by", [None, BY_64])
@pytest.mark.parametrize("dims", DIMS)
def test_head_dims_of_the_forward(dims: tuple[int, int], by: KernelConfig | None) -> None:
    plan = shipped("hstu", 300).bind()
    q, k, v = random_inputs(plan, heads=(2, 1), dims=dims, dtype=torch.bfloat16)
    configs = None if by is None else (by,)
    with calls_run_here():
        out = attention(q, k, v, plan, kernel="gluon", configs=configs)
    assert (out.double() - exact_output(q, k, v, plan)).abs().max() < 2**-6


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 129, 257])
def test_a_length(length: int) -> None:
    check_here(plan_of(CAUSAL, text=length))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["causal", "shared_prompt"])
def test_whatever_comes_first(name: str, seed: int) -> None:
    check_here(shipped(name, 500).bind(), seed=100 * seed)


@pytest.mark.parametrize("name", ["causal", "sliding_window", "clear_r8", "causal_documents"])
def test_blocks_of_64_queries(name: str) -> None:
    check_here(shipped(name, 300).bind(), configs=(BY_64, GLUON_BACKWARD))


@pytest.mark.parametrize("stages", GLUON_STAGES["forward"])
@pytest.mark.parametrize("shape", GLUON_SHAPES["forward"])
def test_every_shape_and_number_of_stages(shape: tuple[int, int], stages: int) -> None:
    m, n = shape
    by = KernelConfig(
        direction="forward", block_m=m, block_n=n, num_warps=m // 16, num_stages=stages,
        kernel="gluon",
    )  # fmt: skip
    check_here(shipped("sliding_window", 700).bind(), configs=(by, GLUON_BACKWARD))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_rows_of_several_intervals(count: int) -> None:
    plan = plan_of_random_rows(128 * 150, 200, count)
    q, k, v = random_inputs(plan, heads=(1, 1), dims=(16, 16), dtype=torch.bfloat16)
    with calls_run_here():
        out = attention(q, k, v, plan, kernel="gluon")
    assert (out.double() - exact_output(q, k, v, plan)).abs().max() < 2**-6


@pytest.mark.parametrize("body", [CLEAR, IMAGE_FIRST])
@pytest.mark.parametrize("text", [0, 70])
def test_a_grid_is_read_in_place(body: str, text: int) -> None:
    body = "param radius = 8\n" + body if "radius" in body else body
    check_here(plan_of(body, text=text, height=13, width=20))


def test_a_grid_is_read_in_pieces_of_its_columns() -> None:
    plan = plan_of(IMAGE_FIRST, text=70, height=13, width=20)
    q, k, v = random_inputs(plan, heads=(2, 1), dims=(192, 128), dtype=torch.bfloat16)
    with calls_run_here():
        out = attention(q, k, v, plan, kernel="gluon")
    assert (out.double() - exact_output(q, k, v, plan)).abs().max() < 2**-6


def test_a_video_is_read_in_place() -> None:
    check_here(plan_of(VIDEO, text=70, frames=5, height=6, width=9))


@pytest.mark.parametrize("by", ["triton", "gluon"])
@pytest.mark.parametrize("name", ["sink_window", "hstu", "clear_r8", "shared_prompt"])
def test_gradients_without_sums_in_no_order(name: str, by: str) -> None:
    """Deterministic: dQ by a kernel of its own, and parts of heavy key blocks by sums of theirs."""
    plan = shipped(name, 500).bind()
    by_triton = KernelConfig(direction="dq", block_m=64, block_n=64, num_warps=4, num_stages=2)
    configs = (GLUON_BACKWARD,) if by == "gluon" else (GLUON_BACKWARD, by_triton)
    first, again = (
        check_here(plan, heads=(4, 2), configs=configs, seed=seed, is_deterministic=True)
        for seed in (1, 200)
    )
    assert same(first, again)
    (prepared,) = plan.prepared.values()
    assert [launch.is_gluon for launch in prepared.launches] == [1, 1, int(by == "gluon")]


@pytest.mark.parametrize("name", masks.names())
def test_dq_of_its_own(name: str) -> None:
    plan = shipped(name, 300).bind()
    check_here(plan, configs=(GLUON_BACKWARD, GLUON_BACKWARD_DQ), is_deterministic=True)
    (prepared,) = plan.prepared.values()
    assert [launch.is_gluon for launch in prepared.launches] == [1, 1, 1]


def test_key_blocks_that_every_query_sees_are_done_in_parts() -> None:
    plan = shipped("sink_window", 4096).bind(text=1500, left=100)
    q, k, v = random_inputs(plan, heads=(1, 1), dtype=torch.bfloat16)
    with calls_run_here(programs=16):
        check(q, k, v, plan, "gluon", configs=(GLUON_BACKWARD,))
    (prepared,) = plan.prepared.values()
    assert prepared.launches[1].num_slots > 0


def test_dq_of_its_own_needs_lists_of_the_same_kind_beside_it() -> None:
    by_triton = KernelConfig(direction="dkdv", block_m=64, block_n=64, num_warps=4, num_stages=2)
    plan, configs = plan_of(CAUSAL, text=100), (by_triton, GLUON_BACKWARD_DQ)
    with pytest.raises(ValueError, match='dq by "gluon" needs dkdv by "gluon"'):
        check_here(plan, configs=configs, is_deterministic=True)


@pytest.mark.parametrize("dims", [(64, 64), (128, 128)])
@pytest.mark.parametrize("text", [0, 70])
def test_dq_of_a_grid_in_place(text: int, dims: tuple[int, int]) -> None:
    for body, sizes in (
        ("param radius = 8\n" + CLEAR, {"height": 13, "width": 20}),
        (VIDEO, {"frames": 5, "height": 6, "width": 9}),
    ):
        plan = plan_of(body, text=text, **sizes)
        configs = (GLUON_BACKWARD, GLUON_BACKWARD_DQ)
        check_here(plan, dims=dims, configs=configs, is_deterministic=True)
        (prepared,) = plan.prepared.values()
        assert all(launch.grid is not None for launch in prepared.launches)


@pytest.mark.parametrize("heads", [(6, 6), (6, 3), (6, 1)])
def test_heads_with_rules_of_their_own(heads: tuple[int, int]) -> None:
    body = """
        region text
        text sees text: self
        heads 0..1 { text sees text: window(40, 0) }
        heads 2..4 { text sees text: causal }"""
    plan = plan_of(body, text=200)
    q, k, v = random_inputs(plan, heads=heads, dims=(64, 64), dtype=torch.bfloat16)
    rows, keys = torch.arange(200)[:, None], torch.arange(200)
    back = rows - keys
    seen = [(back >= 0) & (back <= 40)] * 2 + [back >= 0] * 3 + [back == 0]
    visible = torch.stack(seen)
    with calls_run_here():
        found, grad_out = results(q, k, v, plan, "gluon", configs=(GLUON_BACKWARD,))
    exact, plain = (
        eager_by_head(q, k, v, visible, Upstream(grad_out), dtype=dtype)
        for dtype in (torch.float64, q.dtype)
    )
    check_budget(found, plain, exact)


BOUND_ON_DEVICE = {
    "causal": ({}, {"text": 150}),
    "causal_documents": ({"document": 4}, {"text": [130, 1, 0, 64]}),
    "shared_prompt": (
        {"sample": 2, "answer": 2},
        {"prompt": [70, 9], "answer": [[5, 17], [0, 90]]},
    ),
}


@pytest.mark.parametrize("name", BOUND_ON_DEVICE)
def test_lengths_bound_on_the_device(name: str) -> None:
    """Room for more tokens than are bound, and NaN in what is not."""
    instances, sizes = BOUND_ON_DEVICE[name]
    mask, room = shipped(name, 4096), 320
    plan = mask.plan(room, instances=instances, device="cpu")
    plan.bind_(**{n: torch.tensor(value) for n, value in sizes.items()})
    plan.check()
    host = mask.bind(**sizes)
    q, k, v = random_inputs(host, heads=(2, 1), dims=(64, 64), dtype=torch.bfloat16)
    behind = room - host.q_len
    seen = torch.nn.functional.pad(visible_pairs(host), (0, behind, 0, behind))
    zeros, nans = (
        [torch.nn.functional.pad(x, (0, 0, 0, behind), value=value) for x in (q, k, v)]
        for value in (0.0, torch.nan)
    )
    with calls_run_here():
        found, grad_out = results(*nans, plan, "gluon", configs=(GLUON_BACKWARD,))  # type: ignore[arg-type]
    exact, plain = (
        eager(*zeros, seen, Upstream(grad_out), dtype=dtype) for dtype in (torch.float64, q.dtype)
    )
    check_budget(found, plain, exact)
    for x in (found.out, found.dq, found.dk, found.dv):
        assert not x[:, :, host.q_len :].any()


@pytest.mark.parametrize("rows", [(256, 384), (200, 290), (0, 70), (380, 399)])
@pytest.mark.parametrize("name", ["causal", "sliding_window", "sink_window"])
def test_a_chunk_of_rows_reads_nothing_that_it_does_not_see(
    name: str, rows: tuple[int, int]
) -> None:
    """NaN before and behind what the rows see; only a window with a sink has some between."""
    sizes = {"left": 69} if "window" in name else {}
    plan = shipped(name, 400).bind(rows=rows, **sizes)
    q, k, v = random_inputs(plan, batch=2, heads=(2, 1), dims=(64, 64), dtype=torch.bfloat16)
    exact = exact_output(q, k, v, plan)
    unread = ~visible_pairs(plan).any(0)
    k[:, :, unread] = v[:, :, unread] = torch.nan
    with calls_run_here():
        out = attention(q, k, v, plan, kernel="gluon")
    assert (out.double() - exact).abs().max() < 2**-6
    (prepared,) = plan.prepared.values()
    assert unread.any()
    assert prepared.launches[0].has_holes == (name == "sink_window" and rows[0] > 100)


# ------------------------------------------------------------------ what the machine finds

FAULTS = {
    "output stored without a fence": ("forward", "    fence_async_shared()\n", ""),
    "output buffer given back too early": (
        "forward",
        "    tma.store_wait(0)\n    arrive",
        "    arrive",
    ),
    "keys not waited for": (
        "forward",
        "    mbarrier.wait(shared.k_full.index(next_k.stage), next_k.phase, pred=rows.left > 0)\n",
        "",
    ),
    "values not waited for": (
        "forward",
        "    mbarrier.wait(shared.v_full.index(rows.v.stage), rows.v.phase)\n",
        "",
    ),
    "stage of keys never given back": (
        "forward",
        "    release_stage(K_EMPTY, rows.k.stage, T.STAGES, T.THREADS)\n",
        "",
    ),
    "stage of values loaded before it is empty": (
        "forward",
        "            sync_named(V_EMPTY + state.v_stage, T.THREADS)\n",
        "            pass\n",
    ),
    "scores read before they are done": (
        "forward",
        "    scores = warpgroup_mma_wait(1, deps=(scores,))\n"
        "    release_stage(K_EMPTY, rows.k.stage, T.STAGES, T.THREADS)\n"
        "    scores = warpgroup_mma_wait(1, deps=(scores,))",
        "    release_stage(K_EMPTY, rows.k.stage, T.STAGES, T.THREADS)\n"
        "    scores = warpgroup_mma_wait(2, deps=(scores,))",
    ),
    "dS read before both have stored it": (
        "backward",
        "        sync_named(DS_STORED, 256)\n        none",
        "        none",
    ),
    "stage of queries given back too early": (
        "backward",
        "        dk, ds = warpgroup_mma_wait(1, deps=(dk, ds))\n"
        "        release_stage(Q_EMPTY, stage, STAGES, THREADS)\n",
        "        release_stage(Q_EMPTY, stage, STAGES, THREADS)\n"
        "        dk, ds = warpgroup_mma_wait(1, deps=(dk, ds))\n",
    ),
    "stage of keys given back before dQ is done": (
        "backward_dq",
        "    dq, ds = warpgroup_mma_wait(1, deps=(dq, ds))\n"
        "    release_stage(K_EMPTY, stage, STAGES, THREADS)\n",
        "    release_stage(K_EMPTY, stage, STAGES, THREADS)\n"
        "    dq, ds = warpgroup_mma_wait(1, deps=(dq, ds))\n",
    ),
    "queries loaded over dQ": ("backward_dq", "        tma.store_wait(0)\n", ""),
    "dQ left before it was taken": (
        "backward",
        "    sync_named(DQ_EMPTY + WARPGROUP, ADDER_THREADS)\n",
        "",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    """Each is a line that was changed: a wrong number or a hang on a GPU, sometimes."""
    direction, line, instead = FAULTS[fault]
    plan = plan_of(CAUSAL, text=900)
    q, k, v = random_inputs(plan, heads=(2, 1), dims=(64, 64), dtype=torch.bfloat16)
    found = 0
    for seed in range(3):
        configs = (GLUON_BACKWARD, GLUON_BACKWARD_DQ)
        edited = calls_run_here(seed=seed, edits={direction: (line, instead)})
        with edited, deterministic(direction == "backward_dq"):
            try:
                check(q, k, v, plan, "gluon", configs=configs)
            except AssertionError as error:
                found += isinstance(error, GpuError)
    assert found
