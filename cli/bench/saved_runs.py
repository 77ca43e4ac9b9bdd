"""`--report` and `--compare`: what is made of runs that were kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from cmask.cli.bench.compare import compare as compared
from cmask.cli.bench.page import made, with_parts_for
from cmask.cli.bench.parts import marks_of
from cmask.cli.bench.saved import read_run
from cmask.cli.report import CommandFault

DIFFERS = 1  # the exit code


def report(page: Path, names: Sequence[str]) -> int:
    """Make a page's parts anew; files that it does not name yet get parts at its end."""
    try:
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        if not text and not names:
            raise CommandFault(f"there is no {page}; name JSON files, and it is made of them")
        text = with_parts_for([Path(name) for name in names], page, text)
        found = made(page, text)
        found.write(page)
    except OSError as error:
        raise CommandFault(f"{error.filename} cannot be written: {error.strerror}") from None
    later = [mark.is_later for mark in marks_of(text)]
    typer.echo(f"{page}: parts made {later.count(False)}, left for later {later.count(True)}")
    for place in found.pictures:
        typer.echo(str(place))
    return 0


def compare(names: Sequence[str]) -> int:
    """Print the ratios of two runs side by side."""
    if len(names) != 2:
        raise CommandFault(f"--compare takes two JSON files, not {len(names)}")
    first, second = (read_run(Path(name)) for name in names)
    found = compared(first, second)
    if found.worst is None:
        raise CommandFault(f"{names[0]} and {names[1]} have no ratio in common")
    typer.echo("\n".join(found.lines()))
    return 0 if found.agrees else DIFFERS
