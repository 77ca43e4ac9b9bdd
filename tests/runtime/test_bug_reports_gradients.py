"""Bug reports about gradients: each must not happen here.

The number at the end of a name is the report's; `tests/test_bug_reports_masks.py` lists what does
not apply.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cmask.runtime import attention
from support.attending import (
    DEVICE,
    FULL,
    check,
    check_modalities,
    on_every_kernel,
    plan_of,
    random_inputs,
    results,
    same,
)
from support.compiled import dense


@on_every_kernel
@pytest.mark.parametrize("size", [64, 192, 320, 256])
def test_the_padded_half_of_the_last_tile_is_masked_in_backward__CM_076(
    kernel: str, size: int
) -> None:
    plan = plan_of(FULL, text=size)
    q, k, v = random_inputs(plan, heads=(1, 1), dtype=torch.bfloat16)
    found = check(q * 0.1 + 6, k * 0.1 - 6, v, plan, kernel)
    assert (found.lse < -88.7).all()


@on_every_kernel
def test_gradients_flow_through_the_lse__CM_077(kernel: str) -> None:
    plan = plan_of(FULL, text=1)
    q, k, v, sink = (
        torch.tensor(x, device=DEVICE, requires_grad=True) for x in (1.0, 1.0, 2.0, 0.0)
    )
    out, lse = attention(
        *(x.reshape(1, 1, 1, 1) for x in (q, k, v)),
        plan,
        softmax_scale=1.0,
        return_lse=True,
        kernel=kernel,
    )
    result = out * torch.sigmoid(lse - sink)[..., None]
    result.sum().backward()
    assert result.item() == pytest.approx(1.46212, abs=1e-4)
    assert q.grad.item() == pytest.approx(0.39322, abs=1e-4)
    assert k.grad.item() == pytest.approx(0.39322, abs=1e-4)
    assert v.grad.item() == pytest.approx(0.73106, abs=1e-4)
    assert sink.grad.item() == pytest.approx(-0.39322, abs=1e-4)


@on_every_kernel
def test_a_sink_by_the_lse_is_one_more_logit__CM_078(kernel: str) -> None:
    body = "region text; query region blind; text sees text: causal"
    plan = plan_of(body, text=4, blind=1)
    q, k, v = (x.requires_grad_() for x in random_inputs(plan, dims=(16, 16)))
    sinks = torch.tensor([0.0, 3.0], device=DEVICE, requires_grad=True)
    out, lse = attention(q, k, v, plan, return_lse=True, kernel=kernel)
    found = out * torch.sigmoid(lse - sinks[:, None])[..., None]
    hidden = torch.from_numpy(~dense(plan.bound)).to(DEVICE)
    scores = (q @ k.transpose(-1, -2) / 4).masked_fill(hidden, -torch.inf)
    column = sinks[:, None, None].expand(1, 2, 5, 1)
    weights = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
    expected = weights @ v
    torch.testing.assert_close(found, expected)
    assert (found[:, :, 4] == 0).all()
    torch.testing.assert_close(torch.logaddexp(lse, sinks[:, None])[0, :, 4], sinks)
    inputs = (q, k, v, sinks)
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@on_every_kernel
@pytest.mark.parametrize(
    ("body", "sizes"),
    [
        ("group document* { region text; text sees text: causal }", {"text": [30, 1, 70, 39]}),
        ("region text; text sees text: window(31, 0)", {"text": 140}),
    ],
)
def test_gradients_are_the_same_in_every_run__CM_081(
    kernel: str, body: str, sizes: dict[str, Any]
) -> None:
    plan = plan_of(body, **sizes)
    inputs = random_inputs(plan, heads=(2, 1), dtype=torch.bfloat16)
    first, _ = results(*inputs, plan, kernel)
    assert all(same(first, results(*inputs, plan, kernel)[0]) for _ in range(2))


@on_every_kernel
@pytest.mark.parametrize("seed", range(3))
def test_batches_of_random_runs_never_give_nan__CM_084(kernel: str, seed: int) -> None:
    check_modalities(kernel, seed, 40)
