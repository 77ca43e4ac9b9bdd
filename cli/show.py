"""cmask show: a picture of a mask, of its intervals, its blocks or its rules."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cmask.cli.options import Head, MaskFile, Params, Seq, Sizes
from cmask.cli.report import CommandFault, reports_faults

if TYPE_CHECKING:
    from cmask.cli.picture import Picture
    from cmask.runtime.derive.bound import BoundMask

_BLOCK = (128, 128)


class Stage(StrEnum):
    """How far to compile before showing."""

    mask = "mask"
    rules = "rules"
    intervals = "intervals"
    blocks = "blocks"


@reports_faults
def show_command(
    file: MaskFile,
    seq: Seq = None,
    size: Sizes = None,
    param: Params = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A picture: NAME.png or NAME.svg.")
    ] = None,
    stage: Annotated[Stage, typer.Option(help="What to show.")] = Stage.mask,
    head: Head = None,
) -> None:
    """Show a mask: in the terminal, or as PNG or SVG by the ending of -o."""
    from cmask.cli.inputs import bind_file, read_options, read_source
    from cmask.cli.report import working

    if output is not None and output.suffix not in (".png", ".svg"):
        raise CommandFault(f"{output} is no picture: it must end in .png or .svg")
    if output is not None and stage in (Stage.rules, Stage.intervals):
        raise CommandFault(f"--stage {stage.value} is text: leave -o out")
    source = read_source(file)
    with working(f"binding {source.name}"):
        bound = bind_file(source, read_options(seq, size, param), head)
    if not (bound.q_len and bound.kv_len):
        raise CommandFault(f"{bound.q_len} queries × {bound.kv_len} keys: there is nothing to show")
    match stage:
        case Stage.rules:
            _show_rules(bound)
        case Stage.intervals:
            _show_intervals(bound)
        case Stage.mask | Stage.blocks if output is not None:
            _save(bound, stage, output)
        case Stage.mask | Stage.blocks:
            _show_picture(bound, stage)


def _draw(bound: BoundMask, stage: Stage, cells: tuple[int, int]) -> Picture:
    from cmask.cli.picture import draw, draw_blocks
    from cmask.cli.report import working

    with working("drawing"):
        if stage is Stage.blocks:
            return draw_blocks(bound, _BLOCK, *cells)
        return draw(bound, *cells)


def _show_picture(bound: BoundMask, stage: Stage) -> None:
    from cmask.cli.report import console
    from cmask.cli.terminal import cells_for, fits_as_marks, legend, lines

    out = console()
    coloured = out.color_system is not None and not out.no_color
    q_len, kv_len = bound.q_len, bound.kv_len
    if stage is Stage.mask and fits_as_marks(q_len, kv_len, out.width):
        cells = (q_len, kv_len)
    else:
        if stage is Stage.blocks:
            descriptor = bound.descriptor(*_BLOCK)
            q_len, kv_len = descriptor.num_q_blocks, descriptor.num_kv_blocks
        cells = cells_for(q_len, kv_len, out.width, coloured=coloured)
    picture = _draw(bound, stage, cells)
    for line in lines(picture, coloured=coloured):
        out.print(line)
    out.print(legend(picture))
    out.print(_scale(bound, picture, stage), style="dim")


def _scale(bound: BoundMask, picture: Picture, stage: Stage) -> str:
    """How large the mask is, and how many pairs a cell stands for."""
    if stage is Stage.blocks:
        order = " in the order that kernels work in" if bound.is_permuted else ""
        return f"blocks of {_BLOCK[0]} queries × {_BLOCK[1]} keys{order}"
    whole = f"{bound.form.name}: {bound.q_len:,} queries × {bound.kv_len:,} keys"
    if picture.is_exact:
        return whole
    rows = -(-bound.q_len // (len(picture.q_edges) - 1))
    columns = -(-bound.kv_len // (len(picture.k_edges) - 1))
    return f"{whole}, a cell is about {rows:,} × {columns:,}"


def _save(bound: BoundMask, stage: Stage, output: Path) -> None:
    from cmask.cli.image import PNG_CELLS, SVG_CELLS, png, svg
    from cmask.cli.report import console

    most = PNG_CELLS if output.suffix == ".png" else SVG_CELLS
    picture = _draw(bound, stage, (most, most))
    title = f"{bound.form.name}, {bound.q_len:,} queries × {bound.kv_len:,} keys"
    data = png(picture) if output.suffix == ".png" else svg(picture, title).encode()
    try:
        output.write_bytes(data)
    except OSError as error:
        raise CommandFault(f"{output} cannot be written: {error.strerror}") from None
    console().print(f"{output}  {len(data):,} bytes")


def _show_rules(bound: BoundMask) -> None:
    from cmask.cli.explain import rule_lines
    from cmask.cli.report import console

    for line in rule_lines(bound.form, {}):
        console().print(line)


def _show_intervals(bound: BoundMask) -> None:
    """The intervals of rows that are spread over every region instance, first and last ones."""
    from cmask.cli.explain import region_of, runs_in_words, runs_of_row
    from cmask.cli.report import print_pairs

    print_pairs(
        [
            (f"{row} {region_of(bound, row, 'q')}", runs_in_words(runs_of_row(bound, row)))
            for row in _telling_rows(bound)
        ]
    )


def _telling_rows(bound: BoundMask, most: int = 24) -> list[int]:
    ends = {s.q_start for s in bound.segments if s.q_start < s.q_stop}
    ends |= {s.q_stop - 1 for s in bound.segments if s.q_start < s.q_stop}
    spread = {i * (bound.q_len - 1) // 11 for i in range(12)}
    rows = sorted(ends | spread)
    if len(rows) <= most:
        return rows
    return [rows[i * (len(rows) - 1) // (most - 1)] for i in range(most)]
