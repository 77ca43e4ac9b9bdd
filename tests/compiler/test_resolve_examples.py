"""Masks that people use are written in the language without a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmask.compiler.resolve import resolve_with_warnings
from cmask.grammar.diagnostic import CmaskError
from cmask.grammar.parser import parse
from cmask.grammar.source import Source
from support.documents import blocks_of

EXAMPLES = blocks_of((Path(__file__).parent / "examples.md").read_text(encoding="utf-8"))
LATER = {
    "block_topk",
    "flamingo_intervals",
    "natten_morton",
    "random_eviction",
    "vsa_topk",
}
MASKS = [parse(Source("example.cmask", block.text)).name.text for block in EXAMPLES]


@pytest.mark.parametrize("text", [block.text for block in EXAMPLES], ids=MASKS)
def test_an_example_resolves_or_waits_for_a_later_version(text: str) -> None:
    source = Source("example.cmask", text)
    tree = parse(source)
    if tree.name.text in LATER:
        with pytest.raises(CmaskError) as caught:
            resolve_with_warnings(tree, source)
        assert {d.code for d in caught.value.diagnostics} == {"not-yet"}
        return
    mask, warnings = resolve_with_warnings(tree, source)
    assert mask.rules
    assert not warnings
