"""Every mask that ships, from its text to gradients: compiled, stored, loaded, bound, attended."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from cmask import masks
from support.attending import DEVICE, check, on_every_kernel, random_inputs, shipped, visible_pairs

SEQ = 2048 if DEVICE == "cuda" else 150


@on_every_kernel
@pytest.mark.parametrize("name", masks.names())
def test_a_shipped_mask_attends_as_it_means(name: str, kernel: str) -> None:
    plan = shipped(name, SEQ).bind(device=DEVICE)
    q, k, v = random_inputs(plan, heads=(2, 1), dims=(16, 32))
    check(q, k, v, plan, kernel)


@on_every_kernel
@pytest.mark.parametrize("name", ["causal", "shared_prompt", "sink_window", "hstu"])
def test_chunks_of_rows_attend_like_rows_of_the_whole(name: str, kernel: str) -> None:
    whole = shipped(name, SEQ).bind(device=DEVICE)
    visible = visible_pairs(whole)
    for start, stop in pairwise([0, 1, whole.q_len // 3, whole.q_len - 1, whole.q_len]):
        chunk = shipped(name, SEQ).bind(rows=(start, stop), device=DEVICE)
        assert torch.equal(visible_pairs(chunk), visible[start:stop])
        check(*random_inputs(chunk, dims=(16, 16)), chunk, kernel)


@on_every_kernel
def test_another_length_needs_no_new_artifact(kernel: str) -> None:
    for name in ("causal_documents", "clear_r8"):
        plan = shipped(name, SEQ).bind(seq=SEQ + 60, device=DEVICE)
        assert plan.q_len != shipped(name, SEQ).bind(device=DEVICE).q_len
        check(*random_inputs(plan, dims=(16, 16)), plan, kernel)
