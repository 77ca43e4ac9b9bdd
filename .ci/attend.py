"""Serving's half of the demo: load an artifact, attend, compare with float64."""

from __future__ import annotations

import sys

import numpy as np
import torch

from cmask.runtime import attention, load

HEADS, HEAD_DIM = 2, 64


def main(path: str) -> None:
    """Print how far attention through the artifact at `path` is from float64."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    mask = load(path)
    plan = mask.bind(device=device)
    torch.manual_seed(0)
    q = torch.randn(1, HEADS, plan.q_len, HEAD_DIM, device=device, dtype=dtype)
    k, v = torch.randn(2, 1, HEADS, plan.kv_len, HEAD_DIM, device=device, dtype=dtype).unbind(0)
    out = attention(q, k, v, plan)

    # small enough here to be laid out pair by pair; the runtime itself never does that
    visible = plan.bound.visible(np.arange(plan.q_len), np.arange(plan.kv_len))
    exact = _attend_in_float64(q, k, v, torch.from_numpy(visible).to(device))
    error = (out.double() - exact).abs().max().item()
    people = {"lark", "typer", "pydantic", "cmask.compiler", "cmask.grammar"} & set(sys.modules)
    _print(f"{mask.name}: {plan.q_len:,} queries × {plan.kv_len:,} keys on {device}, {dtype}")
    _print(f"largest error against float64: {error:.1e}")
    _print(f"compiler modules loaded in this process: {len(people)}")


def _attend_in_float64(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor
) -> torch.Tensor:
    scores = q.double() @ k.double().transpose(-1, -2) / HEAD_DIM**0.5
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return weights @ v.double()


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
