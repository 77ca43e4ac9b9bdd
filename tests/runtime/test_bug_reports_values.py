"""Bug reports about wrong numbers at edges and in masks: each must not happen here.

The number at the end of a name is the report's; `tests/test_bug_reports_masks.py` lists what does
not apply.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from cmask.runtime import attention
from cmask.runtime.derive.bound import bind
from cmask.runtime.mask import Plan
from support.attending import (
    CAUSAL,
    DEVICE,
    FULL,
    ROWS,
    check,
    exact_output,
    on_every_kernel,
    plan_of,
    random_inputs,
    results,
    same,
)
from support.compiled import dense, interval_table
from support.descriptor_edits import without_full_blocks


@on_every_kernel
def test_a_row_without_keys_gives_zero_and_minus_infinity__CM_001(kernel: str) -> None:
    body = "region text; query region pad; key region unused; text sees text: causal"
    plan = plan_of(body, text=5, pad=1, unused=5)
    found = check(*random_inputs(plan, dims=(8, 8)), plan, kernel)
    assert (found.out[:, :, 5] == 0).all()
    assert (found.lse[:, :, 5] == -torch.inf).all()
    assert (found.dq[:, :, 5] == 0).all()
    assert (found.dk[:, :, 5:] == 0).all()
    assert (found.dv[:, :, 5:] == 0).all()


@on_every_kernel
def test_the_lse_of_a_row_without_keys_weighs_nothing_in_a_merge__CM_002(kernel: str) -> None:
    body = "group item* { query region q; key region seen; key region rest; q sees seen: all }"
    plan = plan_of(body, q=1, seen=[0, 1024], rest=[1024, 0])
    q, k, v = random_inputs(plan, heads=(4, 4), dtype=torch.bfloat16)
    out, lse = attention(q * 0, k, v, plan, return_lse=True, kernel=kernel)
    assert (lse[:, :, 0] == -torch.inf).all()
    assert (out[:, :, 0] == 0).all()
    torch.testing.assert_close(lse[:, :, 1], torch.full_like(lse[:, :, 1], math.log(1024)))


@on_every_kernel
def test_starting_on_a_hidden_tile_is_harmless__CM_003(kernel: str) -> None:
    plan = plan_of("region hidden; region text; all sees text: all", hidden=128, text=313)
    check(*random_inputs(plan), plan, kernel)


@on_every_kernel
def test_scores_far_below_any_sentinel_are_scores__CM_007(kernel: str) -> None:
    body = "table end[row]; query region q; key region k; q sees k: until(end[row])"
    plan = plan_of(body, q=3, k=8, end=[1, 2, 0])
    _, _, v = random_inputs(plan, heads=(1, 1), dtype=torch.bfloat16)
    q = torch.full((1, 1, 3, 64), 40.0, dtype=torch.bfloat16, device=DEVICE)
    k = torch.full((1, 1, 8, 64), -40.0, dtype=torch.bfloat16, device=DEVICE)
    out, lse = attention(q, k, v, plan, softmax_scale=1 / 8, return_lse=True, kernel=kernel)
    expected = torch.tensor([-12_800.0, -12_800.0 + math.log(2), -math.inf], device=DEVICE)
    torch.testing.assert_close(lse[0, 0], expected)
    torch.testing.assert_close(out[0, 0, 0], v[0, 0, 0])
    torch.testing.assert_close(out[0, 0, 1], v[0, 0, :2].float().mean(0).bfloat16())
    assert (out[0, 0, 2] == 0).all()


@on_every_kernel
def test_the_lse_is_a_natural_logarithm__CM_010(kernel: str) -> None:
    plan = plan_of(FULL, text=128)
    q, k, v = random_inputs(plan, heads=(1, 1), dtype=torch.bfloat16)
    _, lse = attention(q * 0, k, v, plan, return_lse=True, kernel=kernel)
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(128)))


@on_every_kernel
@pytest.mark.parametrize("size", [1, 31, 63, 64, 65, 127, 129, 192, 193])
def test_lengths_need_not_be_multiples_of_a_block__CM_015(kernel: str, size: int) -> None:
    plan = plan_of(FULL, text=size)
    check(*random_inputs(plan, dims=(16, 16), dtype=torch.bfloat16), plan, kernel)


@on_every_kernel
@pytest.mark.parametrize("size", [64, 512])
def test_chunks_with_a_limited_look_back_are_right__CM_016(kernel: str, size: int) -> None:
    plan = plan_of("region text; text sees text: window(pos / 32, 10, 0)", text=size)
    check(*random_inputs(plan, heads=(1, 1)), plan, kernel)


def _forward_error(size: int, kernel: str, body: str) -> float:
    plan = plan_of(body, text=size)
    q, k, v = random_inputs(plan, dtype=torch.float16)
    error = attention(q, k, v, plan, kernel=kernel).double() - exact_output(q, k, v, plan)
    return error.abs().max().item()


@on_every_kernel
@pytest.mark.parametrize("body", [FULL, CAUSAL])
@pytest.mark.parametrize("size", [256, pytest.param(4096, marks=pytest.mark.gpu)])
def test_one_token_less_does_not_change_the_error__CM_017(
    kernel: str, body: str, size: int
) -> None:
    errors = [_forward_error(n, kernel, body) for n in (size - 1, size, size + 1)]
    assert max(errors) <= 2 * min(errors)


@on_every_kernel
def test_marking_full_tiles_changes_no_bit__CM_019(kernel: str) -> None:
    """On a GPU the masked loop is another program, rounded differently: the budget holds then.

    A mask has one descriptor, in which every full block is marked, so no user meets both.
    """
    plan = plan_of(CAUSAL, text=256)
    marked = {}
    unmarked = {}
    for m in (16, 32, 64, 128):
        for n in (16, 32, 64, 128):
            marked[m, n] = plan.bound.descriptor(m, n, "bounds")
            unmarked[m, n] = without_full_blocks(marked[m, n])
    q, k, v = random_inputs(plan, heads=(1, 1), dtype=torch.bfloat16)
    one, _ = results(q, k, v, Plan(plan.bound, DEVICE, marked), kernel)
    other, _ = results(q, k, v, Plan(plan.bound, DEVICE, unmarked), kernel)
    if DEVICE == "cpu" or kernel == "reference":
        assert same(one, other)
    for descriptors in (marked, unmarked):
        check(q, k, v, Plan(plan.bound, DEVICE, descriptors), kernel)


@on_every_kernel
def test_a_large_cache_costs_only_what_is_seen__CM_021(kernel: str) -> None:
    plan = plan_of("query region q align start; key region k; q sees k: causal", q=16, k=262_144)
    q, _, _ = random_inputs(plan_of(CAUSAL, text=16), heads=(2, 2), dtype=torch.bfloat16)
    k = torch.zeros(1, 2, 262_144, 64, dtype=torch.bfloat16, device=DEVICE)
    out = attention(q, k, k, plan, kernel=kernel)
    assert (out == 0).all()


@on_every_kernel
@pytest.mark.parametrize("which", ["q", "k", "v", "kv", "heads"])
def test_a_broadcast_tensor_equals_its_copy__CM_025(kernel: str, which: str) -> None:
    plan = plan_of(FULL, text=8)
    q, k, v = random_inputs(plan, batch=2, dims=(16, 16))
    if which == "heads":
        q = q[:, :1].expand(-1, 2, -1, -1)
        k, v = (x[:, :1].expand(-1, 2, -1, -1) for x in (k, v))
    q = q[:1].expand(2, -1, -1, -1) if which == "q" else q
    k = k[:1].expand(2, -1, -1, -1) if "k" in which else k
    v = v[:1].expand(2, -1, -1, -1) if "v" in which else v
    broadcast, _ = results(q, k, v, plan, kernel)
    copied, _ = results(q.contiguous(), k.contiguous(), v.contiguous(), plan, kernel)
    assert same(broadcast, copied)


def test_a_batch_that_does_not_fit_is_refused_before_any_launch__CM_025() -> None:
    plan = plan_of(FULL, text=8)
    q, k, v = random_inputs(plan, batch=4)
    with pytest.raises(ValueError, match="k must have batch 4"):
        attention(q, k[:2], v[:2], plan)


@on_every_kernel
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_hidden_slots_may_hold_anything__CM_026(kernel: str, poison: float) -> None:
    body = "query region q at 300; key region cache; q sees cache: window(127, 0)"
    for plan in (
        plan_of(body, q=1, cache=512),
        plan_of("region hidden; region text; region rest; text sees text: causal",
                hidden=40, text=70, rest=30),
    ):  # fmt: skip
        q, k, v = random_inputs(plan, heads=(2, 1), dtype=torch.bfloat16)
        hidden = torch.from_numpy(~dense(plan.bound).any(0)).to(DEVICE)
        clean, _ = results(q, *(_filled(x, hidden, 0.0) for x in (k, v)), plan, kernel)
        poisoned, _ = results(q, *(_filled(x, hidden, poison) for x in (k, v)), plan, kernel)
        assert same(clean, poisoned)
        assert (poisoned.dk[:, :, hidden] == 0).all()
        assert (poisoned.dv[:, :, hidden] == 0).all()


def _filled(x: Tensor, where: Tensor, value: float) -> Tensor:
    return torch.where(where[:, None], torch.full_like(x, value), x)


@on_every_kernel
@pytest.mark.parametrize("heads", [(4, 2), (3, 1), pytest.param((16, 1), marks=pytest.mark.gpu)])
@pytest.mark.parametrize("documents", [[140], [50, 50, 28]])
def test_all_heads_of_a_group_obey_the_same_limit__CM_027(
    kernel: str, heads: tuple[int, int], documents: list[int]
) -> None:
    body = "group document* { region text; text sees text: causal }"
    plan = plan_of(body, text=documents)
    check(*random_inputs(plan, heads=heads, dtype=torch.bfloat16), plan, kernel)


@on_every_kernel
def test_siblings_of_a_draft_tree_do_not_leak__CM_029(kernel: str) -> None:
    nodes = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4]]
    rows = [[(0, 100)] + [(100 + i, 101 + i) for i in row] for row in nodes]
    plan = plan_of(ROWS, q=5, k=105, func=interval_table(rows))
    check(*random_inputs(plan, heads=(8, 2), dtype=torch.bfloat16), plan, kernel)


@on_every_kernel
def test_a_draft_tree_is_written_by_its_parents__CM_029(kernel: str) -> None:
    body = "table parent[row]; key region past; region node; node sees past: all;"
    body += "node sees node: tree(parent[row])"
    plan = plan_of(body, past=100, node=5, parent=[-1, 0, 0, 1, 2])
    check(*random_inputs(plan, heads=(8, 2), dtype=torch.bfloat16), plan, kernel)


@on_every_kernel
def test_each_request_has_a_tree_of_its_own__CM_122(kernel: str) -> None:
    random = np.random.default_rng(0)
    body = "table parent[row]; group request* { key region past; region node;"
    body += "node sees past: window(128, 0); node sees node: tree(parent[row]) }"
    parents = [-1, *random.integers(0, np.arange(1, 16)).tolist()] * 2
    plan = plan_of(body, past=[300, 77], node=[16, 16], parent=parents)
    check(*random_inputs(plan, heads=(16, 2), dtype=torch.bfloat16), plan, kernel)


@on_every_kernel
def test_few_leaves_see_a_long_prefix_and_some_nodes__CM_030(kernel: str) -> None:
    rows = [[(0, 7)], [(0, 6), (7, 8)], [(0, 5), (7, 9)], [(0, 6), (9, 10)]]
    plan = plan_of(ROWS, q=4, k=10, func=interval_table(rows))
    check(*random_inputs(plan, heads=(4, 1), dtype=torch.float16), plan, kernel)


@on_every_kernel
@pytest.mark.parametrize("chunk", [16, 5, pytest.param(1, marks=pytest.mark.gpu)])
def test_chunked_prefill_equals_one_prefill__CM_033(kernel: str, chunk: int) -> None:
    plan = plan_of("region text; text sees text: window(7, 0)", text=32)
    q, k, v = random_inputs(plan, heads=(2, 1), dtype=torch.bfloat16)
    whole = attention(q, k, v, plan, kernel=kernel)
    parts = []
    for start in range(0, 32, chunk):
        rows = (start, min(start + chunk, 32))
        part = Plan(bind(plan.bound.form, plan.bound.names, rows), DEVICE)
        parts.append(attention(q[:, :, rows[0] : rows[1]], k, v, part, kernel=kernel))
    torch.testing.assert_close(torch.cat(parts, 2), whole)


@on_every_kernel
def test_scores_and_sums_are_kept_in_float32__CM_119(kernel: str) -> None:
    hidden = np.zeros(1000, bool)
    hidden[np.random.default_rng(0).choice(1000, 420, replace=False)] = True
    for seen in (~hidden, hidden):
        edges = np.flatnonzero(np.diff(np.r_[0, seen.astype(int), 0])).reshape(-1, 2)
        table = interval_table([[tuple(pair) for pair in edges.tolist()]])
        plan = plan_of(ROWS, q=1, k=1000, func=table)
        inputs = random_inputs(plan, heads=(1, 1), dtype=torch.bfloat16)
        q, k, v = inputs
        out = attention(q, k, v, plan, kernel=kernel).double()
        exact = exact_output(q, k, v, plan)
        rounding = (exact.bfloat16().double() - exact).abs().max()
        assert (out - exact).abs().max() <= 4 * rounding
        check(*inputs, plan, kernel)
