"""Binds that replay a graph of the plan's own give what binds that launch give, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cmask.runtime import attention
from cmask.runtime.on_device import replay
from cmask.runtime.on_device.lengths import CuSeqlens
from cmask.runtime.on_device.lists import CapacityDescriptor
from cmask.runtime.on_device.plan import DevicePlan
from cmask.runtime.on_device.replay import Launch, Replay
from support.attending import shipped
from support.gpu import waits_for_nothing

pytestmark = pytest.mark.gpu
TOKENS, DOCUMENTS = 8192, 32


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each try to record succeeded, of plans made in the test."""
    found: list[bool] = []
    graph_of = replay.graph_of

    def record(launch: Launch) -> Launch | None:
        again = graph_of(launch)
        found.append(again is not None)
        return again

    monkeypatch.setattr(replay, "graph_of", record)
    return found


def plan_of() -> DevicePlan:
    mask = shipped("causal_documents", TOKENS)
    return mask.plan(TOKENS, instances={"document": DOCUMENTS}, device="cuda")


def plain_plan() -> DevicePlan:
    """One that launches every time."""
    plan = plan_of()
    plan._replay = Replay(None)
    return plan


def text(seed: int, dtype: torch.dtype = torch.int64) -> Tensor:
    random = np.random.default_rng(seed)
    drawn = random.integers(0, TOKENS // DOCUMENTS, DOCUMENTS)
    return torch.from_numpy(drawn).to("cuda", dtype)


def state_of(plan: DevicePlan) -> list[Tensor]:
    """All that binding writes."""
    found = [plan.bounds, plan._rows.totals, plan._rows.errors, plan._rows.key_is_read]
    for each in plan._descriptors.values():
        assert isinstance(each, CapacityDescriptor)
        for side in (each.by_query, each.by_key):
            found += [side.runs, side.counts, side.offsets, side.entries]
        found += [walk.items for walk in each._walks.values()]
    return found


def check_same(plan: DevicePlan, plain: DevicePlan) -> None:
    found, expected = state_of(plan), state_of(plain)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
    plan.check()


def attend(*plans: DevicePlan) -> None:
    """Ask for the block shapes and orders of work of a forward."""
    q, k, v = (torch.randn(1, h, TOKENS, 64, device="cuda").bfloat16() for h in (4, 1, 1))
    with torch.no_grad():
        for plan in plans:
            attention(q, k, v, plan)


def test_replays_are_launches_bit_for_bit(recorded: list[bool]) -> None:
    plan, plain = plan_of(), plain_plan()
    for seed in range(12):
        if seed == 4:
            attend(plan, plain)
        if seed == 8:  # another block shape
            for each in (plan, plain):
                each.device_descriptor(64, 32)
        sizes: Any = (
            text(seed),
            text(seed, torch.int32),
            CuSeqlens(torch.cat([text(0)[:1] * 0, text(seed).cumsum(0)])),
            [seed, 100, 7],
        )[seed % 4]
        for each in (plan, plain):
            each.bind_(text=sizes)
        check_same(plan, plain)
    assert recorded == [True, True, True]


def test_two_streams_replay_in_the_order_that_the_user_gives(recorded: list[bool]) -> None:
    plan, plain = plan_of(), plain_plan()
    attend(plan, plain)
    streams = [torch.cuda.Stream() for _ in range(2)]
    steps = [text(seed) for seed in range(20)]
    torch.cuda.synchronize()
    for index, step in enumerate(steps):
        here, there = streams[index % 2], streams[1 - index % 2]
        here.wait_stream(there)
        with torch.cuda.stream(here):
            plan.bind_(text=step)
            found = [x.clone() for x in state_of(plan)]
        here.synchronize()
        plain.bind_(text=step)
        assert all(map(torch.equal, found, state_of(plain)))
    assert recorded == [True]


def test_a_users_graph_and_replays_take_turns(recorded: list[bool]) -> None:
    plan, plain = plan_of(), plain_plan()
    attend(plan, plain)
    held = text(0)
    for each in (plan, plain):
        each.bind_(text=text(0)).bind_(text=text(1))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.bind_(text=held)
    for seed in range(2, 8):
        if seed % 2:
            held.copy_(text(seed))
            graph.replay()
        else:
            plan.bind_(text=[seed, 5] if seed == 4 else text(seed))
        plain.bind_(text=[seed, 5] if seed == 4 else text(seed))
        check_same(plan, plain)
    assert recorded == [True]


def test_replays_wait_for_nothing_and_allocate_nothing(recorded: list[bool]) -> None:
    plan, plain = plan_of(), plain_plan()
    attend(plan, plain)
    steps = [text(seed) for seed in range(50)]
    plan.bind_(text=steps[0])
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with waits_for_nothing():
        for step in steps:
            plan.bind_(text=step)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    for step in steps:
        plain.bind_(text=step)
    check_same(plan, plain)
    assert recorded == [True]


def test_recording_itself_waits_for_nothing(recorded: list[bool]) -> None:
    plan = plan_of().bind_(text=text(0))
    plan.device_descriptor(64, 64)
    step = text(1)
    with waits_for_nothing():
        plan.bind_(text=step)
    assert recorded == [True, True]


def test_recording_leaves_random_numbers_and_inference_alone(recorded: list[bool]) -> None:
    """torch's graphs share the tensors of a generator: they must be usable by later graphs."""
    with torch.inference_mode():
        plan = plan_of().bind_(text=text(0))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = torch.rand(8, device="cuda")
    torch.manual_seed(3)
    expected = torch.rand(8, device="cuda")
    torch.manual_seed(3)
    plan.bind_(text=text(1))
    graph.replay()
    assert torch.equal(drawn, expected)
    assert recorded == [True]


def test_what_cannot_be_captured_is_left_to_launches() -> None:
    x = torch.ones(3, device="cuda")

    def launch() -> None:
        x.add_(1)
        raise RuntimeError("no launch")

    assert replay.graph_of(launch) is None
    assert not torch.cuda.is_current_stream_capturing()
    assert (x + 1).tolist() == [2, 2, 2], "what is captured does not run"
