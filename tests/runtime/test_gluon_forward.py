"""The Hopper forward against float64, on a Hopper GPU: every mask, shape and way to call it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cmask import masks
from cmask.runtime import attention
from cmask.runtime.kernels.config import KernelConfig
from cmask.runtime.mask import Plan
from support.attending import exact_output, plan_of, random_inputs, shipped
from support.gpu import waits_for_nothing
from support.grids import CLEAR, IMAGE_FIRST, VIDEO

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

CAUSAL = "region text; text sees text: causal"


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    configs: tuple[KernelConfig, ...] | None = None,
) -> Tensor:
    """Output and log-sum-exp are as good as rounding allows; the output is returned."""
    out, lse = attention(q, k, v, plan, kernel="gluon", return_lse=True, configs=configs)
    exact = exact_output(q, k, v, plan)
    assert out.isfinite().all()
    step = 2**-8 if q.dtype == torch.bfloat16 else 2**-11
    error = (out.double() - exact).abs()
    assert error.max() <= 4 * step * exact.abs().max().clamp(min=1), float(error.max())
    assert error.pow(2).mean().sqrt() <= step * exact.pow(2).mean().sqrt().clamp(min=1e-3)
    other = attention(q, k, v, plan, kernel="triton", return_lse=True)[1]
    assert torch.equal(lse.isinf(), other.isinf())
    both = ~lse.isinf()
    torch.testing.assert_close(lse[both], other[both], rtol=1e-4, atol=2e-3)
    return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", masks.names())
def test_a_shipped_mask_attends_as_it_means(name: str, dtype: torch.dtype) -> None:
    plan = shipped(name, 3000).bind(device="cuda")
    check(*random_inputs(plan, heads=(2, 1), dims=(128, 128), dtype=dtype), plan)


DIMS = [(16, 16), (32, 64), (64, 64), (64, 128), (96, 96), (128, 64), (128, 128), (192, 128)]
DIMS += [(192, 192), (256, 256), (40, 104), (16, 256), (256, 16), (96, 64), (160, 40)]


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("name", ["causal", "clear_r8", "hstu"])
def test_a_head_dim_works(name: str, dims: tuple[int, int]) -> None:
    plan = shipped(name, 1500).bind(device="cuda")
    check(*random_inputs(plan, batch=2, heads=(4, 2), dims=dims, dtype=torch.bfloat16), plan)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257, 383, 1000])
def test_a_length_works(length: int) -> None:
    plan = plan_of(CAUSAL, text=length)
    check(*random_inputs(plan, heads=(3, 1), dims=(128, 128), dtype=torch.bfloat16), plan)


@pytest.mark.parametrize(
    "intervals", [["0 5 90"], ["0 5 90", "100 110 200"], ["0 5 90", "100 110 200", "250 300 310"]]
)
def test_rows_have_several_intervals(intervals: list[str]) -> None:
    """Random bounds: more patterns than a dictionary holds, so that row bounds mask them."""
    generator = torch.Generator().manual_seed(len(intervals))
    count = 128 * 150
    ends = torch.randint(0, 700, (2 * len(intervals), count), generator=generator).sort(0).values
    func = torch.cat([torch.zeros(1, count, dtype=torch.int64), ends]).tolist()
    plan = plan_of(
        "table func[row]; query region q; key region k; q sees k: rows(func)",
        q=count, k=700, func=func,
    )  # fmt: skip
    assert plan.device_descriptor(128, 128).num_intervals > 0
    check(*random_inputs(plan, heads=(1, 1), dims=(128, 128), dtype=torch.bfloat16), plan)


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd", "sliced", "odd"])
@pytest.mark.parametrize("body", ["causal", "clear", "video"])
def test_any_strides_are_read_and_written(body: str, layout: str) -> None:
    sizes = {"text": 100, "height": 33, "width": 47, "radius": 9}
    plan = {
        "causal": lambda: plan_of(CAUSAL, text=700),
        "clear": lambda: plan_of("param radius\n" + CLEAR, **sizes),
        "video": lambda: plan_of(VIDEO, text=70, frames=6, height=11, width=19),
    }[body]()
    inputs = random_inputs(plan, batch=2, heads=(4, 2), dims=(64, 64), dtype=torch.bfloat16)
    q, k, v = (_laid_out(x, layout) for x in inputs)
    check(q, k, v, plan)


def _laid_out(x: Tensor, layout: str) -> Tensor:
    match layout:
        case "bshd":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        case "sbhd":
            return x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
        case "sliced":
            return torch.cat([x, x], dim=-1)[..., : x.shape[-1]]
        case "odd":  # rows that are not aligned: a copy is made
            return torch.cat([x, x[..., :3]], dim=-1)[..., : x.shape[-1]]
    return x


@pytest.mark.parametrize("body", [CLEAR, IMAGE_FIRST])
@pytest.mark.parametrize("text", [0, 1, 100, 128, 200])
@pytest.mark.parametrize("grid", [(24, 40), (33, 47), (5, 9), (8, 16)])
def test_a_grid_is_read_in_place(grid: tuple[int, int], text: int, body: str) -> None:
    body = "param radius = 8\n" + body if "radius" in body else body
    plan = plan_of(body, text=text, height=grid[0], width=grid[1])
    assert plan.is_permuted
    assert plan.grid_rows is not None
    q, k, v = random_inputs(plan, batch=2, heads=(2, 1), dims=(64, 64), dtype=torch.bfloat16)
    out = check(q, k, v, plan)
    moved = (plan.permute(q), plan.permute(k, "key"), plan.permute(v, "key"))
    inside = attention(*moved, plan, permuted=True, kernel="gluon")
    assert torch.equal(plan.unpermute(inside), out)


@pytest.mark.parametrize("text", [0, 70])
def test_a_video_is_read_in_place(text: int) -> None:
    plan = plan_of(VIDEO, text=text, frames=7, height=13, width=21)
    assert plan.grid_rows is not None
    check(*random_inputs(plan, batch=2, heads=(2, 2), dims=(64, 64), dtype=torch.bfloat16), plan)


def test_a_grid_of_which_some_keys_are_unread_may_hold_nan() -> None:
    body = "region text; region image[height, width] order tile(8, 16)\n"
    body += "text sees text: all; image sees text: all; image sees image: window(height, 0, 0)"
    body += " & window(width, 0, 0) & first(50)"
    plan = plan_of(body, text=40, height=20, width=30)
    q, k, v = random_inputs(plan, heads=(1, 1), dims=(64, 64), dtype=torch.bfloat16)
    k[:, :, 90:] = v[:, :, 90:] = torch.nan
    out = attention(q, k, v, plan, kernel="gluon")
    k[:, :, 90:] = v[:, :, 90:] = 0
    assert torch.equal(out, attention(q, k, v, plan, kernel="gluon"))
    check(q, k, v, plan)


@pytest.mark.parametrize("rows", [(1024, 2048), (1000, 1700), (0, 77), (2900, 2999)])
@pytest.mark.parametrize("name", ["causal", "sliding_window", "sink_window"])
def test_a_chunk_of_rows_reads_nothing_that_it_does_not_see(
    name: str, rows: tuple[int, int]
) -> None:
    """NaN before and behind what the rows see; only a window with a sink has some between."""
    mask = shipped(name, 3000)
    sizes = {"left": 299} if "window" in name else {}
    plan = mask.bind(rows=rows, device="cuda", **sizes)
    q, k, v = random_inputs(plan, batch=2, heads=(2, 1), dims=(64, 64), dtype=torch.bfloat16)
    expected = check(q, k, v, plan)
    seen = torch.from_numpy(plan.bound.visible(np.arange(plan.q_len), np.arange(plan.kv_len)))
    unread = ~seen.any(0).cuda()
    assert unread.any()
    k[:, :, unread] = v[:, :, unread] = torch.nan
    for _ in range(2):  # the second call takes the short way
        assert torch.equal(attention(q, k, v, plan, kernel="gluon"), expected)


def test_rows_between_aligned_addresses_are_copied_with_strides_of_their_own() -> None:
    """The call before had the same shapes and strides, and aligned addresses."""
    plan = plan_of(CAUSAL, text=300)
    generator = torch.Generator(device="cuda").manual_seed(0)
    shape = (2, 300, 4, 144)
    wide = torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator)
    for start in (0, 4, 8, 2):
        x = wide.transpose(1, 2)[..., start : start + 128]
        check(x, x, x, plan)


SMALL = KernelConfig(
    direction="forward", block_m=64, block_n=64, num_warps=4, num_stages=2, kernel="gluon"
)


@pytest.mark.parametrize(
    "name", ["causal", "sliding_window", "clear_r8", "hstu", "causal_documents"]
)
def test_blocks_of_64_queries_work(name: str) -> None:
    plan = shipped(name, 3000).bind(device="cuda")
    inputs = random_inputs(plan, batch=2, heads=(4, 2), dims=(128, 128), dtype=torch.bfloat16)
    check(*inputs, plan, configs=(SMALL,))


def test_a_result_is_the_same_in_every_run_and_beside_other_work() -> None:
    """Items go to whichever program is free: nothing may depend on which one that is."""
    plan = shipped("hstu", 4096).bind(device="cuda")
    q, k, v = random_inputs(plan, heads=(16, 4), dims=(128, 128), dtype=torch.bfloat16)
    first = attention(q, k, v, plan)
    side = torch.cuda.Stream()
    noise = torch.randn(2048, 2048, device="cuda")
    for _ in range(200):
        with torch.cuda.stream(side):
            noise = noise @ noise * 1e-3
        assert torch.equal(attention(q, k, v, plan), first)


def test_streams_do_not_share_a_queue() -> None:
    plan = shipped("causal", 2048).bind(device="cuda")
    q, k, v = random_inputs(plan, heads=(8, 8), dims=(64, 64), dtype=torch.bfloat16)
    expected = attention(q, k, v, plan)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    found: list[Tensor] = []
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(attention(q, k, v, plan))
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in found)


def test_graphs_may_be_replayed_side_by_side() -> None:
    plan = shipped("causal", 2048).bind(device="cuda")
    q, k, v = random_inputs(plan, heads=(8, 8), dims=(64, 64), dtype=torch.bfloat16)
    expected = attention(q, k, v, plan)
    graphs, outs = [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs.append(attention(q, k, v, plan))
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(30):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in outs)


@pytest.mark.parametrize("shared", ["k", "v", "both"])
def test_batches_may_share_keys_or_values(shared: str) -> None:
    plan = shipped("causal", 500).bind(device="cuda")
    q, k, v = random_inputs(plan, batch=3, heads=(2, 1), dims=(64, 64), dtype=torch.bfloat16)
    k = k[:1] if shared in ("k", "both") else k
    v = v[:1] if shared in ("v", "both") else v
    whole = check(q, k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1).contiguous(), plan)
    assert torch.equal(attention(q, k, v, plan, kernel="gluon"), whole)


def test_a_call_waits_for_nothing() -> None:
    plan = shipped("causal_documents", 2048).bind(device="cuda")
    q, k, v = random_inputs(plan, heads=(2, 2), dims=(128, 128), dtype=torch.bfloat16)
    attention(q, k, v, plan)
    with waits_for_nothing():
        attention(q, k, v, plan)
