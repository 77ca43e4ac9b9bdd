"""A collector of diagnostics: every fault of a phase is reported, each once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from cmask.grammar.diagnostic import CmaskError, Diagnostic
from cmask.grammar.source import Span


@dataclass(slots=True)
class Faults:
    """Errors and warnings found so far."""

    found: list[Diagnostic] = field(default_factory=list)

    def error(self, code: str, message: str, span: Span, label: str, help: str = "") -> None:
        """Note an error; a second one at the same place is a consequence and left out."""
        if not any(d.span == span and d.severity == "error" for d in self.found):
            self.found.append(Diagnostic(code, message, span, label, help))

    def warning(self, code: str, message: str, span: Span, label: str, help: str = "") -> None:
        """Note a warning."""
        self.found.append(Diagnostic(code, message, span, label, help, "warning"))

    def not_yet(self, what: str, span: Span) -> None:
        """Note a construct of the language that this version does not compile."""
        self.error("not-yet", f"{what} is not supported yet", span, "planned for a later version")

    def raise_errors(self) -> None:
        """Raise `CmaskError` if there is any error."""
        errors = [d for d in self.found if d.severity == "error"]
        if errors:
            raise CmaskError(errors)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """The warnings in source order."""
        warnings = [d for d in self.found if d.severity == "warning"]
        return tuple(sorted(warnings, key=lambda d: d.span.start))


def counted(number: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "argument"), counted(0, "argument")
    ('1 argument', '0 arguments')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def with_article(noun: str) -> str:
    """A noun with its article.

    >>> with_article("axis"), with_article("level")
    ('an axis', 'a level')
    """
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Advice for a name that does not exist."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean `{close[0]}`?"
    if not names:
        return ""
    return f"choose among {', '.join(f'`{n}`' for n in names)}"
