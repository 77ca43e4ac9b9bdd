"""The example with transformers: what is learned and said is that of eager attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="an extra: pip install cmask[transformers]")

BFLOAT16_EPS = 2.0**-8


@pytest.fixture
def main(example: Callable[[str], Any]) -> Any:
    """The example's `main`."""
    return example("transformers_llama").main


def check_said(words: torch.Tensor) -> None:
    """Two words in turn, each line its own."""
    assert torch.equal(words[:, 2:], words[:, :-2])
    assert (words[:, 0] != words[:, 1]).all()


def test_the_example_learns_and_says_what_eager_attention_does(main: Any) -> None:
    runs = main(["--device", "cpu"])
    found, expected = runs["cmask:causal"], runs["eager"]
    assert found.losses[-1] < 0.1 * found.losses[0]
    # rounding grows with every step; the first losses are apart by rounding alone
    assert found.losses[:5] == pytest.approx(expected.losses[:5], rel=1e-5)
    assert found.losses == pytest.approx(expected.losses, rel=1e-2)
    check_said(found.words)
    assert torch.equal(found.words, expected.words)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_example_learns_in_bfloat16(device: str, main: Any) -> None:
    """Each is learned from its own rounding: what both say is right all the same."""
    runs = main(["--device", device, "--dtype", "bfloat16"])
    found, expected = runs["cmask:causal"], runs["eager"]
    assert found.losses[0] == pytest.approx(expected.losses[0], rel=4 * BFLOAT16_EPS)
    for run in (found, expected):
        assert run.losses[-1] < 0.1 * run.losses[0]
        check_said(run.words)
