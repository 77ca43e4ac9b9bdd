"""cmask compile: a mask to an artifact that the runtime loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cmask.cli.options import Json, MaskFile, Params, Seq, Sizes
from cmask.cli.report import reports_faults

if TYPE_CHECKING:
    from cmask.cli.tune.tune import Tuned
    from cmask.compiler.options import CompileOptions
    from cmask.compiler.pipeline import Compilation
    from cmask.grammar.source import Source


@reports_faults
def compile_command(
    file: MaskFile,
    seq: Seq = None,
    size: Sizes = None,
    param: Params = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The artifact; NAME.cmaskc here if left out."),
    ] = None,
    symbolic: Annotated[
        bool, typer.Option("--symbolic", help="Leave all sizes to be bound at run time.")
    ] = False,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Measure on this GPU, as `cmask tune` does with its defaults."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compile a mask to an artifact that the runtime loads."""
    import time

    from cmask.cli.inputs import or_exit, read_options, read_source
    from cmask.cli.report import print_diagnostics, print_json, working
    from cmask.compiler.pipeline import compile_source

    source = read_source(file)
    options = read_options(seq, size, param, symbolic=symbolic)
    started = time.perf_counter()
    with working(f"compiling {source.name}", quiet=as_json):
        made = or_exit(source, lambda: compile_source(source, options))
    seconds = time.perf_counter() - started
    target = output or Path(Path(file).name).with_suffix(".cmaskc")
    if not tune:
        _write(target, made.artifact)
    print_diagnostics(made.warnings, source)
    if not as_json:
        _print(made, target, seconds)
    tuned = _tune(source, made, options, target, quiet=as_json) if tune else None
    if as_json:
        print_json(_as_json(made, source, target, seconds, tuned))
    if tuned is not None:
        raise typer.Exit(tuned.code)


def _tune(
    source: Source, made: Compilation, options: CompileOptions, target: Path, *, quiet: bool
) -> Tuned:
    """The only part of this command that loads torch."""
    from cmask.cli.tune.command import usual_settings
    from cmask.cli.tune.tune import tune

    return tune(source, made, usual_settings(options), target, quiet=quiet)


def _write(target: Path, artifact: bytes) -> None:
    from cmask.cli.report import CommandFault

    try:
        target.write_bytes(artifact)
    except OSError as error:
        raise CommandFault(f"{target} cannot be written: {error.strerror}") from None


def _print(made: Compilation, target: Path, seconds: float) -> None:
    from cmask.cli.report import console, print_facts

    out = console()
    out.print(f"{target}  {len(made.artifact):,} bytes  in {seconds:.2f} s", style="bold")
    if made.all_facts:
        print_facts(made.variants, made.all_facts)
        return
    out.print("bound at run time, by load(...).bind(NAME=...)")
    if made.unbound:
        out.print(made.unbound)


def _as_json(
    made: Compilation, source: Source, target: Path, seconds: float, tuned: Tuned | None
) -> dict[str, Any]:
    from cmask.cli.report import all_facts_as_json, diagnostic_as_json

    tuning = {} if tuned is None else {"tuning": tuned.as_json()}
    return {
        "path": str(target),
        "bytes": len(made.artifact) if tuned is None else tuned.bytes,
        "seconds": round(seconds, 4),
        **all_facts_as_json(made.variants, made.all_facts),
        "warnings": [diagnostic_as_json(d, source) for d in made.warnings],
        **tuning,
    }
