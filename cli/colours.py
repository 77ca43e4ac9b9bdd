"""The colours of regions and blocks, the same in the terminal, in PNG and in SVG."""

from __future__ import annotations

Colour = tuple[int, int, int]

GROUND: Colour = (24, 26, 31)
PAPER: Colour = (255, 255, 255)
FULL_BLOCK: Colour = (78, 154, 94)
PARTIAL_BLOCK: Colour = (226, 164, 56)

# told apart also by people who do not see red and green apart
_REGIONS: tuple[Colour, ...] = (
    (86, 156, 214),
    (230, 159, 0),
    (0, 158, 115),
    (204, 121, 167),
    (213, 94, 0),
    (140, 120, 220),
    (190, 170, 40),
    (150, 150, 150),
)


def region_colour(number: int) -> Colour:
    """The colour of a region by its number in the layout; grey for none."""
    return _REGIONS[-1] if number < 0 else _REGIONS[number % len(_REGIONS)]


def shade(colour: Colour, share: float, ground: Colour) -> Colour:
    """A colour on a ground, stronger for a larger share; the thinnest share stays visible."""
    if share <= 0:
        return ground
    strength = 0.3 + 0.7 * min(share, 1.0)
    red, green, blue = (round(g + (c - g) * strength) for c, g in zip(colour, ground, strict=True))
    return red, green, blue


def as_hex(colour: Colour) -> str:
    """`#rrggbb`."""
    return "#{:02x}{:02x}{:02x}".format(*colour)
