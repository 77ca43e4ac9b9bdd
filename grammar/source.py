"""A text and places in it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Characters [start, stop) of a text."""

    start: int
    stop: int


NOWHERE = Span(-1, -1)


@dataclass(frozen=True, slots=True)
class Source:
    """A text with the name by which people know it (a file name)."""

    name: str
    text: str

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of a character, both from 1."""
        before = self.text[:offset]
        line = before.count("\n")
        return line + 1, offset - (before.rfind("\n") + 1) + 1

    def line(self, number: int) -> str:
        """One line, counted from 1, without its end."""
        lines = self.text.split("\n")
        return lines[number - 1].rstrip("\r") if number <= len(lines) else ""

    @property
    def code(self) -> str:
        """The text with blanks for comments: every offset stays what it is.

        >>> Source("a.cmask", "mask m { } # or").code
        'mask m { }     '
        """
        return re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), self.text)

    def slice(self, span: Span) -> str:
        """The characters of a span."""
        return self.text[span.start : span.stop]
