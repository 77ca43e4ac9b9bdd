"""Lines of a plot: an implementation looks the same in every picture; the legend says how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from cmask.cli.bench import titles

ROW = 20  # height of a line of the legend [pixels]
_COLOURS = ("#000000", "#0072b2", "#c44e00", "#007a58", "#b0468c", "#8a5a00", "#5b3a9e", "#666666")
_DASHES = ("", "6 3", "2 2", "8 3 2 3", "4 4", "6 2 1 2", "10 4", "3 1")
_KNOWN = ("cmask", "flex-fa4", "fa4", "flex", "sdpa", "cudnn")

Point = tuple[float, float]


def in_order(names: Sequence[str]) -> list[str]:
    """Those that are known first, always in the same order."""
    return sorted(names, key=lambda name: _KNOWN.index(name) if name in _KNOWN else len(_KNOWN))


def numbers_of(names: Sequence[str]) -> dict[str, int]:
    """Which colour, dash and mark each takes; those that are not known come behind the others."""
    others = [name for name in names if name not in _KNOWN]
    return {
        name: _KNOWN.index(name) if name in _KNOWN else len(_KNOWN) + others.index(name)
        for name in names
    }


def drawn(points: Sequence[Point], number: int) -> Iterator[str]:
    """A line and its marks."""
    if not points:
        return
    colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    width = 2.2 if number == 0 else 1.4
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


def legend(numbers: Mapping[str, int], width: int, top: int) -> Iterator[tuple[int, str]]:
    """(line, element): a piece of each line with its name, wrapped at the width."""
    x, row = 12.0, 0
    for name, number in numbers.items():
        title = titles.of_implementation(name)
        needed = 60 + 6.8 * len(title)
        if x > 12 and x + needed > width:
            x, row = 12.0, row + 1
        y = top + 10 + ROW * row
        for element in drawn([(x, y - 4), (x + 26, y - 4)], number):
            yield row, element
        yield row, f'<text x="{x + 33:.1f}" y="{y}">{escape(title)}</text>'
        x += needed
