"""What the parser could not read -> one diagnostic that says what was expected."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cmask.grammar.diagnostic import Diagnostic
from cmask.grammar.foreign import foreign, misspelled
from cmask.grammar.source import Source, Span

if TYPE_CHECKING:
    from lark.exceptions import UnexpectedInput

RESERVED = (
    "mask", "param", "table", "region", "group", "query", "key", "sees", "heads", "sizes", "all",
    "as",
)  # fmt: skip

# what can begin an item, a value, a pattern: shown in two words
_ITEM = frozenset(
    ("ALL", "GROUP", "HEADS", "KEY", "NAME", "PARAM", "QUERY", "REGION", "SIZES", "TABLE")
)
_VALUE = frozenset(("LPAR", "LSQB", "NAME", "NUMBER", "SIGN"))
_PATTERN = frozenset(("ALL", "LPAR", "NAME"))

_SHOWN = {
    "NAME": "a name", "NUMBER": "a number", "WORD": "a clause such as `at`",
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
            rest = re.match(r"\.[0-9]*", source.text[start:])
            span = Span(decimal.start(), start + len(rest[0] if rest else "."))
            return _bad_number(source.slice(span), span)
        word = re.match(r"[A-Za-z_][A-Za-z0-9_]*|[0-9][A-Za-z0-9_]*", source.text[start:])
        if word:
            span = Span(start, start + len(word[0]))
            return _token(word[0], span, frozenset(error.allowed or ()), source)
        return foreign(Span(start, start + 1), source) or Diagnostic(
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
    opened: list[int] = []
    for offset, character in enumerate(source.code):
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
    end = len(source.code.rstrip())
    return Diagnostic(
        code="unexpected-end",
        message="the file ends before the mask does",
        span=Span(end, end + 1),
        label="nothing follows",
        help="a file is one mask: `mask name { region text; text sees text: causal }`",
    )


def _token(word: str, span: Span, accepts: frozenset[str], source: Source) -> Diagnostic:
    known = foreign(span, source) or misspelled(span, accepts, source)
    if known is not None:
        return known
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
        return _missing_colon(word, span, source)
    if accepts == {"COMMA", "SEES"}:
        return _missing_sees(span, source)
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


def _missing_colon(word: str, span: Span, source: Source) -> Diagnostic:
    is_name = word[:1].isidentifier() and word not in RESERVED
    begins = is_name or word in ("(", "all")
    return Diagnostic(
        code="missing-colon",
        message="a rule has no `:` before its pattern",
        span=span if begins else _name_before(span, source),
        label="the pattern begins here" if begins else "no pattern follows",
        help=f"write `: {word}`" if begins else "write `: causal`, or another pattern",
    )


def _missing_sees(span: Span, source: Source) -> Diagnostic:
    return Diagnostic(
        code="missing-sees",
        message="a rule has no `sees` behind its regions",
        span=_name_before(span, source),
        label="read as a region",
        help="write `queries sees keys: pattern`; patterns are joined by `&` and `|`",
    )


def _name_before(span: Span, source: Source) -> Span:
    """The name that stands before a span, or the span."""
    before = re.search(r"([A-Za-z_][A-Za-z0-9_]*)\s*$", source.code[: span.start])
    return Span(before.start(1), before.end(1)) if before else span


def _expected(accepts: frozenset[str]) -> str:
    names, shown = accepts - {"SEMICOLON"}, list[str]()
    if "REGION" in accepts and "GROUP" in accepts:
        names, shown = names - _ITEM, ["a declaration", "a rule"]
    elif names >= _VALUE:
        names, shown = names - _VALUE, ["a value"]
    elif names >= _PATTERN:
        names, shown = names - _PATTERN, ["a pattern"]
    if "SIGN" in names:
        names, shown = names - {"SIGN", "STAR", "FACTOR"}, ["an operator", *shown]
    shown = sorted(_SHOWN.get(name, f"`{name.lower()}`") for name in names) + shown
    if not shown:
        return ""
    return "expected " + (
        " or ".join([", ".join(shown[:-1]), shown[-1]]) if shown[1:] else shown[0]
    )
