"""cmask and its peers on one problem, each as a call without arguments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from cases import Case, MaskMod, dense
from timing import Call
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from cmask.runtime import attention
from cmask.runtime.mask import Plan

MAX_DENSE = 16 * 1024  # tokens: a dense mask beyond is not tried


class NotApplicable(Exception):
    """A peer that does not know the mask."""


@dataclass(frozen=True)
class Shape:
    """Heads and dimensions of q, k and v."""

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int

    def flops(self, pairs: int) -> float:
        """Useful FLOPs of the forward with this many visible pairs per batch element."""
        return 4.0 * self.batch * self.heads * (self.head_dim + self.v_head_dim) / 2 * pairs


@dataclass(frozen=True, eq=False)
class Problem:
    """A case with its tensors on a device."""

    case: Case
    shape: Shape
    plan: Plan
    pairs: int
    mask_mod: MaskMod
    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def has_groups(self) -> bool:
        """Whether several query heads share a key head."""
        return self.shape.heads != self.shape.kv_heads

    @cached_property
    def block_mask(self) -> Any:
        """FlexAttention's; compiled, or eager where that fails."""
        lengths = (self.case.seq, self.case.seq)
        try:
            make = torch.compile(create_block_mask)
            return make(self.mask_mod, None, None, *lengths, device=self.q.device)
        except Exception:  # whatever the compiler raises
            return create_block_mask(self.mask_mod, None, None, *lengths, device=self.q.device)

    @cached_property
    def flex(self) -> Callable[..., Any]:
        """One compiled function, as a model has it."""
        return torch.compile(flex_attention)


@dataclass(frozen=True)
class Contender:
    """An implementation: `output` makes [batch, heads, seq, v_head_dim] of what `call` gives."""

    call: Call
    output: Callable[[Any], Tensor] = lambda result: result
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


def cmask(problem: Problem, kernel: str | None = None) -> Contender:
    """cmask's attention, by a kernel of its own choice or the named one."""
    p = problem
    plan: Any = p.plan  # frozen, so no AttentionPlan to mypy
    return Contender(lambda: attention(p.q, p.k, p.v, plan, kernel=kernel))


def with_lse(problem: Problem, kernel: str | None) -> tuple[Tensor, Tensor]:
    """The same once, with the log-sum-exp."""
    p = problem
    plan: Any = p.plan
    return attention(p.q, p.k, p.v, plan, kernel=kernel, return_lse=True)


def _flex(problem: Problem, backend: str | None = None) -> Contender:
    options = None if backend is None else {"BACKEND": backend}
    p, block_mask, flex = problem, problem.block_mask, problem.flex
    keywords = {"block_mask": block_mask, "kernel_options": options, "enable_gqa": p.has_groups}
    return Contender(lambda: flex(p.q, p.k, p.v, **keywords))


def _fa4(problem: Problem) -> Contender:
    flash = problem.case.flash
    if flash is None:
        raise NotApplicable
    flash_attn_func = import_module("flash_attn.cute").flash_attn_func

    q, k, v = (x.transpose(1, 2).contiguous() for x in (problem.q, problem.k, problem.v))
    keywords: dict[str, Any] = {"causal": flash.causal}
    if flash.window is not None:
        keywords["window_size"] = (flash.window - 1, 0)
    return Contender(
        lambda: flash_attn_func(q, k, v, **keywords),
        lambda result: (result[0] if isinstance(result, tuple) else result).transpose(1, 2),
    )


def _cudnn(problem: Problem) -> Contender:
    p, flash = problem, problem.case.flash
    if flash is None or flash.window is not None:
        raise NotApplicable
    sdpa = partial(F.scaled_dot_product_attention, is_causal=flash.causal, enable_gqa=p.has_groups)
    return Contender(
        lambda: sdpa(p.q, p.k, p.v), around=lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION)
    )


def _sdpa_dense(problem: Problem) -> Contender:
    p, seq = problem, problem.case.seq
    if seq > MAX_DENSE:
        raise NotApplicable
    tokens = torch.arange(seq, device=p.q.device)
    mask = dense(p.mask_mod, tokens, tokens).contiguous()[None, None]
    sdpa = partial(F.scaled_dot_product_attention, attn_mask=mask, enable_gqa=p.has_groups)
    return Contender(lambda: sdpa(p.q, p.k, p.v))


PEERS: dict[str, Callable[[Problem], Contender]] = {
    "cudnn": _cudnn,
    "flex": _flex,
    "flex-fa4": partial(_flex, backend="FLASH"),
    "fa4": _fa4,
    "sdpa-dense": _sdpa_dense,
}


def why_not(error: BaseException) -> str:
    """Why a peer has no figure, in a word."""
    match error:
        case NotApplicable():
            return "–"
        case ImportError():
            return "missing"
        case torch.OutOfMemoryError():
            return "memory"
    text = str(error).lower()
    if "out of memory" in text or "out of resource" in text:
        return "memory"
    if "not supported" in text or "unsupported" in text or "no available kernel" in text:
        return "unsupported"
    return "failed"
