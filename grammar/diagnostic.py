"""What is wrong with a text, where, and what to type instead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cmask.grammar.source import NOWHERE, Source, Span

_TAB = "    "


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault.

    code     names the fault, kebab-case
    message  says what is wrong, true without the picture, without advice
    span     the smallest place that shows it, or NOWHERE
    label    a few words at the span
    help     the only advice, as text to type; may be empty
    """

    code: str
    message: str
    span: Span
    label: str = ""
    help: str = ""
    severity: str = "error"

    def render(self, source: Source) -> str:
        """The message with its source line and a caret, as plain text.

        >>> fault = Diagnostic("empty-window", "a window holds no key", Span(5, 14), "this one")
        >>> print(fault.render(Source("a.cmask", "sees window(0)")))
        error[empty-window]: a window holds no key
         --> a.cmask:1:6
          |
        1 | sees window(0)
          |      ^^^^^^^^^ this one
        """
        lines = [f"{self.severity}[{self.code}]: {self.message}"]
        gutter = ""
        if self.span == NOWHERE:
            lines.append(f" --> {source.name}")
            gutter = " "
        else:
            gutter = self._excerpt(source, lines)
        if self.help:
            lines.append(f"{gutter} = help: {self.help}")
        return "\n".join(lines)

    def _excerpt(self, source: Source, lines: list[str]) -> str:
        line, column = source.position(self.span.start)
        text = source.line(line)
        gutter = " " * len(str(line))
        width = max(1, min(self.span.stop - self.span.start, len(text) - column + 1))
        indent = text[: column - 1].replace("\t", _TAB)
        marked = text[column - 1 : column - 1 + width].replace("\t", _TAB)
        lines.append(f"{gutter}--> {source.name}:{line}:{column}")
        lines.append(f"{gutter} |")
        lines.append(f"{line} | {text.replace(chr(9), _TAB)}".rstrip())
        caret = " " * len(indent) + "^" * max(1, len(marked))
        lines.append(f"{gutter} | {caret} {self.label}".rstrip())
        if self.help:
            lines.append(f"{gutter} |")
        return gutter


class CmaskError(Exception):
    """A text that is no mask: all faults of one phase, in source order."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(sorted(diagnostics, key=lambda d: (d.span.start, d.span.stop)))
        super().__init__("; ".join(d.message for d in self.diagnostics))
