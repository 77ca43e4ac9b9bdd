"""What the parser could not read -> one diagnostic that says what was expected."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cmask.grammar.diagnostic import Diagnostic
from cmask.grammar.source import Source, Span

if TYPE_CHECKING:
    from lark.exceptions import UnexpectedInput

RESERVED = (
    "mask", "param", "table", "region", "group", "query", "key", "sees", "heads", "sizes", "all",
    "as",
)  # fmt: skip

# words of other languages -> what to write here
_FOREIGN = {
    "and": "write `&` between patterns that must both hold",
    "or": "write `|` between patterns of which one must hold",
    "not": "there is no `not`: say what is visible, rule by rule",
    "if": "there is no `if`: write one rule per case",
    "see": "write `sees`",
}

_SHOWN = {
    "NAME": "a name", "NUMBER": "a number", "WORD": "`at`, `from`, `align` or `order`",
    "SIGN": "`+` or `-`", "STAR": "`*`", "__ANON_0": "`..`",
    "LBRACE": "`{`", "RBRACE": "`}`", "LPAR": "`(`", "RPAR": "`)`", "LSQB": "`[`", "RSQB": "`]`",
    "COLON": "`:`", "COMMA": "`,`", "SEMICOLON": "`;`", "EQUAL": "`=`", "VBAR": "`|`",
    "AMPERSAND": "`&`", "$END": "the end of the file",
}  # fmt: skip


def explain(error: UnexpectedInput, source: Source) -> Diagnostic:
    """The diagnostic of Lark's exception."""
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    if isinstance(error, UnexpectedToken):
        if error.token.type == "$END":
            return _end(source)
        start = int(error.token.start_pos or 0)
        span = Span(start, start + len(str(error.token)))
        return _token(str(error.token), span, frozenset(error.accepts or error.expected), source)
    if isinstance(error, UnexpectedCharacters):
        start = int(error.pos_in_stream or 0)
        decimal = re.search(r"[0-9]+$", source.text[:start])
        if decimal and source.text[start] == ".":
            return _bad_number(f"{decimal[0]}.", Span(decimal.start(), start + 1))
        word = re.match(r"[A-Za-z_][A-Za-z0-9_]*|[0-9][A-Za-z0-9_]*", source.text[start:])
        if word:
            span = Span(start, start + len(word[0]))
            return _token(word[0], span, frozenset(error.allowed or ()), source)
        return Diagnostic(
            code="unknown-character",
            message=f"the character {_visible(source.text[start])} is no part of the language",
            span=Span(start, start + 1),
            label="this one",
            help="remove it; comments begin with `#`",
        )
    raise error


def _visible(character: str) -> str:
    return f"`{character}`" if character.isprintable() else f"U+{ord(character):04X}"


def _end(source: Source) -> Diagnostic:
    """The text ends too early: point at the brace that is open, if one is."""
    text = re.sub(r"#[^\n]*", lambda m: " " * len(m[0]), source.text)
    opened: list[int] = []
    for offset, character in enumerate(text):
        if character == "{":
            opened.append(offset)
        elif character == "}" and opened:
            opened.pop()
    if opened:
        return Diagnostic(
            code="unclosed-brace",
            message="a brace is never closed",
            span=Span(opened[-1], opened[-1] + 1),
            label="opened here",
            help="add `}` where the block ends",
        )
    end = len(source.text.rstrip())
    return Diagnostic(
        code="unexpected-end",
        message="the file ends before the mask does",
        span=Span(end, end + 1),
        label="nothing follows",
        help="a file is one mask: `mask name { region text; text sees text: causal }`",
    )


def _token(word: str, span: Span, accepts: frozenset[str], source: Source) -> Diagnostic:
    foreign = _foreign(word, span, source)
    if foreign is not None:
        return foreign
    if word in RESERVED and "NAME" in accepts:
        return Diagnostic(
            code="reserved-word",
            message=f"`{word}` is a word of the language and cannot be a name",
            span=span,
            label="a name is needed here",
            help=f"choose another name, such as `{word}_`",
        )
    if re.match(r"[0-9]+[A-Za-z_]", word):
        return _bad_number(word, span)
    if "COLON" in accepts and "COMMA" in accepts:
        return Diagnostic(
            code="missing-colon",
            message="a rule has no `:` before its pattern",
            span=span,
            label="the pattern begins here",
            help=f"write `: {word}`",
        )
    return Diagnostic(
        code="unexpected-token",
        message=f"`{word}` cannot stand here",
        span=span,
        label="unexpected",
        help=_expected(accepts),
    )


def _bad_number(word: str, span: Span) -> Diagnostic:
    return Diagnostic(
        code="bad-number",
        message=f"`{word}` is no number",
        span=span,
        label="not a whole number",
        help="numbers are whole: 512, 32_768, 32k (32,768) or 1M",
    )


def _foreign(word: str, span: Span, source: Source) -> Diagnostic | None:
    """A word of another language, met now or read as a name one or two words ago."""
    met = [(word, span)]
    for _ in range(2):
        before = re.search(r"([A-Za-z_][A-Za-z0-9_]*)\s*$", source.text[: met[-1][1].start])
        if before is not None:
            met.append((before[1], Span(before.start(1), before.end(1))))
    foreign = [(name, place) for name, place in met if name in _FOREIGN]
    if not foreign:
        return None
    word, span = foreign[0]
    return Diagnostic(
        code="foreign-word",
        message=f"`{word}` is no word of the language",
        span=span,
        label="here",
        help=_FOREIGN[word],
    )


def _expected(accepts: frozenset[str]) -> str:
    operators = {"STAR", "FACTOR", "SIGN"} if "FACTOR" in accepts else set()
    names = accepts - operators - {"SEMICOLON"}
    shown = sorted(_SHOWN.get(name, f"`{name.lower()}`") for name in names)
    shown += ["an operator"] if operators else []
    if not shown:
        return ""
    return "expected " + (
        " or ".join([", ".join(shown[:-1]), shown[-1]]) if shown[1:] else shown[0]
    )
