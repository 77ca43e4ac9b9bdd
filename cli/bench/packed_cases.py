"""Masks of unequal parts: documents, users, groups of answers; lengths drawn by a fixed seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from cmask.cli.bench.case import Case, Flash, MaskMod, Spelling, captured, shipped


def documents(seq: int) -> Case:
    """Causal documents; `document[q] == document[k]` reads a number for each key, too."""
    lengths = document_lengths(seq)
    starts = per_token(_starts(lengths), lengths)
    numbers = per_token(range(len(lengths)), lengths)

    def by_start(device: str) -> MaskMod:
        start = captured(starts, device)
        return lambda b, h, q, k: (q >= k) & (k >= start[q])

    def by_number(device: str) -> MaskMod:
        number = captured(numbers, device)
        return lambda b, h, q, k: (q >= k) & (number[q] == number[k])

    spellings = (
        Spelling("q >= k and k >= start[q]", by_start),
        Spelling("q >= k and document[q] == document[k]", by_number, "numbers"),
    )
    flash = Flash(True, documents=tuple(lengths))
    return shipped("documents", "causal_documents", seq, spellings, {"text": lengths}, flash=flash)


def document_lengths(seq: int) -> list[int]:
    """Log-normal, about 1.2k tokens on average, between 64 and 8,192 [tokens]."""
    generator = torch.Generator().manual_seed(1)
    lengths: list[int] = []
    while sum(lengths) < seq:
        drawn = torch.empty(1).log_normal_(6.8, 1.0, generator=generator).item()
        lengths.append(int(min(8192, max(64, drawn))))
    lengths[-1] -= sum(lengths) - seq
    return lengths


def hstu_jagged(seq: int) -> Case:
    """16 users whose histories have log-normal lengths."""
    users, context, targets = 16, min(6, seq // 64), max(1, seq // 512)
    history = _shares(seq - users * (context + targets), _log_normal(users))
    lengths = [context + n + targets for n in history]
    starts = _starts(lengths)
    stops: list[int] = []
    for start, n in zip(starts, history, strict=True):
        end = start + context + n
        stops += [end] * context + list(range(start + context + 1, end + 1)) + [end] * targets

    def make(device: str) -> MaskMod:
        start, stop = captured(per_token(starts, lengths), device), captured(stops, device)
        return lambda b, h, q, k: ((k >= start[q]) & (k < stop[q])) | (q == k)

    sizes = {"context": context, "history": history, "target": targets}
    spelling = Spelling("start[q] <= k < stop[q], or q == k", make)
    return shipped("hstu_jagged", "hstu_jagged", seq, spelling, sizes)


def shared_prompt_packed(seq: int) -> Case:
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
        first, end = (captured(per_token(x, lengths), device) for x in (firsts, ends))
        own = captured(per_token(_starts(parts), parts), device)
        return lambda b, h, q, k: (q >= k) & (k >= first[q]) & ((k < end[q]) | (k >= own[q]))

    sizes = {"prompt": [g[0] for g in groups], "answer": [g[1:] for g in groups]}
    words = "q >= k >= first[q], and k < end[q] or k >= own[q]"
    return shipped(
        "shared_prompt_packed", "shared_prompt_packed", seq, Spelling(words, make), sizes
    )


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


def per_token(values: Iterable[int], lengths: Sequence[int]) -> list[int]:
    """Each value as often as its length says."""
    return [value for value, n in zip(values, lengths, strict=True) for _ in range(n)]
