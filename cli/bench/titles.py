"""What masks and implementations are called on a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cmask.cli.bench.rows import Group

IMPLEMENTATIONS = {
    "cmask": "cmask",
    "deterministic": "cmask, deterministic",
    "flex-fa4": "Flex-FA4",
    "fa4": "native FA4",
    "cudnn": "cuDNN",
    "flex": "Flex (Triton)",
    "sdpa": "SDPA, dense mask",
}
MASKS = {
    "window": "window",
    "documents": "causal documents",
    "hstu": "HSTU",
    "shared_prompt": "shared prompt",
    "prefix_lm": "prefix LM",
    "clear_r16": "CLEAR r = 16",
    "hstu_jagged": "HSTU, users of unequal length",
    "shared_prompt_packed": "packed shared prompts",
    "chunked_causal": "causal in chunks",
    "block_diffusion": "block diffusion",
    "sink_window": "sink and window",
    "natten_2d": "NATTEN 13 × 13",
    "clear24_r8": "CLEAR r = 8, of FLUX",
    "clear24_r16": "CLEAR r = 16, of FLUX",
    "clear24_r32": "CLEAR r = 32, of FLUX",
}
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}


def of_implementation(name: str) -> str:
    """Its name, and that of a spelling of its own.

    >>> of_implementation("fa4"), of_implementation("flex-fa4:numbers")
    ('native FA4', 'Flex-FA4 by numbers')
    """
    base, _, spelling = name.partition(":")
    title = IMPLEMENTATIONS.get(base, base)
    return f"{title} by {spelling}" if spelling else title


def of_mask(*groups: Group) -> str:
    """Of one mask, with the size by which it is known where all lengths share that."""
    mask = groups[0].mask
    title, sizes = MASKS.get(mask, mask), {_size(mask, group.sizes) for group in groups}
    size = sizes.pop() if len(sizes) == 1 else ""
    return f"{title} {size}" if size else title


def of_heads(group: Group) -> str:
    """Query and key heads, and what they have of dimensions.

    >>> of_heads(Group("causal", "fwd", 8, 1, (64, 8), (128, 128), 36, 0.5, 1.0))
    '64/8 heads of 128'
    """
    heads, dims = ("/".join(map(str, dict.fromkeys(x))) for x in (group.heads, group.dims))
    return f"{heads} heads of {dims}"


def _size(mask: str, sizes: Mapping[str, Any]) -> str:
    match mask:
        case "window" if "left" in sizes:
            return f"{sizes['left'] + 1:,}"
        case "sink_window" if {"sink", "left"} <= sizes.keys():
            return f"{sizes['sink']} + {sizes['left'] + 1:,}"
        case "chunked_causal" if "chunk" in sizes:
            return f"of {sizes['chunk']:,}"
    return ""
