"""The examples learn, and cmask's attention learns what PyTorch's dense attention learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

SMALL = {
    "shared_prompt_reward": ["--tokens", "256"],
    "hstu_ranking": ["--tokens", "256"],
    "clear_diffusion": ["--sizes", "12x12,8x20"],
}
LARGE = {
    "shared_prompt_reward": ["--tokens", "4096"],
    "hstu_ranking": ["--tokens", "4096"],
    "clear_diffusion": ["--sizes", "64x64"],
}
FALLS_TO = {  # of the first losses, where the last ones must lie: each batch is drawn anew
    "shared_prompt_reward": 0.8,
    "hstu_ranking": 0.7,
    "clear_diffusion": 0.8,
}
STEPS = 40
# 60 steps on a CPU saw at most 1.7e-5 (rewards); rounding grows with every step
FLOAT32_GAP = 2e-4
BFLOAT16_EPS = 2.0**-8

each = pytest.mark.parametrize("name", SMALL)


@pytest.fixture
def main(name: str, example: Callable[[str], Any]) -> Any:
    """An example's `main`."""
    torch._dynamo.reset()
    return example(name).main


def mean(losses: list[float]) -> float:
    return sum(losses) / len(losses)


def check_learned(curves: Any, name: str) -> None:
    """Both fall, and far below the start."""
    for losses in (curves.cmask, curves.dense):
        assert mean(losses[-8:]) < FALLS_TO[name] * mean(losses[:4])


@each
def test_an_example_learns_as_with_dense_attention(name: str, main: Any) -> None:
    curves = main(["--device", "cpu", "--steps", str(STEPS), *SMALL[name]])
    assert len(curves.cmask) == len(curves.dense) == STEPS
    check_learned(curves, name)
    assert curves.gap < FLOAT32_GAP


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *((name, ["--checkpoint"]) for name in SMALL),
        ("hstu_ranking", ["--compile", "aot_eager"]),
        pytest.param("clear_diffusion", ["--compile", "aot_eager"], marks=pytest.mark.slow),
        pytest.param("shared_prompt_reward", ["--compile", "aot_eager"], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_options_change_no_loss(name: str, option: list[str], main: Any) -> None:
    """Few steps: neither may differ by more than rounding."""
    call = ["--device", "cpu", "--steps", "3", *SMALL[name]]
    plain, other = main(call), main([*call, *option])
    assert other.cmask == pytest.approx(plain.cmask, rel=1e-5)
    assert other.gap < 1e-5


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # torch's advice
@pytest.mark.parametrize("options", [["--compile"], ["--compile", "--checkpoint"]], ids=str)
@each
def test_a_compiled_example_sees_the_losses_of_dense_attention(
    name: str, options: list[str], main: Any
) -> None:
    """Few steps: where lengths are drawn anew, each plan is compiled anew."""
    call = ["--device", "cuda", "--dtype", "bfloat16", "--steps", "4"]
    curves = main([*call, *LARGE[name], *options])
    assert curves.gap < 3 * curves.noise + BFLOAT16_EPS


@pytest.mark.gpu
@pytest.mark.parametrize("options", [[], ["--checkpoint"]], ids=str)
@each
def test_an_example_learns_in_bfloat16(name: str, options: list[str], main: Any) -> None:
    """The numeric rule of kernels, for curves.

    The rule lets cmask be off by twice what dense attention is off in the same dtype.  So the two
    may differ by three times `noise`, the gap between dense attention in bfloat16 and in float32;
    and by a rounding of the loss, lest chance make `noise` all too small.
    """
    call = ["--device", "cuda", "--dtype", "bfloat16", "--steps", str(STEPS)]
    curves = main([*call, *LARGE[name], *options])
    check_learned(curves, name)
    assert curves.gap < 3 * curves.noise + BFLOAT16_EPS


@pytest.mark.slow  # few CPUs are quick in bfloat16
@pytest.mark.parametrize("name", ["hstu_ranking"])
def test_the_rule_for_bfloat16_holds_on_a_cpu(name: str, main: Any) -> None:
    call = ["--device", "cpu", "--dtype", "bfloat16", "--steps", "20", *SMALL[name]]
    curves = main(call)
    assert 0 < curves.gap < 3 * curves.noise + BFLOAT16_EPS
