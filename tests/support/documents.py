"""Markdown with fenced blocks whose text is checked, or rewritten, by a test."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block.  Characters [start, stop) of the document are its text."""

    language: str
    text: str
    start: int
    stop: int


def blocks_of(text: str) -> tuple[Block, ...]:
    """Every fenced block of a document."""
    return tuple(Block(m[1], m[2], m.start(2), m.end(2)) for m in _FENCE.finditer(text))


def pairs(text: str, first: str, second: str) -> Iterator[tuple[Block, Block]]:
    """Each block in the language `first` that is followed directly by one in `second`."""
    blocks = blocks_of(text)
    for block, following in pairwise(blocks):
        if (block.language, following.language) == (first, second):
            yield block, following


def replace(file: Path, replacements: Sequence[tuple[Block, str]]) -> None:
    """Write other texts into blocks of a document."""
    text = file.read_text(encoding="utf-8")
    for block, new in sorted(replacements, key=lambda r: r[0].start, reverse=True):
        text = text[: block.start] + new + text[block.stop :]
    file.write_text(text, encoding="utf-8")
