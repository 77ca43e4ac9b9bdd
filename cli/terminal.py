"""A picture as text: a mark a pair where it is small, shaded half blocks where it is not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.style import Style
from rich.text import Text

from cmask.cli.colours import (
    FULL_BLOCK,
    GROUND,
    PARTIAL_BLOCK,
    Colour,
    as_hex,
    region_colour,
    shade,
)
from cmask.cli.picture import Ints, Label, Picture

SEEN, UNSEEN = "■", "·"
_SHADES = " ░▒▓█"
_WIDEST_MARGIN = 16


def fits_as_marks(q_len: int, kv_len: int, width: int) -> bool:
    """Whether every pair can have a mark of its own, two columns wide."""
    return q_len <= 48 and 2 * kv_len + _WIDEST_MARGIN <= width


def cells_for(q_len: int, kv_len: int, width: int, *, coloured: bool) -> tuple[int, int]:
    """Rows and columns of cells for a terminal's width; in colour a line holds two rows."""
    columns = max(1, min(kv_len, width - _WIDEST_MARGIN, 96))
    rows = max(2, min(q_len, round(columns * q_len / max(kv_len, 1)), 96))
    return (rows if coloured else max(1, rows // 2)), columns


def lines(picture: Picture, *, coloured: bool) -> Iterator[Text]:
    """The picture with the regions along both sides, line by line."""
    if picture.full is None and picture.is_exact:
        body, width, rows_per_line = _marks(picture), 2, 1
    elif coloured:
        body, width, rows_per_line = _half_blocks(picture), 1, 2
    else:
        body, width, rows_per_line = _shaded(picture), 1, 1
    names = _beside(picture.q_labels, picture.q_edges, rows_per_line)
    margin = max((len(name) for name, _ in names.values()), default=0) + 1
    above = _above(picture, width)
    if above.plain.strip():
        yield Text(" " * margin) + above
    for number, line in enumerate(body):
        name, region = names.get(number, ("", ""))
        style = as_hex(_colour_of(picture, region)) if name else ""
        yield Text(name.rjust(margin - 1) + " ", style=style) + line


def legend(picture: Picture) -> Text:
    """What the colours and marks mean, on one line."""
    text = Text()
    if picture.full is not None:
        text.append("█ full block  ", as_hex(FULL_BLOCK))
        text.append("▒ partial block  ", as_hex(PARTIAL_BLOCK))
        return text + Text("· empty", "dim")
    for label in dict.fromkeys(label.region for label in (*picture.q_labels, *picture.k_labels)):
        text.append(f"{SEEN} {label}  ", as_hex(_colour_of(picture, label)))
    return text + Text("down: queries, across: keys", "dim")


def _colour_of(picture: Picture, region: str) -> Colour:
    return region_colour(picture.regions.index(region))


def _cell_colours(picture: Picture, ground: Colour) -> list[list[Colour]]:
    """The colour of every cell: by key region, or by kind of block."""
    if picture.full is not None:
        return [
            [
                shade(FULL_BLOCK if full >= share / 2 else PARTIAL_BLOCK, share, ground)
                for share, full in zip(shares, fulls, strict=True)
            ]
            for shares, fulls in zip(picture.shares, picture.full, strict=True)
        ]
    colours = [region_colour(number) for number in picture.key_regions()]
    return [
        [shade(colour, share, ground) for colour, share in zip(colours, row, strict=True)]
        for row in picture.shares
    ]


def _marks(picture: Picture) -> Iterator[Text]:
    colours = [as_hex(region_colour(number)) for number in picture.key_regions()]
    for row in picture.shares:
        line = Text()
        for colour, share in zip(colours, row, strict=True):
            line.append(f"{SEEN} ", colour) if share else line.append(f"{UNSEEN} ", "dim")
        line.rstrip()
        yield line


def _half_blocks(picture: Picture) -> Iterator[Text]:
    """Two rows of cells a line: the upper half in the foreground, the lower behind it."""
    colours = _cell_colours(picture, GROUND)
    for upper, lower in zip(colours[::2], [*colours[1::2], None], strict=False):
        line = Text()
        for number, top in enumerate(upper):
            below = None if lower is None else as_hex(lower[number])
            line.append("▀", Style(color=as_hex(top), bgcolor=below))
        yield line


def _shaded(picture: Picture) -> Iterator[Text]:
    for number, row in enumerate(picture.shares):
        if picture.full is not None:
            full = picture.full[number]
            yield Text("".join(_block_mark(s, f) for s, f in zip(row, full, strict=True)))
        else:
            yield Text("".join(_shade_mark(share) for share in row))


def _shade_mark(share: float) -> str:
    if share <= 0:
        return UNSEEN
    return "█" if share >= 1 - 1e-9 else _SHADES[1 + min(2, int(share * 3))]


def _block_mark(share: float, full: float) -> str:
    if share <= 0:
        return UNSEEN
    return "█" if full >= share / 2 else "▒"


def _beside(
    labels: tuple[Label, ...], edges: Ints, rows_per_line: int
) -> dict[int, tuple[str, str]]:
    """The name of each region by the line where it begins; the longest of those has the line."""
    names: dict[int, tuple[str, str]] = {}
    for label in sorted(labels, key=lambda label: label.start - label.stop):
        cell = int(np.searchsorted(edges, label.start, "right")) - 1
        name = _cut(label.text, _WIDEST_MARGIN - 1)
        names.setdefault(cell // rows_per_line, (name, label.region))
    return names


def _above(picture: Picture, width: int) -> Text:
    """The names of key regions over the columns where they begin, where there is room."""
    line, at = Text(), 0
    edges = picture.k_edges
    for label in picture.k_labels:
        first = (int(np.searchsorted(edges, label.start, "right")) - 1) * width
        stop = int(np.searchsorted(edges, label.stop, "left")) * width
        start, room = max(first, at), stop - max(first, at) - 1
        name = label.text if len(label.text) <= room else label.region
        if room < min(len(name), 5):
            continue
        name = _cut(name, room)
        line.append(" " * (start - len(line)) + name, as_hex(_colour_of(picture, label.region)))
        at = start + len(name) + 1
    return line


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
