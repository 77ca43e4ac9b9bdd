"""Few queries over a long cache: the same rows of the whole mask, whichever way keys are cut."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.runtime import attention, decode, load
from cmask.runtime.kernels.decode_config import DecodeConfig
from cmask.runtime.mask import Plan
from support.attending import DEVICE, KERNELS, plan_of
from support.compiled import source_of
from support.decoding import (
    CAUSAL,
    CHUNKS,
    MASKS,
    SINK,
    WINDOW,
    Sequences,
    check_decoded,
    contiguous,
    sequences,
)

CAPACITIES = (1, 15, 16, 17, 200, 1000)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
on_every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def rows_plan(body: str, length: int, rows: int) -> Plan:
    """The last rows of a mask."""
    mask = load(compile_source(source_of(body), CompileOptions(sizes={"text": length})).artifact)
    return mask.bind(rows=(length - rows, length), device=DEVICE)


def decoded(
    batch: Sequences, plan: Plan, capacity: int, kernel: str, num_splits: int | None = None
) -> tuple[Tensor, Tensor]:
    k, v = contiguous(batch, capacity)
    return decode(batch.q, k, v, plan, return_lse=True, kernel=kernel, num_splits=num_splits)


def drawn_cases() -> list[tuple[str, int, int, int, int, torch.dtype]]:
    """Each mask with each cache; rows, groups, shares and dtypes in turn."""
    pairs = itertools.product(("causal", "window", "sink", "chunks"), CAPACITIES)
    rows, groups = itertools.cycle((1, 2, 5, 64, 3)), itertools.cycle((1, 4, 8, 2, 8, 1, 4))
    splits, dtypes = itertools.cycle((1, 3, 8, 2)), itertools.cycle(DTYPES)
    return [
        (mask, length, min(next(rows), length), next(groups), next(splits), next(dtypes))
        for mask, length in pairs
    ]


@on_every_kernel
@pytest.mark.parametrize(("mask", "length", "rows", "group", "splits", "dtype"), drawn_cases())
def test_last_rows_are_those_of_the_whole_mask(
    kernel: str, mask: str, length: int, rows: int, group: int, splits: int, dtype: torch.dtype
) -> None:
    batch = sequences(MASKS[mask], [length], rows=rows, heads=(group, 1), dtype=dtype)
    plan = rows_plan(MASKS[mask], length, rows)
    check_decoded(batch, decoded(batch, plan, length, kernel, splits))


@pytest.mark.parametrize("mask", ["causal", "window"])
@pytest.mark.parametrize("splits", range(1, 9))
def test_any_number_of_shares_is_right_and_repeats(mask: str, splits: int) -> None:
    batch = sequences(MASKS[mask], [400], rows=2, heads=(8, 1))
    plan = rows_plan(MASKS[mask], 400, 2)
    first = decoded(batch, plan, 400, "triton", splits)
    check_decoded(batch, first)
    again = decoded(batch, plan, 400, "triton", splits)
    assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("dims", [(16, 16), (40, 72), (192, 128), (256, 256), (5, 3)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_heads_of_any_width(dims: tuple[int, int], dtype: torch.dtype) -> None:
    batch = sequences(WINDOW, [90], rows=3, dims=dims, dtype=dtype)
    check_decoded(batch, decoded(batch, rows_plan(WINDOW, 90, 3), 90, "triton", 2))


def test_rows_in_the_middle_of_a_mask() -> None:
    mask = load(compile_source(source_of(CAUSAL), CompileOptions(sizes={"text": 200})).artifact)
    plan = mask.bind(rows=(100, 104), device=DEVICE)
    batch = sequences(CAUSAL, [104], rows=4)
    k, v = contiguous(batch, 200)  # NaN from 104 on
    check_decoded(batch, attention(batch.q, k, v, plan, return_lse=True, kernel="decode"))


def test_rows_that_see_nothing_and_keys_between_rows() -> None:
    """Two rows of other documents, one that sees nothing between them, and NaN between all."""
    body = "table func[row]; query region q; key region k; q sees k: rows(func)"
    spans = [[(0, 70), (200, 210)], [], [(300, 301)], [(130, 140), (150, 290)]]
    table = [[0] * 4]
    for i in range(2):
        for end in range(2):
            table.append([row[i][end] if i < len(row) else 0 for row in spans])
    plan = plan_of(body, q=4, k=320, func=table)
    visible = torch.from_numpy(
        plan.bound.visible(torch.arange(4).numpy(), torch.arange(320).numpy())
    )
    for splits in (1, 2, 7):
        drawn = sequences(CAUSAL, [320], rows=4, heads=(8, 2))
        batch = Sequences(drawn.q, drawn.keys, drawn.values, [visible.to(DEVICE)])
        check_decoded(batch, decoded(batch, plan, 320, "triton", splits))


def test_rows_of_four_intervals() -> None:
    far, near = "window(150, -100)", "window(60, -50)"
    body = f"region text; text sees text: (first(9) | {far} | {near} | self) & causal"
    batch = sequences(body, [300, 300], rows=5)
    plan = rows_plan(body, 300, 5)
    check_decoded(batch, decoded(batch, plan, 300, "triton", 3))
    (made,) = plan.decoding.values()
    assert len(made.bounds) == 8


@pytest.mark.parametrize(
    "layout", ["heads inside", "one batch", "unaligned", "columns outside", "query rows inside"]
)
def test_tensors_lie_in_any_order(layout: str) -> None:
    lens = [100] if layout == "one batch" else [100, 100]
    batch = sequences(SINK, lens, rows=2)
    k, v = contiguous(batch, 100)
    q, expected = batch.q, batch
    if layout == "heads inside":
        k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    elif layout == "one batch":
        q = torch.cat([q, -q])
        twice = [x * 2 for x in (batch.keys, batch.values, batch.visible)]
        expected = Sequences(q, *twice)
    elif layout == "unaligned":
        k = torch.cat([k, k[..., :1]], -1)[..., :-1]
        v = torch.cat([v[..., :1], v], -1)[..., 1:]
    elif layout == "columns outside":
        k, v = (x.transpose(2, 3).contiguous().transpose(2, 3) for x in (k, v))
    else:
        q = q.transpose(1, 2).contiguous().transpose(1, 2)
    plan = rows_plan(SINK, 100, 2)
    found = decode(q, k, v, plan, return_lse=True, kernel="triton", num_splits=2)
    assert found[0].stride() == q.stride()
    check_decoded(expected, found)


def test_a_scale_and_a_block_shape_of_the_callers() -> None:
    batch = sequences(CHUNKS, [70], rows=5)
    k, v = contiguous(batch, 70)
    config = DecodeConfig(block_m=16, block_n=16, num_warps=4, num_stages=1)
    found = decode(
        batch.q, k, v, rows_plan(CHUNKS, 70, 5), softmax_scale=0.7, return_lse=True,
        kernel="triton", config=config,
    )  # fmt: skip
    check_decoded(batch, found, scale=0.7)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_m": -16}, "sides of 16, 32, 64, 128, got -16 × 16"),
        ({"block_n": 48}, "got 16 × 48"),
        ({"num_warps": 3}, "warps, got 3"),
        ({"num_stages": 0}, "1 to 8 stages, got 0"),
    ],
)
def test_a_block_shape_that_no_kernel_has_is_refused(change: dict[str, int], words: str) -> None:
    """Of a negative one no program ran: the output was what lay in memory."""
    batch = sequences(CHUNKS, [70], rows=5)
    k, v = contiguous(batch, 70)
    config = replace(DecodeConfig(block_m=16, block_n=16, num_warps=4, num_stages=1), **change)
    with pytest.raises(ValueError, match=words):
        decode(batch.q, k, v, rows_plan(CHUNKS, 70, 5), kernel="triton", config=config)


def test_large_scores_do_not_overflow() -> None:
    drawn = sequences(CAUSAL, [150], rows=2, dtype=torch.float32)
    batch = Sequences(drawn.q * 300, drawn.keys, drawn.values, drawn.visible)
    check_decoded(batch, decoded(batch, rows_plan(CAUSAL, 150, 2), 150, "triton", 4))


@pytest.mark.parametrize("shape", ["no batch", "no rows", "no keys"])
def test_nothing_to_decode(shape: str) -> None:
    rows, keys = (0 if shape == "no rows" else 2), (0 if shape == "no keys" else 9)
    q = torch.randn(0 if shape == "no batch" else 1, 2, rows, 16, device=DEVICE)
    k = torch.randn(len(q), 2, keys, 16, device=DEVICE)
    plan = plan_of("query region q; key region k; q sees k: all", q=rows, k=keys)
    out, lse = decode(q, k, k, plan, return_lse=True, kernel="triton")
    assert out.shape == q.shape
    assert (out == 0).all()
    assert (lse == -torch.inf).all()
