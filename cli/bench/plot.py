"""Speed against length as SVG: a panel a mask and direction, a line an implementation.

Readable in print: lines differ by dashes and marks, not by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from cmask.cli.bench.rows import Group, count, names_of

_PANEL = (250, 170)  # drawn size [pixels]
_MARGIN = (56, 34, 14, 40)  # left, top, right, bottom
_COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777")
_DASHES = ("", "6 3", "2 2", "8 3 2 3", "4 4", "1 3", "10 4", "3 1")
_DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
_TICKS = 4

Point = tuple[float, float]


def svg(groups: Sequence[Group], title: str) -> str:
    """All panels, and which line is which."""
    panels = list(dict.fromkeys((group.mask, group.direction) for group in groups))
    names = names_of(groups)
    # both directions of a mask stand side by side
    most = 4 if len({direction for _, direction in panels}) > 1 else 3
    across = min(most, max(1, len(panels)))
    wide, high = _PANEL[0] + _MARGIN[0] + _MARGIN[2], _PANEL[1] + _MARGIN[1] + _MARGIN[3]
    below = 40 + high * math.ceil(len(panels) / across)
    width = max(wide * across, 480)
    legend = list(_legend(names, width, below))
    height = below + 22 * len({y for y, _ in legend}) + 8
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11" '
        f'viewBox="0 0 {width} {height}">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="20" font-size="13" font-weight="bold">{escape(title)}</text>',
    ]
    for index, (mask, direction) in enumerate(panels):
        x, y = wide * (index % across), 40 + high * (index // across)
        mine = [g for g in groups if (g.mask, g.direction) == (mask, direction)]
        lines.append(f'<g transform="translate({x + _MARGIN[0]} {y + _MARGIN[1]})">')
        lines += _panel(mine, names, f"{mask}, {_DIRECTIONS[direction]}")
        lines.append("</g>")
    lines += [line for _, line in legend]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(groups: Sequence[Group], names: Sequence[str], title: str) -> Iterator[str]:
    width, height = _PANEL
    lengths = sorted({group.seq for group in groups})
    lines = {name: _points(groups, name) for name in names}
    top = _nice(max((speed for points in lines.values() for _, speed in points), default=1.0))
    yield f'<text x="0" y="-12" font-weight="bold">{escape(title)}</text>'
    for tick in range(_TICKS + 1):
        y = height - height * tick / _TICKS
        yield f'<path d="M0 {y:g}H{width}" stroke="#dddddd"/>'
        speed = f"{top * tick / _TICKS:g}"
        yield f'<text x="-6" y="{y + 4:g}" text-anchor="end">{speed}</text>'
    for length in lengths:
        x = _across(length, lengths)
        yield f'<text x="{x:.1f}" y="{height + 16}" text-anchor="middle">{count(length)}</text>'
    yield f'<path d="M0 0V{height}H{width}" fill="none" stroke="#333333"/>'
    yield f'<text x="{width / 2:g}" y="{height + 31}" text-anchor="middle">tokens</text>'
    middle = height / 2
    yield (
        f'<text x="-42" y="{middle:g}" text-anchor="middle" '
        f'transform="rotate(-90 -42 {middle:g})">TFLOP/s</text>'
    )
    for number, name in enumerate(names):
        drawn = [(_across(x, lengths), height - height * y / top) for x, y in lines[name]]
        yield from _drawn(drawn, number)


def _points(groups: Sequence[Group], name: str) -> list[Point]:
    """(tokens, TFLOP/s rested) of one implementation, where it has a figure."""
    found = [
        (group.seq, group.tflops(result.times, "rested"))
        for group in groups
        for result in group.results
        if result.name == name
    ]
    return sorted((float(seq), speed) for seq, speed in found if speed is not None)


def _across(length: float, lengths: Sequence[int]) -> float:
    """Lengths lie on a logarithmic scale, a little off the edges."""
    low, high = math.log2(lengths[0]), math.log2(lengths[-1])
    share = 0.5 if low == high else (math.log2(length) - low) / (high - low)
    return _PANEL[0] * (0.06 + 0.88 * share)


def _drawn(points: Sequence[Point], number: int) -> Iterator[str]:
    if not points:
        return
    colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    width = 2 if number == 0 else 1.4
    yield (
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}" '
        f'stroke-dasharray="{dash or "none"}"/>'
    )
    for x, y in points:
        yield _mark(x, y, number, colour)


def _mark(x: float, y: float, number: int, colour: str) -> str:
    """Circle, square, triangle, diamond; hollow from the fifth on."""
    fill = colour if number % 8 < 4 else "white"
    style = f'fill="{fill}" stroke="{colour}" stroke-width="1.2"'
    match number % 4:
        case 0:
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" {style}/>'
        case 1:
            return f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" {style}/>'
        case 2:
            return f'<path d="M{x:.1f} {y - 4:.1f}l4 7h-8z" {style}/>'
    return f'<path d="M{x:.1f} {y - 4:.1f}l4 4l-4 4l-4 -4z" {style}/>'


def _legend(names: Sequence[str], width: int, top: int) -> Iterator[tuple[int, str]]:
    """(line, element): a piece of each line with its name, wrapped at the width."""
    x, row = 12.0, 0
    for number, name in enumerate(names):
        needed = 44 + 6.6 * len(name)
        if x > 12 and x + needed > width:
            x, row = 12.0, row + 1
        y = top + 14 + 22 * row
        for element in _drawn([(x, y - 4), (x + 26, y - 4)], number):
            yield row, element
        yield row, f'<text x="{x + 33:.1f}" y="{y}">{escape(name)}</text>'
        x += needed


def _nice(largest: float) -> float:
    """The end of the scale: the least of 1, 2, 4, 5, 8, 10 times a power of ten at or above."""
    power = 10.0 ** math.floor(math.log10(largest))
    return next(step * power for step in (1, 2, 4, 5, 8, 10, 20) if step * power >= largest)
