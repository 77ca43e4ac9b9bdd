"""The cost model against what was measured, and what it chooses."""

from __future__ import annotations

import numpy as np
import pytest

from cmask import masks
from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.compiler.settle import settle_orders
from cmask.grammar.source import Source
from cmask.runtime import load
from cmask.runtime.closed_form import Region
from cmask.runtime.derive.bound import bind
from cmask.runtime.derive.cost import COSTS, BlockCosts, cheapest
from cmask.runtime.mask import Mask
from support.compiled import planned

# One H200, 2026-12-02, Triton 3.6.0, bfloat16, 16 heads, head_dim 128, 32,768 tokens, rested.  For
# blocks of 128 × 128 and of 64 × 64: (full, partial, items) of one head, and the time in units of
# the cost model, 1.446 µs of a multiprocessor.
MEASURED = {
    "documents": ((2979, 714, 256), 4097, (12617, 1454, 512), 4744),
    "hstu_jagged": ((2245, 947, 256), 3677, (9692, 1911, 512), 4009),
    "shared_prompt_packed": ((2458, 852, 256), 4062, (10600, 1744, 512), 4243),
    "sink_window": ((3479, 976, 256), 4768, (14895, 1952, 512), 5500),
    "natten_2d": ((0, 2116, 256), 2614, (0, 7176, 512), 2696),
    "block_diffusion": ((16256, 384, 256), 16739, (65280, 768, 512), 19891),
    "clear_r16": ((2032, 3366, 256), 5984, (8632, 11668, 512), 6811),
    "sliding_window": ((1764, 504, 256), 2612, (7560, 1008, 512), 2980),
    "causal 4k": ((496, 32, 32), 568, (2016, 64, 64), 672),
    "documents 4k": ((127, 78, 32), 261, (581, 158, 64), 270),
    "shared_prompt 4k": ((160, 32, 32), 234, (672, 64, 64), 267),
    "clear_r16 4k": ((240, 290, 32), 607, (1016, 1004, 64), 706),
}


def modelled(costs: BlockCosts, counts: tuple[int, int, int]) -> float:
    return float(np.dot((costs.full, costs.pattern, costs.item), counts))


@pytest.mark.parametrize("name", MEASURED)
def test_the_model_predicts_what_was_measured(name: str) -> None:
    usual, usual_time, small, small_time = MEASURED[name]
    predicted = modelled(COSTS[128, 128], usual)
    assert predicted == pytest.approx(usual_time, rel=0.085)
    ratio = modelled(COSTS[64, 64], small) / predicted
    assert ratio == pytest.approx(small_time / usual_time, rel=0.11)


def artifact_of(text: str, seq: int = 4096) -> Mask:
    return load(compile_source(Source("mask", text), CompileOptions(seq=seq)).artifact)


NATTEN = """mask natten {
    region image[height, width] order auto
    image sees image: window(height, 6, 6, edge=shift) & window(width, 6, 6, edge=shift)
    sizes { height = 64; width = seq / height }
}"""


def test_long_rows_take_the_usual_blocks() -> None:
    assert cheapest(planned("region t; t sees t: causal", t=4096).bound)[0] == (128, 128)


def test_many_short_documents_take_small_blocks() -> None:
    body = "group doc* { region t; t sees t: causal }"
    assert cheapest(planned(body, t=[60] * 60).bound)[0] == (64, 64)


def test_an_artifact_carries_the_shape_that_was_chosen() -> None:
    mask = artifact_of(NATTEN)
    plan = mask.bind()
    assert plan.forward_shape == (64, 64)
    assert {(s.block_m, s.block_n) for s in mask.body.descriptors} == {(64, 64)}
    hopper = [c for c in mask.body.configs if c.kernel == "gluon" and c.head_dim <= 128]
    forward = [c for c in hopper if c.direction == "forward"]
    assert {(c.block_m, c.block_n) for c in forward} == {(64, 64)}
    assert all(c.measured is None for c in forward)


def test_automatic_order_is_settled_by_the_compiler() -> None:
    (region,) = artifact_of(NATTEN).form.layout
    assert isinstance(region, Region)
    assert region.order.kind == "tile"
    assert region.order.sizes != ()


def test_automatic_order_is_never_dearer_than_a_written_one() -> None:
    def cost(order: str) -> float:
        return cheapest(artifact_of(NATTEN.replace("auto", order)).bind().bound)[1]

    assert cost("auto") <= min(cost("tile(8, 16)"), cost("tile(16, 8)"), cost("tile(8, 8)"))


def test_a_mask_without_sizes_keeps_its_automatic_order() -> None:
    text = "mask m { region image[height, width] order auto; image sees image: disc(3) }"
    mask = load(compile_source(Source("mask", text), CompileOptions()).artifact)
    (region,) = mask.form.layout
    assert isinstance(region, Region)
    assert region.order.kind == "auto"
    assert mask.bind(height=20, width=40).is_permuted


@pytest.mark.parametrize("name", ["natten_2d", "natten_3d", "clear_r8", "clear_r16", "clear_r32"])
def test_a_shipped_grid_has_the_order_that_auto_would_choose(name: str) -> None:
    """Or one as cheap; written out, for the compiler's time and for readers."""
    text = masks.path(name).read_text(encoding="utf-8")
    written = load(compile_source(Source(name, text), CompileOptions(seq=32768)).artifact)
    before, _, behind = text.partition(" order tile(")
    auto = before + " order auto" + behind.partition(")")[2]
    form = compile_source(Source(name, auto), CompileOptions(symbolic=True)).closed_form
    settled = settle_orders(form, written.sizes)
    assert settled != form
    costs = [cheapest(bound)[1] for bound in (bind(settled, written.sizes), written.bind().bound)]
    assert costs[1] <= 1.005 * costs[0]
