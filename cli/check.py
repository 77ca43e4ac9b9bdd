"""cmask check: diagnostics and facts, no artifact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cmask.cli.options import Json, MaskFile, Params, Seq, Sizes
from cmask.cli.report import MASK_IS_WRONG, reports_faults

if TYPE_CHECKING:
    from cmask.compiler.options import CompileOptions
    from cmask.grammar.source import Source


@reports_faults
def check_command(
    file: MaskFile,
    seq: Seq = None,
    size: Sizes = None,
    param: Params = None,
    as_json: Json = False,
) -> None:
    """Check a mask: its faults, or its facts."""
    from cmask.cli.inputs import or_exit, read_options, read_source
    from cmask.cli.report import facts_in_words, print_diagnostics, print_pairs, working
    from cmask.compiler.pipeline import compile_source

    source, options = read_source(file), read_options(seq, size, param)
    if as_json:
        _check_as_json(source, options)
        return
    with working(f"checking {source.name}"):
        made = or_exit(source, lambda: compile_source(source, options))
    print_diagnostics(made.warnings, source)
    if made.facts is not None:
        print_pairs(facts_in_words(made.facts))


def _check_as_json(source: Source, options: CompileOptions) -> None:
    """Faults and facts on stdout, so that a program reads one stream."""
    from cmask.cli.report import diagnostic_as_json, facts_as_json, print_json
    from cmask.compiler.pipeline import compile_source
    from cmask.grammar.diagnostic import CmaskError

    try:
        made = compile_source(source, options)
    except CmaskError as error:
        faults = [diagnostic_as_json(d, source) for d in error.diagnostics]
        print_json({"diagnostics": faults, "facts": None})
        raise typer.Exit(MASK_IS_WRONG) from None
    print_json(
        {
            "diagnostics": [diagnostic_as_json(d, source) for d in made.warnings],
            "facts": None if made.facts is None else facts_as_json(made.facts),
        }
    )
