"""Masks that ship: one .cmask file each, with its use, its source and its picture in comments.

names()            what there is
path(name)         the file of one
description(name)  its use in one line
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def names() -> tuple[str, ...]:
    """The shipped masks, by the alphabet.

    >>> "causal" in names()
    True
    """
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.cmask")))


def path(name: str) -> Path:
    """The file of a shipped mask; raises `KeyError` for any other name."""
    if name not in names():
        raise KeyError(name)
    return _FOLDER / f"{name}.cmask"


def description(name: str) -> str:
    """What a shipped mask is for: the first line of its file.

    >>> description("padding")
    'A sequence padded at its end: padding sees nothing and nothing sees it.'
    """
    first = path(name).read_text(encoding="utf-8").split("\n", 1)[0]
    return first.removeprefix("# ").strip()
