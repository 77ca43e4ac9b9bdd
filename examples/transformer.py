"""A small transformer whose attention can be exchanged: what the examples train.

Attend    how blocks attend: `by_plan` is cmask, `by_matrix` is PyTorch with a dense boolean mask
Trunk     its blocks
head      what reads the result; waves: sinusoids of positions
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cmask.runtime import Plan, attention

LAYERS, HEADS, HEAD_DIM = 2, 2, 64
WIDTH = HEADS * HEAD_DIM


def _as_it_is(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True, eq=False)
class Attend:
    """How blocks attend.

    attend        (q, k, v) -> out, each [batch, HEADS, tokens, HEAD_DIM]
    enter, leave  [batch, tokens, WIDTH] in the caller's token order -> in that of `attend`, and
                  back: a mask with an `order` permutes once per model instead of in each layer
    """

    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    enter: Callable[[Tensor], Tensor] = _as_it_is
    leave: Callable[[Tensor], Tensor] = _as_it_is


def by_plan(plan: Plan, kernel: str | None) -> Attend:
    """Attention by cmask; kernel: as in `attention`."""
    attend = partial(attention, plan=plan, kernel=kernel, permuted=True)
    return Attend(attend, plan.permute, plan.unpermute)


def by_matrix(plan: Plan) -> Attend:
    """Attention by PyTorch, every pair of the plan in a matrix; no query may see nothing."""
    pairs = plan.bound.visible(np.arange(plan.q_len), np.arange(plan.kv_len))
    visible = torch.from_numpy(pairs).to(plan.device)
    return Attend(partial(F.scaled_dot_product_attention, attn_mask=visible))


class Trunk(nn.Module):
    """Pre-norm transformer blocks: [batch, tokens, WIDTH] -> the same, normalised."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.checkpointed = checkpointed

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        """Both in the caller's token order; positions are to be in x already."""
        x = attend.enter(x)
        for block in self.blocks:
            if self.checkpointed:  # the backward computes the block again, attention included
                x = checkpoint(block, x, attend, use_reentrant=False)
            else:
                x = block(x, attend)
        normed: Tensor = self.norm(attend.leave(x))
        return normed


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        x = x + self.out(attend.attend(q, k, v).transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.norms[1](x))
        return out


def head(width: int) -> nn.Linear:
    """WIDTH -> width, with small weights: losses start near those of a guess."""
    linear = nn.Linear(WIDTH, width)
    nn.init.normal_(linear.weight, std=0.02)
    return linear


def waves(x: Tensor, width: int = WIDTH) -> Tensor:
    """Sinusoids of positions or times, [...] -> float32[..., width]; lengths from 2π to 2,000π."""
    rates = 1000.0 ** -torch.linspace(0, 1, width // 2, device=x.device)
    angles = x[..., None] * rates
    return torch.cat((angles.sin(), angles.cos()), -1)
