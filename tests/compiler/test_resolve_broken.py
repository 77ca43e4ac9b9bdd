"""Whatever is done to a text, it is a mask or gets diagnostics, never a traceback."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cmask.compiler.resolve import resolve
from cmask.grammar.diagnostic import CmaskError
from cmask.grammar.parser import parse
from cmask.grammar.source import Source
from support.documents import blocks_of

ROOT = Path(__file__).parent.parent.parent
TEXTS = [
    block.text
    for file in ("docs/language.md", "tests/golden/diagnostics.md", "tests/compiler/examples.md")
    for block in blocks_of((ROOT / file).read_text(encoding="utf-8"))
    if block.language == "cmask" and "-----" not in block.text
]
TOKENS = [re.findall(r"\w+|\S", re.sub(r"#[^\n]*", "", text)) for text in TEXTS]
WORDS = sorted({token for tokens in TOKENS for token in tokens})


@st.composite
def broken_texts(draw: st.DrawFn) -> str:
    """A mask with some tokens left out, swapped, or replaced by others of the language."""
    tokens = list(draw(st.sampled_from(TOKENS)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(tokens) - 1))
        match draw(st.sampled_from(("drop", "swap", "replace", "insert"))):
            case "drop" if len(tokens) > 1:
                del tokens[place]
            case "swap":
                other = draw(st.integers(0, len(tokens) - 1))
                tokens[place], tokens[other] = tokens[other], tokens[place]
            case "replace":
                tokens[place] = draw(st.sampled_from(WORDS))
            case _:
                tokens.insert(place, draw(st.sampled_from(WORDS)))
    return " ".join(tokens)


@settings(max_examples=100, deadline=None)
@given(text=broken_texts())
def test_a_broken_text_gets_diagnostics_that_can_be_shown(text: str) -> None:
    source = Source("broken.cmask", text)
    try:
        resolve(parse(source), source)
    except CmaskError as error:
        shown = [diagnostic.render(source) for diagnostic in error.diagnostics]
        assert shown
        assert len(set(shown)) == len(shown)
        assert all("^" in text for text in shown)
