"""The `cmask` command: which commands there are."""

from __future__ import annotations

from typing import Annotated

import typer

from cmask.cli.bench.command import bench_command
from cmask.cli.check import check_command
from cmask.cli.compile import compile_command
from cmask.cli.explain import explain_command
from cmask.cli.inspect import inspect_command
from cmask.cli.list import list_command
from cmask.cli.show import show_command
from cmask.cli.tune.command import tune_command

app = typer.Typer(
    name="cmask",
    help="Compile attention masks: regions and rules in, one attention kernel's plan out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compile")(compile_command)
app.command("check")(check_command)
app.command("show")(show_command)
app.command("explain")(explain_command)
app.command("inspect")(inspect_command)
app.command("list")(list_command)
app.command("bench")(bench_command)
app.command("tune")(tune_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"cmask {version('cmask')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Compile attention masks: regions and rules in, one attention kernel's plan out."""
