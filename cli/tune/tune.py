"""A compiled mask: measured where there is a GPU, and its artifact written with what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from cmask.cli.bench import machine
from cmask.cli.bench.progress import Reporter
from cmask.cli.report import MASK_IS_WRONG, CommandFault
from cmask.cli.tune import report
from cmask.cli.tune.run import Device, Outcome, run, survey
from cmask.cli.tune.settings import TARGETS, Settings
from cmask.cli.tune.store import measured_before, with_winners
from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import Compilation, bind_source
from cmask.grammar.source import Source
from cmask.runtime.derive.bound import BoundMask
from cmask.runtime.derive.cost import USUAL_SHAPE, cheapest
from cmask.runtime.derive.sizes import UnboundError

INTERRUPTED = 130  # as shells have it


@dataclass(frozen=True)
class Tuned:
    """What a run has found.

    machine  None where nothing was measured
    bytes    of the artifact
    """

    outcome: Outcome
    machine: Mapping[str, str] | None
    bytes: int

    @property
    def code(self) -> int:
        """The exit code: 1 if what ships was wrong or failed."""
        if self.outcome.is_interrupted:
            return INTERRUPTED
        return 0 if self.outcome.is_sound else MASK_IS_WRONG

    def as_json(self) -> dict[str, Any]:
        """Every candidate with its time or its reason."""
        return {"bytes": self.bytes, **report.as_json(self.outcome, self.machine)}


def tune(
    source: Source, made: Compilation, settings: Settings, path: Path, *, quiet: bool
) -> Tuned:
    """Measure and write; without such a GPU, write what ships and say so.

    What an older artifact of the same mask holds of other devices and calls stays.
    quiet: print nothing on stdout.
    """
    before = measured_before(path, made.artifact)
    kept = with_winners(made.artifact, (), {}, before)
    _write(path, kept)
    if before and not quiet:
        typer.echo(f"{path} held {len(before)} measured configurations: those of other calls stay")
    why_not = _why_not(settings)
    if why_not:
        outcome = survey(settings, _forward_shape(source, settings))
        if not quiet:
            typer.echo("\n".join([why_not, *report.shipped_lines(outcome)]))
            typer.echo(f"{path}  {len(kept):,} bytes, not measured here")
        return Tuned(outcome, None, len(kept))
    return _measure(source, made, settings, path, quiet=quiet)


def _why_not(settings: Settings) -> str:
    """Why nothing can be measured; empty if something can."""
    if not torch.cuda.is_available():
        return "no CUDA device here: nothing is measured, the artifact carries what ships"
    target = _device().target
    if target not in settings.targets and target in TARGETS:
        asked = ", ".join(settings.targets)
        return f"the GPU here is {target}: nothing is measured for {asked}; what ships is carried"
    return ""


def _device() -> Device:
    from cmask.cli.tune.gpu import device_here

    return device_here()


def _measure(
    source: Source, made: Compilation, settings: Settings, path: Path, *, quiet: bool
) -> Tuned:
    from cmask.cli.tune.gpu import GpuStand

    facts = machine.describe()
    before = measured_before(path, made.artifact)
    stand = GpuStand(source, settings, cheapest(_bound(source, settings))[0])
    groups = len(settings.dtypes) * len(settings.head_dims) * len(settings.directions)
    size = path.stat().st_size

    def keep(outcome: Outcome) -> None:
        nonlocal size
        artifact = with_winners(made.artifact, outcome.groups, facts, before)
        _write(path, artifact)
        size = len(artifact)
        if not quiet:
            reporter.say("\n".join(report.group_lines(outcome.groups[-1])))

    with Reporter(groups, lambda group: []) as reporter:
        if not quiet:
            reporter.say(", ".join(f"{name} {value}" for name, value in facts.items()))
        reporter.watch()
        outcome = run(settings, stand, reporter, keep)
    if not quiet:
        typer.echo(f"{path}  {size:,} bytes")
    if outcome.is_interrupted:
        typer.echo("interrupted: what is above was measured", err=True)
    return Tuned(outcome, facts, size)


def _bound(source: Source, settings: Settings) -> BoundMask:
    """The mask at the sizes at which it is timed."""
    return bind_source(source, CompileOptions(seq=settings.seq, sizes=dict(settings.sizes)))


def _forward_shape(source: Source, settings: Settings) -> tuple[int, int]:
    """By the cost model; the usual one where a size has no value."""
    try:
        return cheapest(_bound(source, settings))[0]
    except UnboundError:
        return USUAL_SHAPE


def _write(path: Path, artifact: bytes) -> None:
    """A file that takes the place of an older one only once it is whole."""
    beside = path.with_name(path.name + ".part")
    try:
        beside.write_bytes(artifact)
        beside.replace(path)
    except OSError as error:
        raise CommandFault(f"{path} cannot be written: {error.strerror}") from None
