"""A fault is shown at its place in the text."""

from __future__ import annotations

from cmask.grammar.diagnostic import CmaskError, Diagnostic
from cmask.grammar.source import NOWHERE, Source, Span


def test_carets_stand_under_the_span_where_the_line_has_tabs() -> None:
    source = Source("a.cmask", "mask m {\n\tregion\ttext\n}")
    start = source.text.index("text")
    shown = Diagnostic("code", "message", Span(start, start + 4)).render(source).splitlines()
    assert shown[3].index("text") == shown[4].index("^^^^")


def test_a_span_of_several_lines_is_marked_to_the_end_of_the_first() -> None:
    source = Source("a.cmask", "mask m {\nheads 0..1 {\n}\n}")
    shown = Diagnostic("code", "message", Span(9, 23)).render(source)
    assert shown.splitlines()[-1].count("^") == len("heads 0..1 {")


def test_a_fault_of_the_whole_mask_names_only_the_file() -> None:
    shown = Diagnostic("code", "message", NOWHERE, help="do this").render(Source("a.cmask", ""))
    assert shown == "error[code]: message\n --> a.cmask\n  = help: do this"


def test_an_error_holds_its_faults_in_source_order() -> None:
    late, early = (Diagnostic("code", "message", Span(n, n + 1)) for n in (8, 3))
    assert CmaskError([late, early]).diagnostics == (early, late)


def test_positions_count_lines_and_columns_from_one() -> None:
    source = Source("a.cmask", "ab\ncd\n")
    assert source.position(0) == (1, 1)
    assert source.position(4) == (2, 2)
    assert source.line(2) == "cd"
