"""Steps of random lengths, bound on the device: compiled once, nothing awaited, nothing kept."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cmask.runtime import attention
from cmask.runtime.on_device.plan import DevicePlan
from support.attending import DEVICE, shipped
from support.gpu import waits_for_nothing

INSTANCES: dict[str, dict[str, int]] = {
    "causal_documents": {"document": 4},
    "shared_prompt": {"sample": 4, "answer": 3},
}
Attended = tuple[Tensor, Tensor, Tensor, Tensor]  # output, gradients of q, k and v


def lengths_of(name: str, steps: int, tokens: int) -> dict[str, Tensor]:
    """int64[steps, instances, ...] on the device: at most `tokens` together, some are 0."""
    random = torch.Generator().manual_seed(steps)
    (outer, *inner) = INSTANCES[name].values()
    shapes = {"text": (outer,)} if not inner else {"prompt": (outer,), "answer": (outer, *inner)}
    longest = tokens // sum(torch.Size(shape).numel() for shape in shapes.values())
    return {
        size: torch.randint(0, longest + 1, (steps, *shape), generator=random).to(DEVICE)
        for size, shape in shapes.items()
    }


def attend_by(plan: Any) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda q, k, v: attention(q * 2, k, v, plan)


def attended(attend: Callable[..., Tensor], inputs: list[Tensor]) -> Attended:
    out = attend(*inputs)
    dq, dk, dv = torch.autograd.grad(out, inputs, torch.ones_like(out))
    return out.detach(), dq, dk, dv


def check_as_on_the_host(
    name: str, found: Attended, sizes: dict[str, Tensor], inputs: list[Tensor], rtol: float
) -> None:
    """What a plan of these lengths gives, and zeros behind them."""
    seq = inputs[0].shape[2]
    numbers = {n: x.tolist() for n, x in sizes.items()}
    plan = shipped(name, seq).bind(**numbers, device=DEVICE)
    bound = [x.detach()[:, :, : plan.q_len].requires_grad_() for x in inputs]
    for f, e in zip(found, attended(attend_by(plan), bound), strict=True):
        assert not f[:, :, plan.q_len :].any()
        torch.testing.assert_close(f[:, :, : plan.q_len], e, rtol=rtol, atol=rtol)


def prepared(
    name: str, tokens: int, dtype: torch.dtype
) -> tuple[DevicePlan, Callable[..., Tensor], list[Tensor]]:
    """A plan that one call was made by, its attention not yet compiled, and q, k, v."""
    plan = shipped(name, tokens).plan(tokens, instances=INSTANCES[name], device=DEVICE)
    plan.bind_(**{n: x[0] for n, x in lengths_of(name, 1, tokens).items()})
    random = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(1, h, tokens, 64, generator=random).to(DEVICE, dtype).requires_grad_()
        for h in (2, 1, 1)
    ]
    attended(attend_by(plan), inputs)
    torch._dynamo.reset()
    return plan, attend_by(plan), inputs


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("causal_documents", 6),  # on the interpreter a step takes a second
        pytest.param("causal_documents", 50, marks=pytest.mark.slow),
        pytest.param("shared_prompt", 50, marks=pytest.mark.slow),
    ],
)
def test_one_compilation_serves_all_lengths(name: str, steps: int) -> None:
    tokens = 128
    plan, attend, inputs = prepared(name, tokens, torch.float32)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    attended(compiled, inputs)
    lengths = lengths_of(name, steps, tokens)
    with torch.compiler.set_stance("fail_on_recompile"):
        for step in range(steps):
            sizes = {n: x[step] for n, x in lengths.items()}
            plan.bind_(**sizes)
            found = attended(compiled, inputs)
            check_as_on_the_host(name, found, sizes, inputs, rtol=1e-5)
    plan.check()


@pytest.mark.gpu
@pytest.mark.parametrize("name", INSTANCES)
def test_a_thousand_steps_compile_once_and_neither_wait_nor_grow(name: str) -> None:
    steps, tokens = 1000, 8192
    plan, attend, inputs = prepared(name, tokens, torch.bfloat16)
    compiled = torch.compile(attend, fullgraph=True)
    lengths = lengths_of(name, steps, tokens)
    rows = [{n: x[step] for n, x in lengths.items()} for step in range(steps)]
    for sizes in rows[:2]:
        plan.bind_(**sizes)
        attended(compiled, inputs)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with torch.compiler.set_stance("fail_on_recompile"), waits_for_nothing():
        for sizes in rows:
            plan.bind_(**sizes)
            attended(compiled, inputs)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
    plan.check()
    with torch.compiler.set_stance("fail_on_recompile"):
        found = attended(compiled, inputs)
    check_as_on_the_host(name, found, rows[-1], inputs, rtol=2**-6)


def test_the_mode_that_forbids_to_wait_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []

    def set_mode(mode: str) -> None:
        modes.append(mode)
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with pytest.raises(RuntimeError, match="waits"), waits_for_nothing():
        raise RuntimeError("a step that waits")
    assert modes == ["error", "default"]
