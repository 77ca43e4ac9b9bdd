"""Words and signs of other languages, and misspelled ones: what to write here instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from cmask.grammar.diagnostic import Diagnostic
from cmask.grammar.source import Source, Span

_COMPARE = "compare coordinates by a pattern: `same(c)`, `before(c)`, `upto(c)`"
_NO_NOT = "there is no `not`: say what is visible, rule by rule"

_WORDS = {
    "and": "write `&` between patterns that must both hold",
    "or": "write `|` between patterns of which one must hold",
    "not": _NO_NOT,
    "if": "there is no `if`: write one rule per case",
    "see": "write `sees`",
}
_SIGNS = {
    "&&": _WORDS["and"],
    "||": _WORDS["or"],
    "//": "comments begin with `#`",
    "/*": "comments begin with `#`",
    "->": "write `sees`",
    "=>": "write `sees`",
    "==": _COMPARE,
    "!=": _COMPARE,
    "<=": _COMPARE,
    ">=": _COMPARE,
    "<": _COMPARE,
    ">": _COMPARE,
    "!": _NO_NOT,
    "~": _NO_NOT,
}
_BEGINNINGS = ("mask", "param", "table", "region", "group", "query", "key", "heads", "sizes")


def foreign(span: Span, source: Source) -> Diagnostic | None:
    """A word or sign of another language, met now or read as a name one or two words ago."""
    for word, place in (*_signs(span, source), *_words_back(span, source, 3)):
        if word in _WORDS or word in _SIGNS:
            return Diagnostic(
                code="foreign-word",
                message=f"`{word}` is no {'word' if word in _WORDS else 'sign'} of the language",
                span=place,
                label="here",
                help=_WORDS.get(word) or _SIGNS[word],
            )
    return None


def misspelled(span: Span, accepts: frozenset[str], source: Source) -> Diagnostic | None:
    """A word that could be meant for one of the language, where such a one can stand."""
    met = list(_words_back(span, source, 2))
    if met and met[0][1] == span:
        (word, _), *before = met
        if word.lower() != word and word.upper() in accepts:
            return _meant(word, span, word.lower())
        if "SEES" in accepts and _close(word, ("sees",)):
            return _meant(word, span, "sees")
    else:
        before = met[:1]
    for word, place in before:
        close = _close(word, _BEGINNINGS) if "SEES" in accepts else None
        if close:
            return _meant(word, place, close)
    return None


def _meant(word: str, span: Span, meant: str) -> Diagnostic:
    return Diagnostic(
        code="misspelled-word",
        message=f"`{word}` is no word of the language",
        span=span,
        label="here",
        help=f"did you mean `{meant}`?",
    )


def _close(word: str, words: tuple[str, ...]) -> str | None:
    return next(iter(difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.7)), None)


def _signs(span: Span, source: Source) -> Iterator[tuple[str, Span]]:
    """The signs that begin here, or whose second character stands here."""
    for start in (span.start, span.start - 1):
        for length in (2, 1) if start == span.start else (2,):
            place = Span(start, start + length)
            if start >= 0:
                yield source.slice(place), place


def _words_back(span: Span, source: Source, count: int) -> Iterator[tuple[str, Span]]:
    """The word here, if one is, and those that stand before it."""
    if re.match(r"[A-Za-z_]", source.slice(span)):
        yield source.slice(span), span
        count -= 1
    text = source.code[: span.start]
    for _ in range(count):
        before = re.search(r"([A-Za-z_][A-Za-z0-9_]*)\s*$", text)
        if before is None:
            return
        text = text[: before.start(1)]
        yield before[1], Span(before.start(1), before.end(1))
