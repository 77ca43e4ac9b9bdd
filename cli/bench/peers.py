"""cmask's peers, each as a function of q, k and v in the layout that it is best at."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cmask.cli.bench.case import Flash, Spelling
from cmask.cli.bench.measure import NotApplicable
from cmask.cli.bench.problem import Problem

MAX_DENSE = 32 * 1024  # tokens: a dense mask beyond is not tried


@dataclass(frozen=True)
class Attention:
    """An implementation.

    attend    (q, k, v) in its layout -> out, or a tuple that begins with it
    spelling  how it was told the mask
    to, back  [batch, heads, tokens, dim] to its layout, and the inverse
    around    what `attend` must run in
    """

    attend: Callable[[Tensor, Tensor, Tensor], Any]
    spelling: str = ""
    to: Callable[[Tensor], Tensor] = lambda x: x
    back: Callable[[Tensor], Tensor] = lambda x: x
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


Make = Callable[[Problem], Attention]


def peers_of(problem: Problem, against: tuple[str, ...]) -> Iterator[tuple[str, Make]]:
    """Columns and what makes them; FlexAttention has a column for each spelling."""
    spellings = problem.case.spellings or (None,)
    for name in against:
        if name in _FLEX:
            for spelling in spellings:
                suffix = f":{spelling.name}" if spelling and spelling.name else ""
                yield name + suffix, partial(_flex, spelling=spelling, backend=_FLEX[name])
        else:
            yield name, _OTHERS[name]


def _flex(problem: Problem, spelling: Spelling | None, backend: str | None) -> Attention:
    if spelling is None:
        raise NotApplicable("rows are no intervals, or more than a mask_mod can compare")
    keywords = {
        "block_mask": problem.block_mask(spelling),
        "kernel_options": None if backend is None else {"BACKEND": backend},
        "enable_gqa": problem.has_groups,
    }
    flex = problem.flex
    return Attention(lambda q, k, v: flex(q, k, v, **keywords), spelling.words)


def _fa4(problem: Problem) -> Attention:
    flash = problem.case.flash
    if flash is None:
        raise NotApplicable("FlashAttention has no such argument")
    if flash.documents:
        return _fa4_packed(problem, flash)
    flash_attn_func = import_module("flash_attn.cute").flash_attn_func
    keywords: dict[str, Any] = {"causal": flash.causal}
    if flash.window is not None:
        keywords["window_size"] = (flash.window - 1, 0)
    return Attention(
        lambda q, k, v: flash_attn_func(q, k, v, **keywords),
        ", ".join(f"{name}={value}" for name, value in keywords.items()),
        _tokens_first,
        lambda x: x.transpose(1, 2),
    )


def _tokens_first(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous()


def _fa4_packed(problem: Problem, flash: Flash) -> Attention:
    """Documents of the whole batch as one list of sequences."""
    varlen = import_module("flash_attn.cute").flash_attn_varlen_func
    batch, longest = problem.shape.batch, max(flash.documents)
    lengths = torch.tensor((0, *(flash.documents * batch)), dtype=torch.int64)
    starts = lengths.cumsum(0).to(problem.q.device, torch.int32)
    keywords: dict[str, Any] = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    known = inspect.signature(varlen).parameters
    keywords |= {n: longest for n in ("max_seqlen_q", "max_seqlen_k") if n in known}
    return Attention(
        lambda q, k, v: varlen(q, k, v, causal=flash.causal, **keywords),
        "causal=True and cu_seqlens",
        lambda x: _tokens_first(x).flatten(0, 1),
        lambda x: x.reshape(batch, -1, *x.shape[1:]).transpose(1, 2),
    )


def _cudnn(problem: Problem) -> Attention:
    flash = problem.case.flash
    if flash is None or flash.window is not None or flash.documents:
        raise NotApplicable("SDPA's cuDNN has no such argument")
    return Attention(
        partial(
            F.scaled_dot_product_attention, is_causal=flash.causal, enable_gqa=problem.has_groups
        ),
        f"is_causal={flash.causal}",
        around=lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION),
    )


def _sdpa(problem: Problem) -> Attention:
    if max(problem.lengths) > MAX_DENSE:
        raise NotApplicable("the dense mask is too large")
    mask = problem.dense_mask().contiguous()
    attend = partial(F.scaled_dot_product_attention, attn_mask=mask, enable_gqa=problem.has_groups)
    return Attention(attend, f"dense mask of {mask.numel() / 1024**2:,.0f} MiB")


_FLEX: dict[str, str | None] = {"flex": None, "flex-fa4": "FLASH"}
_OTHERS: dict[str, Make] = {"fa4": _fa4, "cudnn": _cudnn, "sdpa": _sdpa}
