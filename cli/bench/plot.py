"""Speed against length as SVG: a panel a mask and direction, a line an implementation.

Readable in print: lines differ by dashes and marks, not by colour alone, and colours are dark.
All panels have one scale, so that heights compare; plot_lines.py draws the lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from cmask.cli.bench import titles
from cmask.cli.bench.plot_lines import ROW, Point, drawn, in_order, legend, numbers_of
from cmask.cli.bench.rows import Group, count, names_of

_PANEL = (250, 170)  # drawn size [pixels]
_MARGIN = (56, 30, 14, 40)  # left, top, right, bottom
_TICKS = 5  # at most, above zero
_TITLE = 34  # height of the title [pixels]


def svg(groups: Sequence[Group], title: str) -> str:
    """All panels, and which line is which."""
    panels = list(dict.fromkeys((group.mask, group.direction) for group in groups))
    names = in_order(names_of(groups))
    numbers = numbers_of(names)
    scale = _scale(_speeds(groups))
    # both directions of a mask stand side by side
    most = 2 if len({direction for _, direction in panels}) > 1 else 3
    across = min(most, max(1, len(panels)))
    wide, high = _PANEL[0] + _MARGIN[0] + _MARGIN[2], _PANEL[1] + _MARGIN[1] + _MARGIN[3]
    width = max(wide * across, 480)
    shown = list(legend(numbers, width, _TITLE))
    top = _TITLE + ROW * len({row for row, _ in shown}) + 6
    height = top + high * math.ceil(len(panels) / across) + 4
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="Helvetica, Arial, sans-serif" '
        f'font-size="12" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
        *(line for _, line in shown),
    ]
    for index, (mask, direction) in enumerate(panels):
        x, y = wide * (index % across), top + high * (index // across)
        mine = [g for g in groups if (g.mask, g.direction) == (mask, direction)]
        lines.append(f'<g transform="translate({x + _MARGIN[0]} {y + _MARGIN[1]})">')
        lines += _panel(mine, numbers, scale, is_first=index % across == 0)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(
    groups: Sequence[Group], numbers: Mapping[str, int], scale: Sequence[float], *, is_first: bool
) -> Iterator[str]:
    width, height = _PANEL
    lengths = sorted({group.seq for group in groups})
    title = f"{titles.of_mask(*groups)}, {titles.DIRECTIONS[groups[0].direction]}"
    yield f'<text x="0" y="-10" font-weight="bold">{escape(title)}</text>'
    for speed in scale:
        y = height - height * speed / scale[-1]
        yield f'<path d="M0 {y:.1f}H{width}" stroke="#d0d0d0" stroke-width="0.7"/>'
        yield f'<text x="-6" y="{y + 4:.1f}" text-anchor="end">{speed:g}</text>'
    for length in lengths:
        x = _across(length, lengths)
        yield f'<text x="{x:.1f}" y="{height + 16}" text-anchor="middle">{count(length)}</text>'
    yield f'<path d="M0 0V{height}H{width}" fill="none" stroke="#333333"/>'
    yield f'<text x="{width / 2:g}" y="{height + 31}" text-anchor="middle">tokens</text>'
    if is_first:
        yield (
            f'<text x="-40" y="{height / 2:g}" text-anchor="middle" '
            f'transform="rotate(-90 -40 {height / 2:g})">TFLOP/s</text>'
        )
    for name, number in reversed(list(numbers.items())):  # the first lies on top
        points = _points(groups, name)
        line = [(_across(x, lengths), height - height * y / scale[-1]) for x, y in points]
        yield from drawn(line, number)


def _speeds(groups: Sequence[Group]) -> list[float]:
    """All that is drawn."""
    speeds = [g.tflops(result.times, "rested") for g in groups for result in g.results]
    return [speed for speed in speeds if speed is not None]


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


def _scale(speeds: Sequence[float]) -> list[float]:
    """Round figures from 0 to the largest speed or beyond it, at equal steps.

    >>> _scale([763.0]), _scale([])
    ([0.0, 200.0, 400.0, 600.0, 800.0], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    """
    largest = max(speeds, default=1.0)
    power = 10.0 ** math.floor(math.log10(largest))
    steps = [share * power for share in (0.1, 0.2, 0.5, 1.0, 2.0)]
    step = next(step for step in steps if step * _TICKS >= largest)
    return [round(step * tick, 12) for tick in range(math.ceil(largest / step) + 1)]
