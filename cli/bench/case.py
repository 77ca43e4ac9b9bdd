"""A mask at one length: what is bound, and how peers write the same mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cmask import masks
from cmask.cli.values import ValueFault
from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.grammar.source import Source
from cmask.runtime.mask import Mask, load

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
_ROWS_AT_ONCE = 2048  # of a dense mask: comparing makes int64 of the same shape


@dataclass(frozen=True)
class Spelling:
    """One way to write a mask for FlexAttention.

    words  how it tells a visible pair, for the table
    make   device -> mask_mod
    name   of a column of its own; empty for the best one
    """

    words: str
    make: Callable[[str], MaskMod]
    name: str = ""


@dataclass(frozen=True)
class Flash:
    """The mask as FlashAttention's arguments.

    window     keys with the query's own [tokens]
    documents  lengths of sequences that are packed [tokens]
    """

    causal: bool
    window: int | None = None
    documents: tuple[int, ...] = ()


@dataclass(frozen=True)
class Case:
    """One mask at one length.

    source     the shipped mask, or one's own
    seq        the length asked for [tokens]
    spellings  FlexAttention's, the best first; empty if there is none
    sizes      sizes and parameters that are bound; the others follow from seq
    flash      for masks that FlashAttention knows
    heads      query and key heads of its own; None: as asked
    """

    name: str
    source: Source
    seq: int
    spellings: tuple[Spelling, ...] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)
    flash: Flash | None = None
    heads: int | None = None


def shipped(
    name: str,
    file: str,
    seq: int,
    spelling: Spelling | tuple[Spelling, ...],
    sizes: Mapping[str, Any] | None = None,
    *,
    flash: Flash | None = None,
    heads: int | None = None,
) -> Case:
    """A case of a mask that ships."""
    source = Source(f"{file}.cmask", masks.path(file).read_text(encoding="utf-8"))
    spellings = spelling if isinstance(spelling, tuple) else (spelling,)
    return Case(name, source, seq, spellings, sizes or {}, flash, heads)


def compiled(case: Case) -> Mask:
    """The mask, through the bytes of its artifact."""
    options = CompileOptions(seq=case.seq, sizes=dict(case.sizes))
    mask = load(compile_source(case.source, options).artifact)
    if len(mask.variants) > 1:
        raise ValueFault(f"{case.name} has rules for some heads; give a mask that is for all")
    if mask.facts is None:
        raise ValueFault(f"{case.name}: a size has no value at {case.seq} tokens; give --size")
    return mask


def dense(mask_mod: MaskMod, rows: Tensor, keys: Tensor) -> Tensor:
    """bool[len(rows), len(keys)]: what a mask_mod shows."""
    zero = torch.zeros((), dtype=torch.int64, device=rows.device)
    parts = [
        mask_mod(zero, zero, part[:, None], keys[None, :]).expand(len(part), len(keys))
        for part in torch.split(rows, _ROWS_AT_ONCE)
    ]
    return torch.cat(parts)


def captured(values: Any, device: str) -> Tensor:
    """Numbers that a mask_mod reads on the device."""
    return torch.as_tensor(values, dtype=torch.int32, device=device)
