"""The masks of docs/language.md compile, and look as they are drawn."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from cmask.compiler.close import close
from cmask.compiler.ir import ResolvedMask
from cmask.compiler.positions import Layout
from cmask.compiler.resolve import resolve_with_warnings
from cmask.compiler.resolve_patterns import USAGE
from cmask.compiler.semantics import is_visible
from cmask.grammar.parser import parse
from cmask.grammar.source import Source
from cmask.grammar.syntax_errors import RESERVED
from cmask.runtime.derive.sizes import bind_names
from cmask.runtime.variants import heads_in_words, variants_of
from support.documents import blocks_of, pairs, replace

DOCUMENT = Path(__file__).parent.parent / "docs" / "language.md"


def drawn(text: str) -> str:
    """The mask, or that of each set of heads below their names."""
    source = Source("language.md", text)
    mask, warnings = resolve_with_warnings(parse(source), source)
    assert not warnings
    heads = [variant.heads for variant in variants_of(close(mask))]
    if len(heads) == 1:
        return _picture(mask, 0)
    return "\n".join(f"{heads_in_words(of)}\n{_picture(mask, of[0][0])}" for of in heads)


def _picture(mask: ResolvedMask, head: int) -> str:
    """Queries down, keys across, a gap between regions: ■ where the key is visible."""
    names = bind_names(close(mask))
    instances = Layout(mask.layout, mask.tables, names).instances
    queries = [i.region.name for i in instances if i.has_queries for _ in range(i.length)]
    keys = [i.region.name for i in instances if i.has_keys for _ in range(i.length)]
    lines = []
    for q in range(len(queries)):
        cells = ["■" if is_visible(mask, names, q, k, head) else "·" for k in range(len(keys))]
        lines.append(_spaced(cells, keys, " ", "   "))
    return _spaced(lines, queries, "\n", "\n\n") + "\n"


def _spaced(parts: list[str], regions: list[str], within: str, between: str) -> str:
    gaps = [within if a == b else between for a, b in pairwise(regions)]
    return "".join(part + gap for part, gap in zip(parts, [*gaps, ""], strict=True))


def test_every_mask_of_the_language_reference_looks_as_drawn(update_golden: bool) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    pictures = [(picture, drawn(mask.text)) for mask, picture in pairs(text, "cmask", "picture")]
    if update_golden:
        replace(DOCUMENT, pictures)
    else:
        for expected, found in pictures:
            assert found == expected.text


def test_every_mask_of_the_language_reference_is_drawn() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    masks = [block for block in blocks_of(text) if block.language == "cmask"]
    assert masks == [mask for mask, _ in pairs(text, "cmask", "picture")]


def test_the_language_reference_names_every_pattern_and_word() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    drawings = "".join(mask.text for mask, _ in pairs(text, "cmask", "picture"))
    for pattern in USAGE:
        assert re.search(rf"\b{pattern}\b", drawings), pattern
    for word in RESERVED:
        assert f"`{word}`" in text
