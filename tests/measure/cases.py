"""The masks that are measured: what is bound, and the same mask as peers write it.

CASES names them, `case(name, seq)` makes one, `compiled(case)` is the mask that cmask loads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cmask import masks
from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.grammar.source import Source
from cmask.runtime.mask import Mask, load

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Flash:
    """The mask as FlashAttention's arguments; window: keys with the query's own [tokens]."""

    causal: bool
    window: int | None = None


@dataclass(frozen=True)
class Case:
    """One mask at one length.

    file      the shipped mask
    seq       queries, and keys [tokens]
    mask_mod  device -> FlexAttention's spelling
    sizes     sizes and parameters that are bound; the others follow from seq
    flash     for masks that FlashAttention knows
    heads     query and key heads of its own; None: as asked
    """

    name: str
    file: str
    seq: int
    mask_mod: Callable[[str], MaskMod]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    flash: Flash | None = None
    heads: int | None = None


def case(name: str, seq: int) -> Case:
    """The case of a name of `CASES`."""
    return CASES[name](seq)


def compiled(case: Case) -> Mask:
    """The mask, through the bytes of its artifact."""
    source = Source(f"{case.file}.cmask", masks.path(case.file).read_text(encoding="utf-8"))
    options = CompileOptions(seq=case.seq, sizes=dict(case.sizes))
    return load(compile_source(source, options).artifact)


def dense(mask_mod: MaskMod, rows: Tensor, keys: Tensor) -> Tensor:
    """bool[len(rows), len(keys)]: what a mask_mod shows."""
    zero = torch.zeros((), dtype=torch.int64, device=rows.device)
    seen = mask_mod(zero, zero, rows[:, None], keys[None, :])
    return seen.expand(len(rows), len(keys))


def _full(seq: int) -> Case:
    return Case("full", "full", seq, lambda _: lambda b, h, q, k: q >= 0, flash=Flash(False))


def _causal(seq: int) -> Case:
    return Case("causal", "causal", seq, lambda _: lambda b, h, q, k: q >= k, flash=Flash(True))


def _window(seq: int) -> Case:
    keys = min(1024, seq // 4)

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q - k < keys)

    sizes, flash = {"left": keys - 1}, Flash(True, keys)
    return Case("window", "sliding_window", seq, lambda _: mod, sizes, flash)


def _documents(seq: int) -> Case:
    lengths = _document_lengths(seq)
    starts = _per_token(_starts(lengths), lengths)

    def make(device: str) -> MaskMod:
        start = _captured(starts, device)
        return lambda b, h, q, k: (q >= k) & (k >= start[q])

    return Case("documents", "causal_documents", seq, make, {"text": lengths})


def _documents_by_number(seq: int) -> Case:
    """The same mask as most code has it, which reads a number for each key, too."""
    lengths = _document_lengths(seq)
    numbers = _per_token(range(len(lengths)), lengths)

    def make(device: str) -> MaskMod:
        number = _captured(numbers, device)
        return lambda b, h, q, k: (q >= k) & (number[q] == number[k])

    return Case("documents_by_number", "causal_documents", seq, make, {"text": lengths})


def _document_lengths(seq: int) -> list[int]:
    generator = torch.Generator().manual_seed(1)
    lengths: list[int] = []
    while sum(lengths) < seq:
        drawn = torch.empty(1).log_normal_(6.8, 1.0, generator=generator).item()
        lengths.append(int(min(8192, max(64, drawn))))
    lengths[-1] -= sum(lengths) - seq
    return lengths


def _hstu(seq: int) -> Case:
    context, targets = 8, seq // 8
    events = seq - targets

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        of_history = (q < events) & (q >= k)
        of_targets = (q >= events) & ((k < events) | (q == k))
        return of_history | ((q < context) & (k < events)) | of_targets

    sizes = {"context": context, "history": events - context, "target": targets}
    return Case("hstu", "hstu", seq, lambda _: mod, sizes)


def _hstu_jagged(seq: int) -> Case:
    users, context, targets = 16, min(6, seq // 64), max(1, seq // 512)
    history = _shares(seq - users * (context + targets), _log_normal(users))
    lengths = [context + n + targets for n in history]
    starts = _starts(lengths)
    stops: list[int] = []
    for start, n in zip(starts, history, strict=True):
        end = start + context + n
        stops += [end] * context + list(range(start + context + 1, end + 1)) + [end] * targets

    def make(device: str) -> MaskMod:
        start, stop = _captured(_per_token(starts, lengths), device), _captured(stops, device)
        return lambda b, h, q, k: ((k >= start[q]) & (k < stop[q])) | (q == k)

    sizes = {"context": context, "history": history, "target": targets}
    return Case("hstu_jagged", "hstu_jagged", seq, make, sizes)


def _shared_prompt(seq: int) -> Case:
    part = seq // 8

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & ((k < part) | ((q // part) == (k // part)))

    sizes = {"prompt": part, "answer": [part] * 7}
    return Case("shared_prompt", "shared_prompt", seq, lambda _: mod, sizes)


def _shared_prompt_packed(seq: int) -> Case:
    """Ten groups: a prompt, then 2 to 6 answers of about a sixth of it."""
    counts = [2 + group % 5 for group in range(10)]
    weights = [w for n in counts for w in (6.0, *([1.0] * n))]
    drawn = _log_normal(len(weights), 0.5)
    parts = _shares(seq, [w * x for w, x in zip(weights, drawn, strict=True)])
    groups, at = [], 0
    for n in counts:
        groups.append(parts[at : at + 1 + n])
        at += 1 + n
    firsts = _starts([sum(group) for group in groups])
    ends = [start + group[0] for start, group in zip(firsts, groups, strict=True)]
    lengths = [sum(group) for group in groups]

    def make(device: str) -> MaskMod:
        first, end = (_captured(_per_token(x, lengths), device) for x in (firsts, ends))
        own = _captured(_per_token(_starts(parts), parts), device)
        return lambda b, h, q, k: (q >= k) & (k >= first[q]) & ((k < end[q]) | (k >= own[q]))

    sizes = {"prompt": [g[0] for g in groups], "answer": [g[1:] for g in groups]}
    return Case("shared_prompt_packed", "shared_prompt_packed", seq, make, sizes)


def _prefix_lm(seq: int) -> Case:
    prefix = seq // 4

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) | (k < prefix)

    sizes = {"prefix": prefix, "body": seq - prefix}
    return Case("prefix_lm", "prefix_lm", seq, lambda _: mod, sizes)


def _chunked_causal(seq: int) -> Case:
    chunk = min(8192, seq // 4)

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q // chunk == k // chunk)

    return Case("chunked_causal", "chunked_causal", seq, lambda _: mod, {"chunk": chunk})


def _block_diffusion(seq: int) -> Case:
    block = 32
    blocks = seq // 2 // block
    noisy = blocks * block

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        q_block, k_block = q // block, k // block
        own = (q < noisy) & (q_block == k_block)
        earlier = (q < noisy) & (k_block - blocks < q_block)
        return own | ((k >= noisy) & (earlier | (k_block <= q_block)))

    sizes = {"block": block, "noisy": noisy, "clean": noisy}
    return Case("block_diffusion", "block_diffusion", 2 * noisy, lambda _: mod, sizes)


def _sink_window(seq: int) -> Case:
    sink, left = 4, min(1999, seq // 4 - 1)

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & ((k < sink) | (q - k <= left))

    return Case("sink_window", "sink_window", seq, lambda _: mod, {"sink": sink, "left": left})


def _natten_2d(seq: int) -> Case:
    reach, width = 6, min(seq // 16, 64 * max(1, seq // 8192))
    height, span = seq // width, 2 * reach + 1
    tops = [min(max(y - reach, 0), height - span) for y in range(height)]
    lefts = [min(max(x - reach, 0), width - span) for x in range(width)] * height

    def make(device: str) -> MaskMod:
        top = _captured(_per_token(tops, [width] * height), device)
        left = _captured(lefts, device)

        def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            y, x = k // width - top[q], k % width - left[q]
            return (y >= 0) & (y < span) & (x >= 0) & (x < span)

        return mod

    sizes = {"reach": reach, "height": height, "width": width}
    return Case("natten_2d", "natten_2d", seq, make, sizes)


_GRIDS = {  # height, width, text; elsewhere as the mask's own defaults have it
    1024: (28, 32, 128),
    4096: (56, 64, 512),
    8192: (96, 80, 512),
    32768: (168, 192, 512),
}


def _clear_r16(seq: int) -> Case:
    text, width = min(512, seq // 8), min(seq // 16, 64 * (1 + seq // 16384))
    return _clear("clear_r16", 16, *_GRIDS.get(seq, ((seq - text) // width, width, text)))


def _clear24(radius: int) -> Callable[[int], Case]:
    return lambda _: _clear(f"clear24_r{radius}", radius, 128, 256, 512, heads=24)


def _clear(
    name: str, radius: int, height: int, width: int, text: int, heads: int | None = None
) -> Case:
    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        i, j = q - text, k - text
        dy, dx = i // width - j // width, i % width - j % width
        return (q < text) | (k < text) | (dx * dx + dy * dy < radius * radius)

    sizes = {"radius": radius, "text": text, "height": height, "width": width}
    seq = text + height * width
    return Case(name, f"clear_r{radius}", seq, lambda _: mod, sizes, heads=heads)


def _shares(total: int, weights: Sequence[float]) -> list[int]:
    """Whole shares of a total by weight, each at least 1; the largest takes what is left."""
    shares = [max(1, int(total * w / sum(weights))) for w in weights]
    shares[shares.index(max(shares))] += total - sum(shares)
    return shares


def _log_normal(count: int, deviation: float = 1.0) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    drawn: list[float] = torch.empty(count).log_normal_(0, deviation, generator=generator).tolist()
    return drawn


def _starts(lengths: Sequence[int]) -> list[int]:
    return [sum(lengths[:i]) for i in range(len(lengths))]


def _per_token(values: Sequence[int], lengths: Sequence[int]) -> list[int]:
    return [value for value, n in zip(values, lengths, strict=True) for _ in range(n)]


def _captured(values: Sequence[int], device: str) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


CASES: dict[str, Callable[[int], Case]] = {
    "full": _full,
    "causal": _causal,
    "window": _window,
    "documents": _documents,
    "documents_by_number": _documents_by_number,
    "hstu": _hstu,
    "shared_prompt": _shared_prompt,
    "prefix_lm": _prefix_lm,
    "clear_r16": _clear_r16,
    "hstu_jagged": _hstu_jagged,
    "shared_prompt_packed": _shared_prompt_packed,
    "chunked_causal": _chunked_causal,
    "block_diffusion": _block_diffusion,
    "sink_window": _sink_window,
    "natten_2d": _natten_2d,
    "clear24_r8": _clear24(8),
    "clear24_r16": _clear24(16),
    "clear24_r32": _clear24(32),
}
NAMED_ONLY = frozenset({"documents_by_number", "clear24_r8", "clear24_r16", "clear24_r32"})
