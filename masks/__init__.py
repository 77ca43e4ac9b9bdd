"""Masks that ship: one `.cmask` file each, with its source and its picture in a comment."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent
_SUFFIX = ".cmask"


def names() -> tuple[str, ...]:
    """The names of the shipped masks, sorted."""
    return tuple(sorted(file.stem for file in _FOLDER.glob(f"*{_SUFFIX}")))


def path(name: str) -> Path:
    """The file of a shipped mask.

    >>> path("causal").name
    'causal.cmask'

    Raises `KeyError` if no mask of this name ships.
    """
    if name not in names():
        raise KeyError(name)
    return _FOLDER / f"{name}{_SUFFIX}"


def description(name: str) -> str:
    """What a shipped mask is for: the first line of its file.

    >>> description("causal")
    'Each token sees itself and what came before it: every decoder-only language model.'
    """
    with path(name).open(encoding="utf-8") as file:
        return file.readline().removeprefix("# ").strip()
