"""Tables of a page with a column a length: ratios by length, and the paper's masks."""

from __future__ import annotations

from collections.abc import Sequence

from cmask.cli.bench import cells, titles
from cmask.cli.bench.markdown import Notes, table
from cmask.cli.bench.parts import Part
from cmask.cli.bench.rows import Group, count
from cmask.cli.bench.settings import OURS
from cmask.cli.bench.table import NOTHING, paper_figure
from cmask.cli.report import CommandFault

Place = tuple[int, int]

_QUOTED = """The paper's column is quoted from it, one figure a mask, whatever the length.
Its hardware and versions are its own; ours are below."""


def lengths_lines(part: Part, groups: Sequence[Group]) -> list[str]:
    """A line a mask; by length cmask's speed and how many times as fast as each peer it is."""
    notes, places = Notes(), _places(groups)
    peers = part.against or [name for name in cells.with_figures(groups) if name != OURS]
    head = ["mask"]
    for batch, seq in places:
        head += [f"{batch} × {count(seq)}"]
        head += [f"÷ {titles.of_implementation(peer)}" for peer in peers]
    rows = []
    for mine in _by_mask(groups):
        row = [titles.of_mask(*mine)]
        for place in places:
            row += _of_length(mine, place, peers, notes)
        rows.append(row)
    return [*table(head, rows), *notes.lines()]


def paper_lines(_: Part, groups: Sequence[Group]) -> list[str]:
    """A line a mask that the paper has: the same ratio by length, and the paper's figure."""
    notes, places = Notes(), _places(groups)
    rows = []
    for mine in _by_mask(groups):
        found = paper_figure(mine[0].mask)
        if found is not None:
            peer, figure = found
            ratios = [_of_length(mine, place, [peer], notes)[-1] for place in places]
            rows.append(
                [f"{titles.of_mask(*mine)} ÷ {titles.of_implementation(peer)}", figure, *ratios]
            )
    if not rows:
        raise CommandFault("none of the paper's masks is in the run; see `cmask bench --paper`")
    head = ["cmask ÷ peer", "paper", *(f"{batch} × {count(seq)}" for batch, seq in places)]
    return [*table(head, rows), *notes.lines(), "", _QUOTED]


def _places(groups: Sequence[Group]) -> list[Place]:
    """All (batch, tokens), short ones first."""
    return sorted({(group.batch, group.seq) for group in groups}, key=lambda place: place[1])


def _by_mask(groups: Sequence[Group]) -> list[list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.mask, []).append(group)
    return list(found.values())


def _of_length(
    groups: Sequence[Group], place: Place, peers: Sequence[str], notes: Notes
) -> list[str]:
    group = next((each for each in groups if (each.batch, each.seq) == place), None)
    if group is None:
        return [NOTHING + notes.mark("Not in this run")] * (1 + len(peers))
    ratios = [cells.ratio(group, peer, notes) for peer in peers]
    return [cells.speed(group, OURS, notes), *ratios]
