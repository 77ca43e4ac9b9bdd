"""Attention by plans whose lengths are bound on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cmask import masks
from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.grammar.source import Source
from cmask.runtime import attention
from cmask.runtime.kernels.config import KernelConfig
from cmask.runtime.kernels.schedule import work_items
from cmask.runtime.on_device.lists import CapacityDescriptor
from cmask.runtime.on_device.plan import DevicePlan
from support.attending import DEVICE, KERNELS, shipped
from support.budgets import Results, Upstream, check_budget, eager
from support.compiled import dense

ROOM = 96
ON_DEVICE = {
    # 6 rows of the third block are bound, and all of them see the first two
    "causal": ({}, {"text": 70}),
    "causal_documents": ({"document": 4}, {"text": [30, 1, 0, 24]}),
    "shared_prompt": ({"sample": 2, "answer": 2}, {"prompt": [20, 9], "answer": [[5, 17], [0, 9]]}),
    "sink_window": ({}, {"text": 70}),
}


def plan_of(name: str) -> tuple[DevicePlan, Tensor]:
    """A plan that is bound by tensors, and bool[room, room]: what its host plan shows."""
    instances, sizes = ON_DEVICE[name]
    mask = shipped(name, 4096)
    extra: dict[str, Any] = {"left": 20} if name == "sink_window" else {}
    plan = mask.plan(ROOM, instances=instances, device=DEVICE, **extra)
    plan.bind_(**{n: torch.tensor(value, device=DEVICE) for n, value in sizes.items()})
    plan.check()
    seen = dense(mask.bind(**sizes, **extra).bound)
    visible = torch.zeros(ROOM, ROOM, dtype=torch.bool)
    visible[: len(seen), : seen.shape[1]] = torch.from_numpy(seen)
    return plan, visible.to(DEVICE)


def run(plan: DevicePlan, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, kernel: str) -> Results:
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out, lse = attention(q, k, v, plan, return_lse=True, kernel=kernel)
    return Results(out.detach(), lse.detach(), *torch.autograd.grad(out, (q, k, v), grad))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ON_DEVICE)
def test_attention_is_right_and_blind_to_what_is_not_bound(name: str, kernel: str) -> None:
    plan, visible = plan_of(name)
    generator = torch.Generator().manual_seed(3)
    q, grad = (torch.randn(1, 2, ROOM, 32, generator=generator).to(DEVICE) for _ in range(2))
    k, v = (torch.randn(1, 1, ROOM, 32, generator=generator).to(DEVICE) for _ in range(2))
    found = run(plan, q, k, v, grad, kernel)
    exact, plain = (
        eager(q, k, v, visible, Upstream(grad), dtype=dtype)
        for dtype in (torch.float64, torch.float32)
    )
    check_budget(found, plain, exact)
    sees, is_seen = visible.any(1), visible.any(0)
    assert not found.out[:, :, ~sees].any()
    for x, keeps in ((q, sees), (k, is_seen), (v, is_seen)):
        x[:, :, ~keeps] = torch.nan
    assert all(map(torch.equal, run(plan, q, k, v, grad, kernel), found))


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize(("num_heads", "group"), [(3, 3), (5, 2), (4, 1)])
def test_work_is_in_the_order_of_the_host(
    by_key: bool, num_heads: int, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _ = plan_of("causal_documents")
    found = plan.device_descriptor(16, 16)
    assert isinstance(found, CapacityDescriptor)
    # as many processors as leave some owners long and some short
    monkeypatch.setattr(CapacityDescriptor, "_processors", 12)
    side = found.by_key if by_key else found.by_query
    walk = found._walk(by_key, False, num_heads, group)
    for text in ([30, 1, 0, 24], [96], [1, 2, 3]):
        plan.bind_(text=text)
        full, partial = side.counts.cpu().numpy()
        costs = 1.0 * full + 1.2 * partial
        order = np.argsort(-costs, kind="stable").astype(np.int32)
        items = work_items(costs, order, num_heads, group, 12)
        np.testing.assert_array_equal(walk.items.cpu().numpy(), items)


def test_launches_follow_a_new_binding_at_the_same_addresses() -> None:
    plan, _ = plan_of("causal_documents")
    config = KernelConfig(direction="dkdv", block_m=16, block_n=32, num_warps=4, num_stages=1)
    descriptor = plan.device_descriptor(16, 32)
    launch = descriptor.launch(config, num_heads=2, heads_per_walk=1, bytes_per_walk=1)
    addresses, entries = launch.addresses, launch.entries.clone()
    plan.bind_(text=[96])
    again = descriptor.launch(config, num_heads=2, heads_per_walk=1, bytes_per_walk=1)
    assert again.addresses == addresses
    assert again.key == launch.key
    assert not torch.equal(launch.entries, entries)
    assert launch.has_unread_keys
    assert launch.has_empty_rows


def test_rows_behind_the_last_token_see_no_block_that_the_rows_before_them_see_whole() -> None:
    """They were zeros only where their block of queries had no full block of keys."""
    plan = shipped("causal", 4096).plan(64, device=DEVICE).bind_(text=33)
    q, k, v = (torch.randn(1, 1, 64, 32, device=DEVICE) for _ in range(3))
    config = KernelConfig(direction="forward", block_m=64, block_n=32, num_warps=4, num_stages=1)
    descriptor = plan.device_descriptor(64, 32)
    assert isinstance(descriptor, CapacityDescriptor)
    assert descriptor.by_query.counts.tolist() == [[0], [2]]
    out, lse = attention(q, k, v, plan, return_lse=True, kernel="triton", configs=(config,))
    assert out[:, :, :33].any(-1).all()
    assert not out[:, :, 33:].any()
    assert (lse[:, :, 33:] == -torch.inf).all()


def test_nothing_bound_gives_zeros() -> None:
    plan = shipped("causal", 4096).plan(ROOM, device=DEVICE)
    q = torch.randn(1, 1, ROOM, 32, device=DEVICE)
    out, lse = attention(q, q, q, plan, return_lse=True)
    assert not out.any()
    assert (lse == -torch.inf).all()


def test_the_example_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "device_binding.md"
    code = page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    source = Source("shared_prompt", masks.path("shared_prompt").read_text(encoding="utf-8"))
    artifact = compile_source(source, CompileOptions(symbolic=True)).artifact
    (tmp_path / "shared_prompt.cmaskc").write_bytes(artifact)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    assert 'device = "cuda"\n' in code
    exec(code.replace('device = "cuda"\n', f'device = "{DEVICE}"\n'), names)
    out = names["out"]
    assert out[:, :, :621].any(-1).all()
    assert not out[:, :, 621:].any()
