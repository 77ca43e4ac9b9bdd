"""What a second bind of the same kind does not do again, and that it binds all the same."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from cmask.runtime.derive.sizes import BindError
from cmask.runtime.on_device import kinds
from cmask.runtime.on_device.lengths import CuSeqlens
from cmask.runtime.on_device.plan import DevicePlan
from cmask.runtime.on_device.replay import Replay, recorder_for
from support.attending import DEVICE, shipped
from support.device_masks import check_lists, check_rows

Launch = Callable[[], None]


class Recorder:
    """Keeps launches as a graph would; counts what is asked of it."""

    def __init__(self, *, can_record: bool = True) -> None:
        self.can_record = can_record
        self.recorded = self.replayed = 0

    def __call__(self, launch: Launch) -> Launch | None:
        self.recorded += 1

        def again() -> None:
            self.replayed += 1
            launch()

        return again if self.can_record else None

    @property
    def counts(self) -> tuple[int, int]:
        return self.recorded, self.replayed


def counting() -> tuple[list[int], Launch]:
    launched = [0]

    def launch() -> None:
        launched[0] += 1

    return launched, launch


def lengths(*numbers: Any, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, device=DEVICE)


def documents(tokens: int = 64) -> tuple[DevicePlan, Recorder]:
    plan = shipped("causal_documents", tokens).plan(
        tokens, instances={"document": 3}, device=DEVICE
    )
    recorder = Recorder()
    plan._replay = Replay(recorder)
    return plan, recorder


def check(plan: DevicePlan, text: list[int]) -> None:
    plan.check()
    check_rows(plan, shipped("causal_documents", 64).bind(text=text).bound)


# ---------------------------------------------------------------------------------------- launches
def test_launches_are_recorded_once_they_have_run_and_replayed_from_then_on() -> None:
    (launched, launch), recorder = counting(), Recorder()
    replay = Replay(recorder)
    replay.run(launch, (), plainly=False)
    assert (launched, recorder.counts) == ([1], (1, 0))
    for _ in range(3):
        replay.run(launch, (), plainly=False)
    assert recorder.counts == (1, 3)


def test_other_launches_are_recorded_anew() -> None:
    (_, launch), recorder = counting(), Recorder()
    replay = Replay(recorder)
    for key in ((), (1,), (1,), (1, 0), (1, 2), (1, 2)):
        replay.run(launch, key, plainly=False)
    assert recorder.counts == (4, 2)


def test_a_stream_that_captures_gets_the_launches_themselves() -> None:
    (launched, launch), recorder = counting(), Recorder()
    replay = Replay(recorder)
    replay.run(launch, (), plainly=True)
    replay.run(launch, (), plainly=False)
    replay.run(launch, (), plainly=True)
    assert (launched, recorder.counts) == ([3], (1, 0))
    replay.run(launch, (), plainly=False)
    assert recorder.counts == (1, 1)


def test_traced_code_gets_the_launches_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    (launched, launch), recorder = counting(), Recorder()
    replay = Replay(recorder)
    replay.run(launch, (), plainly=False)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    replay.run(launch, (), plainly=False)
    assert (launched, recorder.counts) == ([2], (1, 0))


def test_what_cannot_be_recorded_is_launched_and_not_tried_again() -> None:
    (launched, launch), recorder = counting(), Recorder(can_record=False)
    replay = Replay(recorder)
    for _ in range(3):
        replay.run(launch, (), plainly=False)
    assert (launched, recorder.counts) == ([3], (1, 0))


def test_the_interpreter_is_never_recorded() -> None:
    assert recorder_for(torch.device("cpu")) is None
    if DEVICE == "cpu":
        assert recorder_for(torch.device("cuda")) is None  # its kernels run on the host


# --------------------------------------------------------------------------------------- the plan
def test_a_plan_replays_until_it_is_asked_for_another_block_shape() -> None:
    plan, recorder = documents()
    for text in ([10, 20, 30], [1, 0, 2], [5, 5, 5]):
        plan.bind_(text=lengths(*text))
        check(plan, text)
    assert recorder.counts == (1, 2)
    plan.device_descriptor(16, 16).fill_by_key()
    for text in ([10, 20, 30], [1, 0, 2]):
        plan.bind_(text=lengths(*text))
        check_lists(plan, shipped("causal_documents", 64).bind(text=text).bound, 16, 16)
    assert recorder.counts == (2, 3)
    plan.device_descriptor(16, 16)._walk(False, False, 2, 2)  # another order of work
    plan.bind_(text=lengths(3, 4, 5)).bind_(text=lengths(3, 4, 5))
    assert recorder.counts == (3, 4)


def test_lists_that_are_asked_for_later_are_replayed_too() -> None:
    plan, recorder = documents()
    found = plan.device_descriptor(16, 16)
    plan.bind_(text=lengths(10, 20, 30)).bind_(text=lengths(10, 20, 30))
    found.fill_by_key()
    for text in ([1, 0, 2], [30, 20, 10]):
        plan.bind_(text=lengths(*text))
        check_lists(plan, shipped("causal_documents", 64).bind(text=text).bound, 16, 16)
    assert recorder.counts == (2, 2)


def test_kinds_of_bind_share_what_was_recorded() -> None:
    """The launches are the same; the table is copied outside of them."""
    plan, recorder = documents()
    for _ in range(2):
        plan.bind_(text=[7, 8])
        check(plan, [7, 8])
        plan.bind_(text=lengths(10, 20, 30))
        check(plan, [10, 20, 30])
        plan.bind_(text=CuSeqlens(lengths(0, 4, 4, 24, dtype=torch.int32)))
        check(plan, [4, 0, 20])
    assert recorder.counts == (1, 5)


def test_a_copy_of_a_plan_shares_nothing_with_it() -> None:
    plan, recorder = documents()
    plan.bind_(text=lengths(10, 20, 30))
    other = deepcopy(plan)
    other.bind_(text=lengths(1, 2, 3))
    check(other, [1, 2, 3])
    check(plan, [10, 20, 30])
    assert other._replay is not plan._replay
    assert recorder.counts == (1, 0)


def test_compiled_code_binds_outside_of_its_graphs() -> None:
    plan, _ = documents()

    def step(text: Tensor) -> Tensor:
        plan.bind_(text=text)
        return text + 1

    compiled = torch.compile(step, backend="eager")
    for text in ([10, 20, 30], [1, 0, 2]):
        assert compiled(lengths(*text)).tolist() == [n + 1 for n in text]
        check(plan, text)


# ------------------------------------------------------------------------------------ kinds of bind
def test_binds_of_one_kind_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = documents()
    plan.bind_(text=lengths(1, 2, 3))
    plan.bind_(text=lengths(1, 2))

    def fail(*_: object) -> None:
        raise AssertionError("made again")

    monkeypatch.setattr(kinds, "make_table", fail)
    for text in ([4, 5, 6], [7, 8], [9, 10, 11]):
        plan.bind_(text=lengths(*text))
        check(plan, text)
    with pytest.raises(AssertionError, match="made again"):
        plan.bind_(text=lengths(1, 2, 3, dtype=torch.int32))  # another dtype is another kind


def test_kinds_that_are_not_met_again_are_not_kept() -> None:
    plan, _ = documents()
    for n in range(10):
        plan.bind_(text=[n])
        plan.bind_(text=lengths(10, 20, 30))
    assert len(plan._kinds._kept) == kinds._KEPT
    check(plan, [10, 20, 30])


def test_what_is_only_equal_to_a_number_is_another_kind() -> None:
    plan = shipped("sliding_window", 64).plan(64, device=DEVICE)
    for left in (1, 1.0, 1):
        plan.bind_(text=30, left=left)
    assert len(plan._kinds._kept) == 2
    with pytest.raises(BindError, match="`left` must be a whole number"):
        plan.bind_(text=30, left=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_differences_do_not_wrap_around(dtype: torch.dtype) -> None:
    plan, _ = documents()
    plan.bind_(text=CuSeqlens(lengths(0, 9, 5, 7, dtype=dtype)))
    assert plan._parts["length"][:3].tolist() == [9, -4, 2]


def test_a_kind_that_is_refused_changes_nothing() -> None:
    plan, _ = documents()
    plan.bind_(text=lengths(10, 20, 30))
    for text in (lengths(1, 2, 3, 4), lengths(1.0, 2.0, dtype=torch.float32), [1, 2, 3, 4]):
        for _ in range(2):
            with pytest.raises(BindError):
                plan.bind_(text=text)
    check(plan, [10, 20, 30])
    plan.bind_(text=lengths(3, 2, 1))
    check(plan, [3, 2, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_starts_that_are_no_integers_are_refused_as_lengths_are(dtype: torch.dtype) -> None:
    """They were when they were written, with the table of another kind on the device by then."""
    plan, _ = documents()
    plan.bind_(text=[4, 5])
    for _ in range(2):
        with pytest.raises(BindError, match="cu_seqlens must be integers, got torch"):
            plan.bind_(text=CuSeqlens(lengths(0, 1, dtype=dtype)))
    check(plan, [4, 5])
    assert len(plan._kinds._kept) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="interprets no kernel")
def test_a_cpu_that_runs_no_kernels_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = shipped("causal", 64).plan(64, device="cpu")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(BindError, match="by Triton's interpreter alone: make it on a GPU"):
        plan.bind_(text=32)
