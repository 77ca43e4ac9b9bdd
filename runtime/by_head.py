"""Attention where heads differ: which heads one call takes, and all results as one tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cmask.runtime.variants import HeadRange, heads_in_words, least_heads


class Part(NamedTuple):
    """Neighbouring query heads that see the same, and the key heads that serve them.

    variant  which of the plan's variants
    q, kv    heads [start, stop)
    """

    variant: int
    q: tuple[int, int]
    kv: tuple[int, int]


def parts_of(
    variants: Sequence[tuple[HeadRange, ...]], num_q_heads: int, num_kv_heads: int
) -> list[Part]:
    """Every query head once, in order.

    Heads that share a key head may see different masks: such a group is cut into parts of its own,
    so that each part has as many query heads for each of its key heads.

    variants: the heads of each.  Raises ValueError where rules are for heads that the call lacks.
    """
    least = least_heads(variants)
    if num_q_heads < least:
        named = sorted(r for heads in variants for r in heads if r[1] is not None)
        last = max(start for start, stop in named)
        raise ValueError(
            f"q must have at least {least} heads, as the mask has rules for "
            f"{heads_in_words([(start, stop) for start, stop in named if start == last])}, got "
            f"{num_q_heads}"
        )
    group = num_q_heads // num_kv_heads
    parts = [
        Part(index, (first, last), (first // group, -(-last // group)))
        for index, heads in enumerate(variants)
        for start, stop in heads
        for first, last in _groups(start, num_q_heads if stop is None else stop, group)
    ]
    return sorted(parts, key=lambda part: part.q)


def slices(x: Tensor, heads: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
    """Views of these heads.

    One split where they are all heads of `x` in order: its gradient is written once.
    """
    ends = [0, *(stop for _, stop in heads)]
    if ends[-1] == x.shape[1] and all(
        start == end for (start, _), end in zip(heads, ends, strict=False)
    ):
        return torch.split(x, [stop - start for start, stop in heads], dim=1)
    return tuple(x[:, start:stop] for start, stop in heads)


def joined(parts: Sequence[Tensor], q: Tensor) -> Tensor:
    """[batch, heads, q_len, v_head_dim] of all parts, laid out in q's order of dimensions."""
    if len(parts) == 1:
        return parts[0]
    strides = q.stride()
    order = sorted((0, 1, 2), key=lambda dim: -strides[dim])
    whole = torch.cat([part.permute(*order, 3) for part in parts], dim=order.index(1))
    return whole.permute(*(order.index(dim) for dim in range(3)), 3)


def _groups(start: int, stop: int, group: int) -> Iterator[tuple[int, int]]:
    """[start, stop) in parts: the end of a group, whole groups, the beginning of one."""
    first = min(-(-start // group) * group, stop)
    last = max(stop // group * group, first)
    for part in ((start, first), (first, last), (last, stop)):
        if part[0] < part[1]:
            yield part
