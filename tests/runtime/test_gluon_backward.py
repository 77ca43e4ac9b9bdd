"""The Hopper backward, where a configuration asks for it, against float64 on a Hopper GPU."""

from __future__ import annotations

import pytest
import torch

from cmask import masks
from cmask.runtime.kernels.config import KernelConfig
from support.attending import check, plan_of, random_inputs, results, shipped

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

BY_KEY = KernelConfig(
    direction="dkdv", block_m=64, block_n=128, num_warps=8, num_stages=2, kernel="gluon"
)


@pytest.mark.parametrize("name", masks.names())
def test_a_shipped_mask_has_its_gradients(name: str) -> None:
    plan = shipped(name, 1500).bind(device="cuda")
    q, k, v = random_inputs(plan, heads=(4, 2), dims=(128, 128), dtype=torch.bfloat16)
    check(q, k, v, plan, "gluon", configs=(BY_KEY,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", ["causal", "clear_r8", "hstu", "sink_window"])
def test_head_dims_and_dtypes(name: str, head_dim: int, dtype: torch.dtype) -> None:
    plan = shipped(name, 1000).bind(device="cuda")
    dims = (head_dim, head_dim)
    q, k, v = random_inputs(plan, batch=2, heads=(6, 2), dims=dims, dtype=dtype)
    check(q, k, v, plan, "gluon", configs=(BY_KEY,))


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 200, 257])
def test_a_length_works(length: int) -> None:
    plan = plan_of("region text; text sees text: causal", text=length)
    q, k, v = random_inputs(plan, heads=(2, 1), dims=(64, 64), dtype=torch.bfloat16)
    check(q, k, v, plan, "gluon", configs=(BY_KEY,))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_rows_have_several_intervals(count: int) -> None:
    """Random bounds: more patterns than a dictionary holds, so that row bounds mask them."""
    generator = torch.Generator().manual_seed(count)
    rows = 64 * 200
    ends = torch.randint(0, 500, (2 * count, rows), generator=generator).sort(0).values
    func = torch.cat([torch.zeros(1, rows, dtype=torch.int64), ends]).tolist()
    body = "table func[row]; query region q; key region k; q sees k: rows(func)"
    plan = plan_of(body, q=rows, k=500, func=func)
    assert plan.device_descriptor(64, 128).num_intervals > 0
    q, k, v = random_inputs(plan, heads=(1, 1), dims=(64, 64), dtype=torch.bfloat16)
    check(q, k, v, plan, "gluon", configs=(BY_KEY,))


def test_what_nobody_sees_may_hold_nan() -> None:
    body = "query region q; key region k; q sees k: first(300)"
    plan = plan_of(body, q=200, k=400)
    q, k, v = random_inputs(plan, heads=(2, 1), dims=(64, 64), dtype=torch.bfloat16)
    expected, _ = results(q, k, v, plan, "gluon", configs=(BY_KEY,))
    k[:, :, 300:] = v[:, :, 300:] = torch.nan
    found, _ = results(q, k, v, plan, "gluon", configs=(BY_KEY,))
    assert found.dq.isfinite().all()
    assert torch.equal(found.dk, expected.dk)
    assert (found.dk[:, :, 300:] == 0).all()
    assert (found.dv[:, :, 300:] == 0).all()


@pytest.mark.filterwarnings("ignore")
def test_it_is_deterministic_where_torch_is_asked_to_be() -> None:
    plan = shipped("shared_prompt", 2048).bind(device="cuda")
    q, k, v = random_inputs(plan, heads=(8, 2), dims=(128, 128), dtype=torch.bfloat16)
    torch.use_deterministic_algorithms(True)
    try:
        first, _ = results(q, k, v, plan, "gluon", configs=(BY_KEY,))
        for _ in range(20):
            again, _ = results(q, k, v, plan, "gluon", configs=(BY_KEY,))
            assert all(map(torch.equal, first, again))
    finally:
        torch.use_deterministic_algorithms(False)
