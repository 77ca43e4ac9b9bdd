"""Binding lengths inside CUDA graphs: nothing read back, nothing allocated, right after replays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cmask.runtime import attention
from cmask.runtime.on_device.plan import DevicePlan
from support.attending import shipped
from support.device_masks import check_lists, check_rows
from support.gpu import waits_for_nothing

pytestmark = pytest.mark.gpu
TOKENS = 32768
FIXED: dict[str, dict[str, Any]] = {"hstu": {"context": 6, "max_attn_len": 1024}}
INSTANCES: dict[str, dict[str, int]] = {
    "causal_documents": {"document": 64},
    "shared_prompt": {"sample": 8, "answer": 8},
    "hstu": {"user": 16},
}


def drawn(name: str, seed: int) -> dict[str, Any]:
    """Random lengths of at most TOKENS tokens, some of them 0."""
    random = np.random.default_rng(seed)
    if name == "causal_documents":
        return {"text": random.integers(0, TOKENS // 64, 64)}
    if name == "shared_prompt":
        return {"prompt": random.integers(0, 1024, 8), "answer": random.integers(0, 384, (8, 8))}
    return {"target": random.integers(0, 64, 16), "history": random.integers(0, 1900, 16)}


def plan_of(name: str) -> DevicePlan:
    mask = shipped(name, TOKENS)
    return mask.plan(TOKENS, instances=INSTANCES[name], device="cuda", **FIXED.get(name, {}))


def on_gpu(sizes: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value).cuda() for name, value in sizes.items()}


def check(plan: DevicePlan, name: str, sizes: dict[str, Any]) -> None:
    plan.check()
    numbers = {n: value.tolist() for n, value in sizes.items()}
    bound = shipped(name, TOKENS).bind(**numbers, **FIXED.get(name, {})).bound
    check_rows(plan, bound)
    check_lists(plan, bound, 128, 128)


@pytest.mark.parametrize("name", INSTANCES)
def test_long_sequences_are_bound_as_on_the_host(name: str) -> None:
    plan = plan_of(name)
    for seed in range(3):
        sizes = drawn(name, seed)
        plan.bind_(**on_gpu(sizes))
        check(plan, name, sizes)


@pytest.mark.parametrize("name", INSTANCES)
def test_a_graph_binds_what_its_tensors_hold_when_it_runs(name: str) -> None:
    plan = plan_of(name)
    held = on_gpu(drawn(name, 0))
    q, k, v = (torch.randn(1, h, TOKENS, 128, device="cuda").bfloat16() for h in (4, 1, 1))
    plan.bind_(**held)
    attention(q, k, v, plan)
    plan.device_descriptor(128, 128).fill_by_key()  # which `check` asks for
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.bind_(**held)
        out = attention(q, k, v, plan)
    for seed in (1, 2):
        sizes = drawn(name, seed)
        plan.bind_(**on_gpu(drawn(name, 7)))  # what is bound in between does not matter
        for key, value in on_gpu(sizes).items():
            held[key].copy_(value)
        graph.replay()
        check(plan, name, sizes)
        replayed = out.clone()
        assert torch.equal(replayed, attention(q, k, v, plan))


@pytest.mark.parametrize("name", INSTANCES)
def test_binding_reads_nothing_back_and_allocates_nothing(name: str) -> None:
    plan = plan_of(name)
    steps = [on_gpu(drawn(name, seed)) for seed in range(20)]
    plan.device_descriptor(128, 128)
    plan.bind_(**steps[0])
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with waits_for_nothing():
        for step in steps:
            plan.bind_(**step)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    plan.check()
