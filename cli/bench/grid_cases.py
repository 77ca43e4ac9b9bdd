"""Masks on grids of image tokens."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from cmask.cli.bench.case import Case, MaskMod, Spelling, captured, shipped
from cmask.cli.bench.packed_cases import per_token


def natten_2d(seq: int) -> Case:
    """A square of 13 × 13 neighbours, moved inwards at the border."""
    reach, width = 6, min(seq // 16, 64 * max(1, seq // 8192))
    height, span = seq // width, 2 * reach + 1
    tops = [min(max(y - reach, 0), height - span) for y in range(height)]
    lefts = [min(max(x - reach, 0), width - span) for x in range(width)] * height

    def make(device: str) -> MaskMod:
        top = captured(per_token(tops, [width] * height), device)
        left = captured(lefts, device)

        def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            y, x = k // width - top[q], k % width - left[q]
            return (y >= 0) & (y < span) & (x >= 0) & (x < span)

        return mod

    sizes = {"reach": reach, "height": height, "width": width}
    spelling = Spelling("row and column of k less top[q] and left[q] within 13", make)
    return shipped("natten_2d", "natten_2d", seq, spelling, sizes)


_GRIDS = {  # height, width, text; elsewhere as the mask's own defaults have it
    1024: (28, 32, 128),
    4096: (56, 64, 512),
    8192: (96, 80, 512),
    32768: (168, 192, 512),
}


def clear_r16(seq: int) -> Case:
    """Text, then an image of about this length in all."""
    text, width = min(512, seq // 8), min(seq // 16, 64 * (1 + seq // 16384))
    return _clear("clear_r16", 16, *_GRIDS.get(seq, ((seq - text) // width, width, text)))


def clear24(radius: int) -> Callable[[int], Case]:
    """Of FLUX: 24 heads, 512 text tokens, an image of 128 × 256, whatever the length."""
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
    spelling = Spelling("text, or dx * dx + dy * dy < r * r by // and %", lambda _: mod)
    return shipped(name, f"clear_r{radius}", seq, spelling, sizes, heads=heads)
