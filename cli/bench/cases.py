"""The masks that are measured by name: `CASES` makes one of a length."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from cmask.cli.bench import grid_cases, packed_cases
from cmask.cli.bench.case import Case, Flash, Spelling, shipped


def _full(seq: int) -> Case:
    spelling = Spelling("always", lambda _: lambda b, h, q, k: q >= 0)
    return shipped("full", "full", seq, spelling, flash=Flash(causal=False))


def _causal(seq: int) -> Case:
    spelling = Spelling("q >= k", lambda _: lambda b, h, q, k: q >= k)
    return shipped("causal", "causal", seq, spelling, flash=Flash(causal=True))


def _window(seq: int) -> Case:
    keys = min(1024, seq // 4)

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q - k < keys)

    sizes, flash = {"left": keys - 1}, Flash(True, keys)
    spelling = Spelling("q >= k and q - k < window", lambda _: mod)
    return shipped("window", "sliding_window", seq, spelling, sizes, flash=flash)


def _hstu(seq: int) -> Case:
    context, targets = 8, seq // 8
    events = seq - targets

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        of_history = (q < events) & (q >= k)
        of_targets = (q >= events) & ((k < events) | (q == k))
        return of_history | ((q < context) & (k < events)) | of_targets

    sizes = {"context": context, "history": events - context, "target": targets}
    spelling = Spelling("history, context and targets by comparison", lambda _: mod)
    return shipped("hstu", "hstu", seq, spelling, sizes)


def _shared_prompt(seq: int) -> Case:
    part = seq // 8

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & ((k < part) | ((q // part) == (k // part)))

    sizes = {"prompt": part, "answer": [part] * 7}
    spelling = Spelling("q >= k, and k < prompt or q // answer == k // answer", lambda _: mod)
    return shipped("shared_prompt", "shared_prompt", seq, spelling, sizes)


def _prefix_lm(seq: int) -> Case:
    prefix = seq // 4

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) | (k < prefix)

    sizes = {"prefix": prefix, "body": seq - prefix}
    spelling = Spelling("q >= k or k < prefix", lambda _: mod)
    return shipped("prefix_lm", "prefix_lm", seq, spelling, sizes)


def _chunked_causal(seq: int) -> Case:
    chunk = min(8192, seq // 4)

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q // chunk == k // chunk)

    spelling = Spelling("q >= k and q // chunk == k // chunk", lambda _: mod)
    return shipped("chunked_causal", "chunked_causal", seq, spelling, {"chunk": chunk})


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
    spelling = Spelling("halves and q // block, k // block by comparison", lambda _: mod)
    return shipped("block_diffusion", "block_diffusion", 2 * noisy, spelling, sizes)


def _sink_window(seq: int) -> Case:
    sink, left = 4, min(1999, seq // 4 - 1)

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & ((k < sink) | (q - k <= left))

    spelling = Spelling("q >= k, and k < sink or q - k <= left", lambda _: mod)
    return shipped("sink_window", "sink_window", seq, spelling, {"sink": sink, "left": left})


CASES: dict[str, Callable[[int], Case]] = {
    "full": _full,
    "causal": _causal,
    "window": _window,
    "documents": packed_cases.documents,
    "hstu": _hstu,
    "shared_prompt": _shared_prompt,
    "prefix_lm": _prefix_lm,
    "clear_r16": grid_cases.clear_r16,
    "hstu_jagged": packed_cases.hstu_jagged,
    "shared_prompt_packed": packed_cases.shared_prompt_packed,
    "chunked_causal": _chunked_causal,
    "block_diffusion": _block_diffusion,
    "sink_window": _sink_window,
    "natten_2d": grid_cases.natten_2d,
    "clear24_r8": grid_cases.clear24(8),
    "clear24_r16": grid_cases.clear24(16),
    "clear24_r32": grid_cases.clear24(32),
}
ALIASES = {"sliding_window": "window", "causal_documents": "documents"}  # as they ship
USUAL = tuple(CASES)[:8]
