"""A case with its tensors on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from cmask.cli.bench.case import Case, MaskMod, Spelling, compiled, dense
from cmask.cli.bench.settings import BACKWARD_FLOPS, Direction, Settings
from cmask.runtime.derive.facts import Facts
from cmask.runtime.mask import Mask, Plan

_ROWS_AT_ONCE = 1024  # of a dense mask that the host works out
_ENDLESS = 16384  # keys: torch 2.11 and Triton 3.6 did not end compiling create_block_mask in 240 s


@dataclass(frozen=True)
class Shape:
    """Heads and dimensions of q, k and v."""

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.kv_heads

    def flops(self, pairs: int, direction: Direction) -> float:
        """Useful FLOPs with this many visible pairs per batch element."""
        forward = 4.0 * self.batch * self.heads * (self.head_dim + self.v_head_dim) / 2 * pairs
        return forward if direction == "fwd" else BACKWARD_FLOPS * forward


def shape_of(case: Case, q_len: int, settings: Settings) -> Shape:
    """As many batch elements as the tokens allow."""
    heads, kv_heads = (case.heads, case.heads) if case.heads else settings.heads
    return Shape(max(1, settings.tokens // max(1, q_len)), heads, kv_heads, *settings.dims)


@dataclass(frozen=True, eq=False)
class Problem:
    """One mask, bound, and inputs of it.

    grad_out  what the outputs' gradients are
    stream    where backwards are made and run, so that graphs can capture them; None on a CPU
    compiles  whether FlexAttention is compiled, as a model has it
    """

    case: Case
    shape: Shape
    mask: Mask
    plan: Plan
    q: Tensor
    k: Tensor
    v: Tensor
    grad_out: Tensor
    stream: torch.cuda.Stream | None
    compiles: bool = True

    @property
    def facts(self) -> Facts:
        """Of one batch element."""
        assert self.mask.facts is not None
        return self.mask.facts

    @property
    def lengths(self) -> tuple[int, int]:
        """Queries, keys."""
        return self.plan.q_len, self.plan.kv_len

    @property
    def has_groups(self) -> bool:
        """Whether several query heads share a key head."""
        return self.shape.group > 1

    @cached_property
    def flex(self) -> Callable[..., Any]:
        """FlexAttention: one function for all spellings and back ends."""
        function: Callable[..., Any] = flex_attention
        return torch.compile(function) if self.compiles else function

    def mask_mod(self, spelling: Spelling) -> MaskMod:
        """A spelling on the problem's device."""
        return spelling.make(str(self.q.device))

    @property
    def compiles_block_mask(self) -> bool:
        """Whether create_block_mask is compiled, too; a compiler that hangs cannot be stopped."""
        return self.compiles and _ENDLESS not in self.lengths

    @cached_property
    def _block_masks(self) -> dict[str, Any]:
        return {}

    def block_mask(self, spelling: Spelling) -> Any:
        """FlexAttention's, made once; compiled, or eager where that fails."""
        if spelling.name not in self._block_masks:
            arguments = (self.mask_mod(spelling), None, None, *self.lengths)
            device = self.q.device
            try:
                compiles = self.compiles_block_mask
                make = torch.compile(create_block_mask) if compiles else create_block_mask
                made = make(*arguments, device=device)
            except Exception:  # whatever the compiler raises
                made = create_block_mask(*arguments, device=device)
            self._block_masks[spelling.name] = made
        return self._block_masks[spelling.name]

    def dense_mask(self) -> Tensor:
        """bool[1, 1, q_len, kv_len] on the device."""
        q_len, kv_len = self.lengths
        device = self.q.device
        if self.case.spellings:
            rows, keys = (torch.arange(n, device=device) for n in self.lengths)
            return dense(self.mask_mod(self.case.spellings[0]), rows, keys)[None, None]
        keys_here = np.arange(kv_len)
        parts = [
            torch.from_numpy(self.plan.bound.visible(rows_here, keys_here)).to(device)
            for rows_here in np.split(np.arange(q_len), range(_ROWS_AT_ONCE, q_len, _ROWS_AT_ONCE))
        ]
        return torch.cat(parts)[None, None]


def make_problem(
    case: Case, settings: Settings, device: str = "cpu", stream: torch.cuda.Stream | None = None
) -> Problem:
    """Compile, bind, and draw inputs from a normal distribution by a fixed seed."""
    torch.manual_seed(0)
    mask = compiled(case)
    plan = mask.bind(device=device)
    shape = shape_of(case, plan.q_len, settings)
    dtype = getattr(torch, settings.dtype)

    def random(heads: int, tokens: int, dim: int) -> Tensor:
        return torch.randn(shape.batch, heads, tokens, dim, device=device, dtype=dtype)

    return Problem(
        case,
        shape,
        mask,
        plan,
        q=random(shape.heads, plan.q_len, shape.head_dim),
        k=random(shape.kv_heads, plan.kv_len, shape.head_dim),
        v=random(shape.kv_heads, plan.kv_len, shape.v_head_dim),
        grad_out=random(shape.heads, plan.q_len, shape.v_head_dim),
        stream=stream,
        compiles=device == "cuda",
    )
