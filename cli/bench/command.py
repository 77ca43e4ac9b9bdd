"""cmask bench: what people type, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cmask.cli.bench import settings as given
from cmask.cli.options import Params, Sizes
from cmask.cli.report import MASK_IS_WRONG, CommandFault, reports_faults
from cmask.cli.values import ValueFault, parse_count

if TYPE_CHECKING:
    from cmask.cli.bench.case import Case
    from cmask.cli.bench.run import Outcome
    from cmask.cli.bench.settings import Settings

INTERRUPTED = 130  # as shells have it
PAPER_MASKS = ("causal", "hstu", "shared_prompt", "clear_r16")
PAPER_LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)

T = TypeVar("T")


def _option(names: str, metavar: str, help_: str) -> Any:
    return typer.Option(names, metavar=metavar, help=help_, show_default=False)


@reports_faults
def bench_command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]…",
            help="Masks by name, or .cmask files; eight usual masks if left out. With --report or "
            "--compare: JSON files that --json wrote.",
        ),
    ] = None,
    seq: Annotated[str, _option("--seq", "N,…", "Lengths: 1k,8k,32k; 32k if left out.")] = "",
    tokens: Annotated[str, _option("--tokens", "N", "Batch × length; 32k if left out.")] = "32k",
    heads: Annotated[str, _option("--heads", "Q/KV", "Heads: 16, or 64/8.")] = "16",
    head_dim: Annotated[str, _option("--head-dim", "D/DV", "Of q and k, of v: 192/128.")] = "128",
    dtype: Annotated[str, _option("--dtype", "TYPE", "bf16 or fp16.")] = "bf16",
    direction: Annotated[str, _option("--direction", "fwd,bwd", "Both if left out.")] = "fwd,bwd",
    against: Annotated[
        str, _option("--against", "PEER,…", f"Of {', '.join(given.PEERS)}; or none.")
    ] = "",
    kernels: Annotated[
        list[str] | None,
        _option("--kernels", "NAME=KERNEL", "More columns of cmask, by gluon or triton."),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic", help="One more column of cmask: gradients that repeat bit for bit."
        ),
    ] = False,
    rounds: Annotated[str, _option("--rounds", "R,S", "Rounds rested, sustained; 4,2.")] = "4,2",
    calls: Annotated[
        str, _option("--calls", "graph,eager", "Graph replays, plain calls; both if left out.")
    ] = "graph,eager",
    cold_l2: Annotated[
        bool, typer.Option("--cold-l2", help="Overwrite the L2 cache before every call.")
    ] = False,
    budget: Annotated[
        float, _option("--budget", "SECONDS", "Start no mask after so long; 1200.")
    ] = given.BUDGET_S,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's masks and lengths, beside its figures.")
    ] = False,
    size: Sizes = None,
    param: Params = None,
    json_file: Annotated[
        Path | None, _option("--json", "FILE", "Write every sample and figure as JSON.")
    ] = None,
    plot: Annotated[
        Path | None, _option("--plot", "FILE", "Draw speed against length as SVG.")
    ] = None,
    report: Annotated[
        Path | None,
        _option(
            "--report", "PAGE", "Make the tables and plots of a Markdown page; measure nothing."
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Two runs' ratios; exit code 1 if one differs by over 3%."),
    ] = False,
) -> None:
    """Measure attention by masks next to FlexAttention, SDPA and FlashAttention 4."""
    if report is not None or compare:
        raise typer.Exit(_of_saved(tuple(files or ()), report, compare=compare))
    from cmask.cli.inputs import read_options

    settings = given.Settings(
        files=tuple(files or (PAPER_MASKS if paper else ())),
        lengths=_read(given.parse_lengths, seq) if seq else _usual_lengths(paper),
        tokens=_read(parse_count, tokens),
        heads=_read(given.parse_heads, heads),
        dims=_read(lambda text: given.parse_pair(text, "--head-dim"), head_dim),
        dtype=_read(given.parse_dtype, dtype),
        directions=_read(given.parse_directions, direction),
        against=_read(given.parse_peers, against) if against else None,
        kernels=_read(given.parse_kernels, tuple(kernels or ())),
        deterministic=deterministic,
        rounds=_read(given.parse_rounds, rounds),
        calls=_read(given.parse_calls, calls),
        cold_l2=cold_l2,
        budget_s=budget,
        sizes=read_options(None, size, param).sizes,
        paper=paper,
        json=json_file,
        plot=plot,
    )
    raise typer.Exit(_bench(settings))


def _of_saved(names: Sequence[str], page: Path | None, *, compare: bool) -> int:
    """What is made of runs that were kept; torch is not loaded."""
    from cmask.cli.bench import saved_runs

    wrong = next((name for name in names if not name.endswith(".json")), None)
    if wrong is not None:
        raise CommandFault(f"`{wrong}` is no JSON file; --report and --compare measure nothing")
    if page is None:
        return saved_runs.compare(names)
    if compare:
        raise CommandFault("give --report or --compare, not both")
    return saved_runs.report(page, names)


def _usual_lengths(paper: bool) -> tuple[int, ...]:
    return PAPER_LENGTHS if paper else given.Settings.lengths


def _read(parse: Callable[[Any], T], text: Any) -> T:
    try:
        return parse(text)
    except ValueFault as fault:
        raise CommandFault(str(fault)) from None


def _bench(settings: Settings) -> int:
    """The exit code: 1 if cmask was wrong or failed."""
    import torch

    for path in (settings.json, settings.plot):
        if path is not None and not path.parent.is_dir():
            raise CommandFault(f"there is no folder {path.parent} for {path.name}")
    cases = _cases(settings)
    if not torch.cuda.is_available():
        return _survey(settings, cases)
    return _measure(settings, cases)


def _cases(settings: Settings) -> list[Case]:
    from cmask.cli.bench.cases import USUAL

    names = settings.files or USUAL
    made = [_case(name, seq, settings) for seq in settings.lengths for name in names]
    return list({(case.name, case.seq, case.source.name): case for case in made}.values())


def _case(name: str, seq: int, settings: Settings) -> Case:
    """A mask by its name, unless there is a file of that name or sizes are given."""
    from cmask.cli.bench.cases import ALIASES, CASES
    from cmask.cli.bench.file_case import of_file
    from cmask.cli.inputs import or_exit, read_source

    known = ALIASES.get(name, name)
    if known in CASES and not Path(name).is_file():
        if settings.sizes:
            raise CommandFault(f"`{name}` has sizes of its own here; give a .cmask file for others")
        return CASES[known](seq)
    source = read_source(name)
    try:
        return or_exit(source, lambda: of_file(source, seq, settings.sizes))
    except ValueFault as fault:
        raise CommandFault(str(fault)) from None


def _survey(settings: Settings, cases: Sequence[Case]) -> int:
    from cmask.cli.bench.record import write_json
    from cmask.cli.bench.survey import HEADING, as_json, survey

    typer.echo(
        "no CUDA device here: nothing is timed but binding; blocks of 128 × 128, on the host"
    )
    typer.echo(HEADING)
    found = []
    try:
        for case in cases:
            found.append(survey(case))
            typer.echo(found[-1].line())
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        return INTERRUPTED
    finally:
        if settings.json is not None:
            _written(settings.json, lambda path: write_json(path, as_json(found)))
    if settings.plot is not None:
        typer.echo(f"{settings.plot} was not written: there is no speed to draw", err=True)
    return 0


def _measure(settings: Settings, cases: Sequence[Case]) -> int:
    import warnings

    from cmask.cli.bench import machine, record, table
    from cmask.cli.bench.gpu import GpuStand
    from cmask.cli.bench.progress import Reporter
    from cmask.cli.bench.run import run

    warnings.filterwarnings("ignore")  # of peers, while they compile
    facts = machine.describe()

    def keep(outcome: Outcome) -> None:
        if settings.json is not None:
            path = settings.json
            _written(path, lambda path: record.write(path, facts, settings, outcome))

    with Reporter(len(cases), table.group_lines) as reporter:
        reporter.say(", ".join(f"{name} {value}" for name, value in facts.items()))
        reporter.say("\n".join(table.LEGEND))
        reporter.watch()
        outcome = run(cases, settings, GpuStand(settings), reporter, keep)
    return conclude(settings, outcome, facts["gpu"])


def conclude(settings: Settings, outcome: Outcome, gpu: str) -> int:
    """The summary, the plot, and the exit code."""
    from cmask.cli.bench import table
    from cmask.cli.bench.plot import svg

    lines = table.summary_lines(outcome.groups)
    lines += table.paper_lines(outcome.groups) if settings.paper else []
    typer.echo("\n".join(lines))
    if outcome.left_out:
        typer.echo(f"left out: {', '.join(outcome.left_out)}", err=True)
    if settings.plot is not None and outcome.groups:
        drawn = svg(outcome.groups, f"Attention on {gpu}, {settings.dtype}, rested")
        _written(settings.plot, lambda path: path.write_text(drawn, encoding="utf-8"))
    if outcome.is_interrupted:
        typer.echo("interrupted: what is above was measured", err=True)
        return INTERRUPTED
    return 0 if outcome.is_sound else MASK_IS_WRONG


def _written(path: Path, write: Callable[[Path], object]) -> None:
    try:
        write(path)
    except OSError as error:
        raise CommandFault(f"{path} cannot be written: {error.strerror}") from None
