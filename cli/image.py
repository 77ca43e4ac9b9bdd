"""A picture as PNG (pixels) or SVG (rectangles with the regions written beside them)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from html import escape

import numpy as np
from numpy.typing import NDArray

from cmask.cli.colours import (
    FULL_BLOCK,
    PAPER,
    PARTIAL_BLOCK,
    Colour,
    as_hex,
    region_colour,
    shade,
)
from cmask.cli.picture import Ints, Label, Picture

PNG_CELLS = 1024  # cells along a side, one pixel each or more
SVG_CELLS = 192
_LEVELS = 8  # shades of a share: so that neighbours can be one rectangle
_SIDE = 512  # drawn length of the longer side [pixels]
_MARGIN = 110


def png(picture: Picture) -> bytes:
    """The picture as an 8-bit RGB PNG; a cell is a square of whole pixels.

    Source: PNG specification, third edition, sections 5 and 9 (filter 0, one IDAT).
    """
    colours = np.array(cell_colours(picture), np.uint8)
    rows, columns = colours.shape[:2]
    size = max(1, _SIDE // max(rows, columns))
    pixels = colours.repeat(size, axis=0).repeat(size, axis=1)
    return _encode(pixels)


def _encode(pixels: NDArray[np.uint8]) -> bytes:
    height, width = pixels.shape[:2]
    lines = pixels.reshape(height, width * 3)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def cell_colours(picture: Picture) -> list[list[Colour]]:
    """The colour of every cell on paper: by key region, or by kind of block."""
    if picture.full is None:
        colours = [region_colour(number) for number in picture.key_regions()]
        return [
            [shade(c, _level(share), PAPER) for c, share in zip(colours, row, strict=True)]
            for row in picture.shares
        ]
    return [
        [
            shade(FULL_BLOCK if full >= share / 2 else PARTIAL_BLOCK, _level(share), PAPER)
            for share, full in zip(row, fulls, strict=True)
        ]
        for row, fulls in zip(picture.shares, picture.full, strict=True)
    ]


def svg(picture: Picture, title: str) -> str:
    """The picture as SVG: a rectangle for each run of equal cells, and the regions' names."""
    colours = cell_colours(picture)
    rows, columns = len(colours), len(colours[0])
    scale = _SIDE / max(rows, columns)
    width, height = columns * scale, rows * scale
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12" '
        f'viewBox="0 0 {width + _MARGIN + 10:g} {height + 60:g}">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_MARGIN}" y="16" font-weight="bold">{escape(title)}</text>',
        f'<g transform="translate({_MARGIN} 44)" shape-rendering="crispEdges">',
        f'<rect width="{width:g}" height="{height:g}" fill="white" stroke="#999999"/>',
        *_rectangles(colours, scale),
        *_names(picture, scale),
        "</g>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _rectangles(colours: list[list[Colour]], scale: float) -> Iterator[str]:
    for y, row in enumerate(colours):
        start = 0
        for x in range(1, len(row) + 1):
            if x < len(row) and row[x] == row[start]:
                continue
            if row[start] != PAPER:
                yield (
                    f'<rect x="{start * scale:.2f}" y="{y * scale:.2f}" '
                    f'width="{(x - start) * scale:.2f}" height="{scale:.2f}" '
                    f'fill="{as_hex(row[start])}"/>'
                )
            start = x


def _names(picture: Picture, scale: float) -> Iterator[str]:
    """The regions' names: queries down the left side, keys along the top."""
    for label in _apart(picture.q_labels, picture.q_edges, 14 / scale):
        y = _cell(picture.q_edges, label.start) * scale + 11
        yield _name(label, picture, f'x="-6" y="{y:.1f}" text-anchor="end"')
    for label in _apart(picture.k_labels, picture.k_edges, 70 / scale):
        x = _cell(picture.k_edges, label.start) * scale
        yield _name(label, picture, f'x="{x:.1f}" y="-6"')


def _name(label: Label, picture: Picture, place: str) -> str:
    colour = as_hex(shade(region_colour(picture.regions.index(label.region)), 1, PAPER))
    return f'<text {place} fill="{colour}">{escape(label.text)}</text>'


def _apart(labels: tuple[Label, ...], edges: Ints, least: float) -> Iterator[Label]:
    """The labels that begin at least so many cells behind the last one written."""
    last = -least
    for label in labels:
        if _cell(edges, label.start) - last >= least:
            last = _cell(edges, label.start)
            yield label


def _cell(edges: Ints, token: int) -> int:
    return int(np.searchsorted(edges, token, "right")) - 1


def _level(share: float) -> float:
    """A share rounded to a few levels, never to none."""
    return float(np.ceil(share * _LEVELS) / _LEVELS)
