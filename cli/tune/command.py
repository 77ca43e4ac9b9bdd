"""cmask tune: what people type, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cmask.cli.options import Json, MaskFile, Params, Seq, Sizes
from cmask.cli.report import CommandFault, reports_faults
from cmask.cli.values import ValueFault, parse_count

if TYPE_CHECKING:
    from cmask.cli.tune.settings import Settings
    from cmask.compiler.options import CompileOptions

T = TypeVar("T")


def _option(names: str, metavar: str, help_: str) -> Any:
    return typer.Option(*names.split(), metavar=metavar, help=help_, show_default=False)


@reports_faults
def tune_command(
    file: MaskFile,
    seq: Seq = None,
    size: Sizes = None,
    param: Params = None,
    target: Annotated[
        str, _option("--target", "SM,…", "Whose configurations: sm_90; all three if left out.")
    ] = "sm_80,sm_90,sm_100",
    output: Annotated[
        Path | None,
        _option("--out --output -o", "FILE", "The artifact; NAME.cmaskc here if left out."),
    ] = None,
    tokens: Annotated[str, _option("--tokens", "N", "Batch × length; 32k if left out.")] = "32k",
    heads: Annotated[str, _option("--heads", "Q/KV", "Heads: 16, or 64/8.")] = "16",
    head_dim: Annotated[str, _option("--head-dim", "D,…", "128, or 64,128.")] = "128",
    dtype: Annotated[str, _option("--dtype", "TYPE,…", "Of bf16, fp16, fp32.")] = "bf16",
    direction: Annotated[str, _option("--direction", "fwd,bwd", "Both if left out.")] = "fwd,bwd",
    kernels: Annotated[
        str, _option("--kernels", "NAME,…", "Candidates of gluon, triton; both if left out.")
    ] = "gluon,triton",
    rounds: Annotated[int, typer.Option("--rounds", min=3, help="Of each candidate.")] = 6,
    budget: Annotated[
        float, _option("--budget", "SECONDS", "Begin no candidate after so long; 900.")
    ] = 900.0,
    symbolic: Annotated[
        bool, typer.Option("--symbolic", help="Leave all sizes to be bound at run time.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find the fastest kernel configurations for a mask on this GPU, and store them."""
    from cmask.cli.bench import settings as of_bench
    from cmask.cli.inputs import DEFAULT_SEQ, or_exit, read_options, read_source
    from cmask.cli.report import print_diagnostics, print_json
    from cmask.cli.tune import settings as given
    from cmask.cli.tune.tune import tune
    from cmask.compiler.pipeline import compile_source

    source = read_source(file)
    options = read_options(seq, size, param, symbolic=symbolic)
    settings = given.Settings(
        seq=DEFAULT_SEQ if seq is None else seq,
        sizes=options.sizes,
        targets=_read(given.parse_targets, target),
        tokens=_read(parse_count, tokens),
        heads=_read(of_bench.parse_heads, heads),
        head_dims=_read(given.parse_head_dims, head_dim),
        dtypes=_read(given.parse_dtypes, dtype),
        directions=_read(of_bench.parse_directions, direction),
        kernels=_read(given.parse_kernels, kernels),
        rounds=rounds,
        budget_s=budget,
    )
    options = options.model_copy(update={"targets": settings.targets})
    made = or_exit(source, lambda: compile_source(source, options))
    print_diagnostics(made.warnings, source)
    path = output or Path(Path(file).name).with_suffix(".cmaskc")
    tuned = tune(source, made, settings, path, quiet=as_json)
    if as_json:
        print_json({"path": str(path), **tuned.as_json()})
    raise typer.Exit(tuned.code)


def usual_settings(options: CompileOptions) -> Settings:
    """Those of `cmask compile --tune`."""
    from cmask.cli.inputs import DEFAULT_SEQ
    from cmask.cli.tune.settings import Settings

    seq = DEFAULT_SEQ if options.seq is None else options.seq
    return Settings(seq=seq, sizes=options.sizes, targets=options.targets)


def _read(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueFault as fault:
        raise CommandFault(str(fault)) from None
