"""A page in Markdown whose tables and plots are made from what `--json` wrote."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cmask.cli.bench import titles
from cmask.cli.bench.compare import compare
from cmask.cli.bench.length_tables import lengths_lines, paper_lines
from cmask.cli.bench.markdown import plain, provenance
from cmask.cli.bench.mask_tables import binding_lines, eager_lines, speed_lines
from cmask.cli.bench.parts import Part, chosen, marks_of, replaced
from cmask.cli.bench.plot import svg
from cmask.cli.bench.rows import Group
from cmask.cli.bench.saved import Run, read_run
from cmask.cli.report import CommandFault

_TABLES: dict[str, Callable[[Part, Sequence[Group]], list[str]]] = {
    "speed": speed_lines,
    "lengths": lengths_lines,
    "eager": eager_lines,
    "binding": binding_lines,
    "paper": paper_lines,
}
_NEW_PAGE = """# Attention by masks

Useful TFLOP/s, the work that a mask needs by time: 4 · heads · head_dim · visible pairs forward,
2.5 times that backward. Pairs of figures: rested / sustained, which is in bursts after pauses /
back to back. cmask ÷ it: how many times as fast cmask is.
"""


@dataclass(frozen=True)
class Page:
    """A page as it ought to be.

    pictures  plots by their places on disk, as SVG
    """

    text: str
    pictures: Mapping[Path, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """The page and its pictures.  Raises OSError."""
        for place, drawn in self.pictures.items():
            place.write_text(drawn, encoding="utf-8")
        path.write_text(self.text, encoding="utf-8")


def made(path: Path, text: str) -> Page:
    """The text with every part made anew; files are looked for from where `path` lies."""
    runs: dict[str, Run] = {}
    pictures: dict[Path, str] = {}

    def make(part: Part) -> str:
        for name in part.files:
            runs.setdefault(name, read_run(path.parent / name, name))
        mine = [runs[name] for name in part.files]
        if part.kind == "agreement":
            return "\n".join([*_agreement(mine), *provenance(mine, mine[0].groups)])
        groups = chosen(part, mine)
        if part.kind == "plot":
            place, drawn = _picture(part, mine, groups)
            pictures[path.parent / place] = drawn
            lines = [f"![{_alt(part, groups)}]({place})"]
        else:
            lines = _TABLES[part.kind](part, groups)
        return "\n".join([*lines, *_gaps(part, mine), *provenance(mine, groups)])

    return Page(replaced(text, make), pictures)


def with_parts_for(files: Sequence[Path], path: Path, text: str) -> str:
    """The text, and at its end the parts of files that it does not name yet."""
    known = {name for mark in marks_of(text) for name in mark.part.files}
    for file in files:
        name = Path(os.path.relpath(file, path.parent)).as_posix()
        if name not in known:
            text = (text or _NEW_PAGE) + _section(read_run(file, name))
    return text


def _section(run: Run) -> str:
    """Empty parts, of all that the run has figures for."""
    lines = ["", f"## {Path(run.name).stem}"]
    for direction in dict.fromkeys(group.direction for group in run.groups):
        groups = [group for group in run.groups if group.direction == direction]
        kinds = ["speed"]
        kinds += ["plot"] if len({group.seq for group in groups}) > 1 else []
        kinds += ["binding"] if any(group.binding for group in groups) else []
        kinds += ["paper"] if run.settings.get("paper") and direction == "fwd" else []
        word = titles.DIRECTIONS[direction]
        lines += ["", f"### {word.capitalize()}"]
        for kind in kinds:
            lines += ["", f"<!-- bench: {kind} {run.name} {word} -->", "<!-- end -->"]
    return "\n".join(lines) + "\n"


def _agreement(runs: Sequence[Run]) -> list[str]:
    """How far two runs of one command differ."""
    if len(runs) != 2:
        raise CommandFault("agreement takes two files")
    found = compare(*runs)
    if found.worst is None:
        raise CommandFault("the two files have no ratio in common")
    worst = found.worst
    return [
        f"Of {len(found.pairs)} ratios of cmask to a peer, the largest difference between "
        f"two runs is {worst.difference:.1%}:",
        f"{worst.first:.2f} and {worst.second:.2f} for {plain(worst.where)} "
        f"÷ {plain(titles.of_implementation(worst.peer))}, {worst.regime}.",
    ]


def _picture(part: Part, runs: Sequence[Run], groups: Sequence[Group]) -> tuple[str, str]:
    """(place relative to the page, SVG)."""
    word = titles.DIRECTIONS[part.direction]
    place = part.svg or f"{part.files[0].removesuffix('.json')}-{word}.svg"
    gpus = " or ".join(dict.fromkeys(run.machine.get("gpu", "a GPU") for run in runs))
    dtypes = " or ".join(dict.fromkeys(str(run.settings["dtype"]) for run in runs))
    shown = [_only(group, part.columns) for group in groups] if part.columns else groups
    return place, svg(shown, f"Attention {word} on {gpus}, {dtypes}, rested")


def _only(group: Group, names: Sequence[str]) -> Group:
    return replace(group, results=tuple(r for r in group.results if r.name in names))


def _alt(part: Part, groups: Sequence[Group]) -> str:
    masks = dict.fromkeys(titles.MASKS.get(group.mask, group.mask) for group in groups)
    word = titles.DIRECTIONS[part.direction]
    return f"TFLOP/s by length, {word}: {plain(', '.join(masks))}"


def _gaps(part: Part, runs: Sequence[Run]) -> list[str]:
    """What of the part a run was to measure and did not."""
    lines = []
    for run in runs:
        names = [n for n in run.left_out if not part.masks or n.split()[0] in part.masks]
        said = f": without {plain(', '.join(names))}" if names else ""
        if run.is_interrupted:
            lines.append(f"The run was interrupted{said}.")
        elif said:
            lines.append(f"The run's time did not suffice{said}.")
    return ["", *lines] if lines else []
