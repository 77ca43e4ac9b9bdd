"""cmask check: diagnostics and facts, no artifact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cmask.cli.options import Json, MaskFile, Params, Seq, Sizes
from cmask.cli.report import MASK_IS_WRONG, reports_faults

if TYPE_CHECKING:
    from cmask.grammar.diagnostic import CmaskError
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
    from cmask.cli.inputs import read_options, read_source
    from cmask.cli.report import (
        all_facts_as_json,
        console,
        diagnostic_as_json,
        print_diagnostics,
        print_facts,
        print_json,
        working,
    )
    from cmask.compiler.pipeline import compile_source
    from cmask.grammar.diagnostic import CmaskError

    source, options = read_source(file), read_options(seq, size, param)
    try:
        with working(f"checking {source.name}", quiet=as_json):
            made = compile_source(source, options)
    except CmaskError as error:
        _report(error, source, as_json=as_json)
        raise typer.Exit(MASK_IS_WRONG) from None
    if as_json:
        warnings = [diagnostic_as_json(d, source) for d in made.warnings]
        facts = all_facts_as_json(made.variants, made.all_facts)
        print_json({"diagnostics": warnings, **facts})
        return
    print_diagnostics(made.warnings, source)
    if made.all_facts:
        print_facts(made.variants, made.all_facts)
    else:
        console().print(f"no faults; for facts, {made.unbound}")


def _report(error: CmaskError, source: Source, *, as_json: bool) -> None:
    """Faults on stderr for people; on stdout for programs, which read one stream."""
    from cmask.cli.report import diagnostic_as_json, print_diagnostics, print_json

    if as_json:
        faults = [diagnostic_as_json(d, source) for d in error.diagnostics]
        print_json({"diagnostics": faults, "facts": None})
    else:
        print_diagnostics(error.diagnostics, source)
