"""Copies of a plan, as copies of a model that holds one make them, have nothing to do with it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from cmask.runtime import attention
from cmask.runtime.on_device.lengths import CuSeqlens
from support.attending import CAUSAL, DEVICE, plan_of, shipped
from support.device_masks import check_lists, check_rows

ways = pytest.mark.parametrize(
    "copied", [deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
Copied = Callable[[Any], Any]


class Locked:
    """Cannot be copied, as little as a kernel that is ready to be launched."""

    def __getstate__(self) -> dict[str, object]:
        raise TypeError("cannot be copied")


def lengths(*numbers: int) -> Tensor:
    return torch.tensor(numbers, device=DEVICE)


@ways
def test_launches_of_a_copy_do_not_go_to_the_lists_of_the_first(copied: Copied) -> None:
    """Addresses that were asked for once were copied, too."""
    plan = plan_of(CAUSAL, text=100)
    q, k, v = torch.randn(3, 1, 1, 100, 16, device=DEVICE)
    out = attention(q, k, v, plan, kernel="reference")
    (prepared,) = plan.prepared.values()
    before = [launch.addresses for launch in prepared.launches]
    other = copied(plan)
    (theirs,) = other.prepared.values()
    for launch, addresses in zip(theirs.launches, before, strict=True):
        lists = (
            *(launch.patterns, launch.items, launch.offsets),
            *(launch.counts, launch.entries, launch.bounds),
        )
        assert launch.addresses == tuple(x.data_ptr() for x in lists) != addresses
    assert [launch.addresses for launch in prepared.launches] == before
    assert torch.equal(attention(q, k, v, other, kernel="reference"), out)


@ways
@pytest.mark.parametrize("on_device", [False, True])
def test_a_plan_that_knows_a_short_way_is_copied_without_it(
    on_device: bool, copied: Copied
) -> None:
    mask = shipped("causal", 64)
    plan: Any = mask.plan(64, device=DEVICE) if on_device else mask.bind(device=DEVICE)
    plan.ready["some kind"] = Locked()
    assert copied(plan).ready == {}
    assert len(plan.ready) == 1


@ways
def test_a_copy_is_bound_in_its_own_table(copied: Copied) -> None:
    """Pickled views are tensors of their own: what was copied into the table did not reach them."""
    mask = shipped("causal_documents", 64)
    plan = mask.plan(64, instances={"document": 4}, device=DEVICE)
    plan.bind_(text=lengths(1, 2, 3))
    plan.device_descriptor(16, 16)
    other, now = copied(plan), [1, 2, 3]
    check_rows(other, mask.bind(text=now).bound)
    starts = CuSeqlens(lengths(0, 4, 4, 24))
    for given, text in ((lengths(9, 8, 7), [9, 8, 7]), ([30], [30]), (starts, [4, 0, 20])):
        other.bind_(text=given).check()
        for each, bound in ((other, text), (plan, now)):
            check_rows(each, mask.bind(text=bound).bound)
            check_lists(each, mask.bind(text=bound).bound, 16, 16)
        plan.bind_(text=given).check()
        now = text
