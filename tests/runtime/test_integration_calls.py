"""Padding, caches and lengths of a model's call, against dense attention of each sequence alone."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.grammar.source import Source
from cmask.masks import path
from cmask.runtime import Mask, load
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.integrations.calls import CallMask, attend, call_mask
from cmask.runtime.integrations.padding import Extent, parts_of, token_runs
from cmask.runtime.integrations.plans import MAX_PLANS, Plans
from support.attending import DEVICE
from support.compiled import dense

WINDOW = 4
CPU = torch.device("cpu")
GROWING = {  # masks whose rows stay as they are when tokens are added, and their fixed sizes
    "causal": {},
    "sliding_window": {"left": WINDOW - 1},
    "chunked_causal": {"chunk": 3},
    "sink_window": {"sink": 2, "left": 2},
}


@cache
def mask_of(name: str, **options: int) -> Mask:
    """A shipped mask; without options, all of its sizes are left to be bound."""
    source = Source(name, path(name).read_text(encoding="utf-8"))
    compiled = CompileOptions(**options) if options else CompileOptions(symbolic=True)  # type: ignore[arg-type]
    return load(compile_source(source, compiled).artifact)


def plans_of(name: str) -> Plans:
    return Plans(mask_of(name), GROWING[name])


def alone(name: str, tokens: int, q: Tensor, k: Tensor, v: Tensor, rows: slice) -> Tensor:
    """Dense attention in float64 of rows of one sequence without padding: [heads, rows, dim]."""
    bound = mask_of(name).bind(seq=tokens, **GROWING[name]).bound
    visible = torch.from_numpy(dense(bound)[rows]).to(q.device)
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return torch.where(visible, scores, -torch.inf).softmax(-1) @ v


@st.composite
def calls(draw: st.DrawFn) -> tuple[Extent, list[tuple[int, int]]]:
    """The slots of a call, and a run of tokens for each of up to four sequences."""
    q_start, q_len, spare = (draw(st.integers(low, 9)) for low in (0, 1, 0))
    extent = Extent(q_start=q_start, q_len=q_len, kv_start=0, kv_len=q_start + q_len + spare)
    ends = st.lists(st.integers(0, extent.q_stop), min_size=2, max_size=2).map(sorted)
    common = [(0, extent.q_stop), (min(2, extent.q_stop), extent.q_stop)]
    run = st.one_of(st.sampled_from(common), ends.map(tuple))
    return extent, draw(st.lists(run, min_size=1, max_size=4))  # type: ignore[arg-type]


def drop(extent: Extent) -> Extent:
    """The same call by a cache that holds no more than the window needs."""
    dropped = max(extent.q_start - WINDOW + 1, 0)
    return Extent(
        q_start=extent.q_start,
        q_len=extent.q_len,
        kv_start=dropped,
        kv_len=extent.kv_len - dropped,
    )


@pytest.mark.parametrize(
    ("name", "dropping"), [*((name, False) for name in GROWING), ("sliding_window", True)]
)
@settings(deadline=None, max_examples=40)
@given(call=calls())
def test_each_sequence_attends_as_if_alone(
    name: str, dropping: bool, call: tuple[Extent, list[tuple[int, int]]]
) -> None:
    """Padding and slots that are not written yet hold NaN; padding's rows give 0."""
    extent, runs = call
    extent = drop(extent) if dropping else extent
    window = WINDOW if dropping else None
    batch, slots = len(runs), extent.kv_start + extent.kv_len
    generator = torch.Generator().manual_seed(slots)
    q, k, v = (
        torch.randn(batch, heads, slots, 8, generator=generator).to(DEVICE) for heads in (4, 2, 2)
    )
    is_token = torch.zeros(batch, slots, dtype=torch.bool, device=DEVICE)
    for i, (start, stop) in enumerate(runs):
        is_token[i, start:stop] = True
    for x in (q, k, v):
        x.masked_fill_(~is_token[:, None, :, None], torch.nan)
    mask = call_mask(plans_of(name), window, batch, extent, is_token)
    now = slice(extent.q_start, extent.q_stop)
    out = attend(mask, q[:, :, now], *(x[:, :, extent.kv_start :] for x in (k, v)), None)
    assert out.shape == (batch, extent.q_len, 4, 8)
    for i, (start, stop) in enumerate(runs):
        expected = torch.zeros_like(out[i], dtype=torch.float64)
        first = max(start, extent.q_start)
        if first < stop:
            repeated = (x[i, :, start:stop].repeat_interleave(2, 0) for x in (k, v))
            rows = slice(first - start, stop - start)
            found = alone(name, stop - start, q[i, :, first:stop], *repeated, rows)
            expected[first - extent.q_start : stop - extent.q_start] = found.transpose(0, 1)
        torch.testing.assert_close(out[i].double(), expected, rtol=1e-5, atol=1e-6)


def test_gradients_of_padding_are_zero_and_of_tokens_as_if_alone() -> None:
    extent = Extent(q_start=0, q_len=9, kv_start=0, kv_len=9)
    runs = [(0, 9), (3, 9), (0, 9), (0, 7)]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(4, 2, 9, 8, generator=generator).to(DEVICE).requires_grad_() for _ in range(3)
    )
    is_token = torch.tensor([[a <= i < b for i in range(9)] for a, b in runs], device=DEVICE)
    mask = call_mask(plans_of("causal"), None, 4, extent, is_token)
    assert [part.sequences for part in mask.parts] == [(0, 2), (1,), (3,)]
    weights = torch.randn(9, 2, 8, generator=generator).to(DEVICE)
    found = torch.autograd.grad((attend(mask, q, k, v, 0.3) * weights).sum(), (q, k, v))
    for i, (a, b) in enumerate(runs):
        parts = [x[i, :, a:b].detach().double().requires_grad_() for x in (q, k, v)]
        out = alone("causal", b - a, parts[0] * (0.3 * 8**0.5), *parts[1:], slice(None))
        grads = torch.autograd.grad((out.transpose(0, 1) * weights[a:b]).sum(), parts)
        for x, y in zip(found, grads, strict=True):
            torch.testing.assert_close(x[i, :, a:b].double(), y, rtol=1e-5, atol=1e-6)
            assert not x[i, :, :a].any()
            assert not x[i, :, b:].any()


def test_one_padding_is_one_call_without_copies() -> None:
    extent = Extent(q_start=3, q_len=2, kv_start=0, kv_len=8)
    (part,) = parts_of([(1, 5)] * 3, extent, None)
    assert (part.sequences, part.num_tokens) == ((0, 1, 2), 4)
    assert (part.rows, part.queries, part.keys) == ((2, 4), (0, 2), (1, 5))


def test_padding_of_a_mask_of_any_number_type_is_read() -> None:
    for dtype in (torch.bool, torch.int64, torch.float32):
        rows = torch.tensor([[0, 0, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]], dtype=dtype)
        assert token_runs(rows, batch=3, num_slots=4) == [(2, 4), (0, 4), (0, 0)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[1, 1, 0, 1]], "sequence 0 has 1 holes"),
        ([[1, 1, 1]], r"must be \[1, 4 or more\].* got \[1, 3\]"),
        ([[1] * 4] * 2, r"got \[2, 4\]"),
    ],
)
def test_other_padding_is_refused(rows: list[list[int]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        token_runs(torch.tensor(rows), batch=1, num_slots=4)


def test_keys_that_the_cache_dropped_are_missed_by_all_but_windows() -> None:
    extent = drop(Extent(q_start=6, q_len=1, kv_start=0, kv_len=7))
    with pytest.raises(ValueError, match="no sliding window: it needs them from slot 0 on"):
        call_mask(plans_of("causal"), None, 1, extent, None)


def growth(name: str, **sizes: int) -> CallMask:
    """A call of three tokens behind nine in the cache."""
    extent = Extent(q_start=9, q_len=3, kv_start=0, kv_len=12)
    return call_mask(Plans(mask_of(name), sizes), None, 1, extent, None)


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("full", {}, "token 0 sees other tokens among 12 than among 9"),
        ("prefix_lm", {}, "sizes that do not grow"),
        ("block_causal", {"block": 4}, "token 8 sees"),
    ],
)
def test_masks_that_change_what_is_cached_are_refused(
    name: str, sizes: dict[str, int], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        growth(name, **sizes)


@pytest.mark.parametrize(
    ("name", "sizes"), [("prefix_lm", {"prefix": 5}), ("block_causal", {"block": 3})]
)
def test_masks_that_grow_at_their_end_serve_a_cache(name: str, sizes: dict[str, int]) -> None:
    assert growth(name, **sizes).parts[0].rows == (9, 12)


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("causal", {}, "window is 4 tokens, but in mask `causal` token 4 sees 5 keys, 0 to 4"),
        ("sliding_window", {"left": 2}, "token 3 sees 3 keys, 1 to 3, not 4 keys, 0 to 3"),
        ("sliding_window", {"left": 4}, "token 4 sees 5 keys, 0 to 4, not 4 keys, 1 to 4"),
        ("sink_window", {"sink": 1, "left": 3}, "token 4 sees"),
        ("full", {}, "token 0 sees"),
    ],
)
def test_masks_that_are_not_the_models_window_are_refused(
    name: str, sizes: dict[str, int], words: str
) -> None:
    extent = Extent(q_start=0, q_len=2, kv_start=0, kv_len=2)  # too short to show it
    with pytest.raises(ValueError, match=words):
        call_mask(Plans(mask_of(name), sizes), WINDOW, 1, extent, None)


def test_plans_are_kept_by_length_and_the_oldest_go() -> None:
    plans = plans_of("causal")
    first = plans.plan(1, (0, 1), CPU, None)
    assert plans.plan(1, (0, 1), CPU, None) is first
    for tokens in range(2, MAX_PLANS + 1):
        plans.plan(tokens, (tokens - 1, tokens), CPU, None)
    assert plans.plan(1, (0, 1), CPU, None) is first  # used last now
    plans.plan(MAX_PLANS + 1, (0, 1), CPU, None)
    assert len(plans) == MAX_PLANS
    assert plans.plan(1, (0, 1), CPU, None) is first
    assert plans.plan(2, (1, 2), CPU, None).q_len == 1


def test_a_window_whose_cache_is_full_keeps_its_plan() -> None:
    plans = plans_of("sliding_window")
    for q_start in range(WINDOW, 30):
        extent = drop(Extent(q_start=q_start, q_len=1, kv_start=0, kv_len=q_start + 1))
        (part,) = call_mask(plans, WINDOW, 1, extent, None).parts
        plans.plan(part.num_tokens, part.rows, CPU, WINDOW)
    assert len(plans) == 1


def test_an_artifact_compiled_for_a_length_serves_others() -> None:
    plan = Plans(mask_of("causal", seq=64), {}).plan(7, (5, 7), CPU, None)
    assert (plan.q_len, plan.kv_len) == (2, 7)
    np.testing.assert_array_equal(dense(plan.bound), np.tri(2, 7, 5, dtype=bool))


@pytest.mark.parametrize(
    ("sizes", "tokens"), [({"text": 8}, 9), ({"text": 8}, 7)], ids=["more", "fewer"]
)
def test_a_mask_of_fixed_length_is_refused(sizes: dict[str, int], tokens: int) -> None:
    with pytest.raises(BindError, match=f"`causal` at {tokens} tokens: .* must follow `seq`"):
        Plans(mask_of("causal"), sizes).plan(tokens, (0, tokens), CPU, None)


def test_a_mask_without_default_sizes_is_refused() -> None:
    source = Source("bare", "mask bare { region text; text sees text: causal }")
    mask = load(compile_source(source, CompileOptions(symbolic=True)).artifact)
    with pytest.raises(BindError, match=r"needs `text`.*`sizes \{ text = seq \}`"):
        Plans(mask, {}).plan(5, (0, 5), CPU, None)
