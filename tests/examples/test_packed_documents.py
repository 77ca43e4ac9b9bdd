"""Documents in one sequence are learned as each alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.attending import DEVICE

Example = Callable[[str], Any]
BFLOAT16_EPS = 2.0**-8


def test_documents_are_learned_as_each_alone(example: Example) -> None:
    curves = example("packed_documents").main(["--device", "cpu", "--steps", "25"])
    assert curves.packed == pytest.approx(curves.alone, rel=1e-4)
    assert sum(curves.packed[-5:]) < 0.6 * sum(curves.packed[:5])


@pytest.mark.parametrize("options", [[], ["--compile", "aot_eager"]], ids=str)
def test_lengths_bound_in_place_change_no_loss(options: list[str], example: Example) -> None:
    """Compiled, it is so once for all steps; empty documents and one of one word among them."""
    torch._dynamo.reset()
    sizes = ["--steps", "3", "--tokens", "48", "--documents", "3"]
    with torch._dynamo.config.patch(error_on_recompile=True):
        curves = example("packed_documents").main(
            ["--device", DEVICE, "--bind", "device", *sizes, *options]
        )
    assert curves.packed == pytest.approx(curves.alone, rel=1e-5 if DEVICE == "cpu" else 1e-3)


def test_batches_hold_empty_documents_and_single_words(example: Example) -> None:
    batches = [example("packed_documents").batch_of(48, 3, step, "cpu") for step in range(3)]
    lengths = torch.stack([batch.lengths for batch in batches])
    assert {0, 1} <= set(lengths.flatten().tolist())
    assert (lengths.sum(1) <= 48).all()
    assert (lengths.sum(1) < 48).any()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # torch's advice
@pytest.mark.parametrize("options", [[], ["--compile"]], ids=str)
def test_a_gpu_learns_as_from_each_alone(options: list[str], example: Example) -> None:
    """Few steps: neither may differ by more than rounding."""
    torch._dynamo.reset()
    call = ["--device", "cuda", "--dtype", "bfloat16", "--steps", "6", "--tokens", "8192"]
    with torch._dynamo.config.patch(error_on_recompile=True):
        curves = example("packed_documents").main([*call, *options])
    assert curves.packed == pytest.approx(curves.alone, rel=2 * BFLOAT16_EPS)
