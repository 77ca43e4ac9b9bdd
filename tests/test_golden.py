"""Diagnostics are printed as tests/golden/diagnostics.md shows them."""

from __future__ import annotations

import re
from pathlib import Path

from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.grammar.diagnostic import CmaskError
from cmask.grammar.source import Source
from support.documents import blocks_of, pairs, replace

ROOT = Path(__file__).parent.parent
DIAGNOSTICS = ROOT / "tests" / "golden" / "diagnostics.md"
# the first argument of Diagnostic, Faults.error, Faults.warning and the small makers on top
_RAISED = re.compile(
    r'(?:\bDiagnostic|\.error|\.warning|_warning|_fault)\(\s*(?:tree, |code=)?"([a-z][a-z-]+)"'
)


def printed(text: str) -> str:
    """All that the compiler says about a mask."""
    source = Source("mask.cmask", text)
    try:
        found = compile_source(source, CompileOptions(seq=64)).warnings
    except CmaskError as error:
        found = error.diagnostics
    return "\n\n".join(diagnostic.render(source) for diagnostic in found) + "\n"


def test_diagnostics_read_as_in_the_golden_file(update_golden: bool) -> None:
    text = DIAGNOSTICS.read_text(encoding="utf-8")
    examples = [(out, printed(mask.text)) for mask, out in pairs(text, "cmask", "text")]
    if update_golden:
        replace(DIAGNOSTICS, examples)
    else:
        for expected, found in examples:
            assert found == expected.text


def test_every_code_in_the_sources_has_a_golden_example() -> None:
    files = [file for part in ("grammar", "compiler") for file in (ROOT / part).glob("*.py")]
    raised = {code for file in files for code in _RAISED.findall(file.read_text(encoding="utf-8"))}
    shown = "".join(
        block.text
        for block in blocks_of(DIAGNOSTICS.read_text(encoding="utf-8"))
        if block.language == "text"
    )
    assert raised == set(re.findall(r"^(?:error|warning)\[([a-z-]+)\]", shown, re.MULTILINE))


def test_every_section_of_the_golden_file_shows_the_fault_it_is_named_for() -> None:
    text = DIAGNOSTICS.read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        code = section.split("\n", 1)[0]
        outputs = [out.text for _, out in pairs(section, "cmask", "text")]
        assert outputs
        assert all(f"[{code}]" in output for output in outputs), code
