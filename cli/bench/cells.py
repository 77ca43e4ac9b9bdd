"""Cells of a page's tables; one without a figure says why, in a footnote at length."""

from __future__ import annotations

from collections.abc import Sequence

from cmask.cli.bench import titles
from cmask.cli.bench.markdown import Notes
from cmask.cli.bench.rows import REGIMES, Group, Result, Samples, names_of
from cmask.cli.bench.settings import OURS
from cmask.cli.bench.table import NOTHING, pair


def of(group: Group, name: str) -> Result | None:
    """An implementation's result, if it was in the run."""
    return next((result for result in group.results if result.name == name), None)


def speed(group: Group, name: str, notes: Notes, *, eager: bool = False) -> str:
    """Useful TFLOP/s, rested / sustained; `eager`: of calls without a graph."""
    result = of(group, name)
    if result is None or not _times(result, eager).rested:
        return _without(result, notes)
    figures = pair(group.tflops(_times(result, eager), regime) for regime in REGIMES)
    return figures + _reservations(result, notes, eager)


def ratio(group: Group, name: str, notes: Notes, *, eager: bool = False) -> str:
    """How many times as fast cmask is."""
    ours, theirs = group.ours, of(group, name)
    for result in (ours, theirs):
        if result is None or not _times(result, eager).rested:
            return _without(result, notes)
    assert ours is not None
    assert theirs is not None
    speeds = [
        [group.tflops(_times(result, eager), regime) for result in (ours, theirs)]
        for regime in REGIMES
    ]
    figures = pair((a / b if a and b else None for a, b in speeds), digits=2)
    # a ratio of eager calls to a graph's replays is one of hosts as well
    return figures + (_reservations(theirs, notes, eager) if ours.mode != theirs.mode else "")


def host(group: Group, name: str, notes: Notes) -> str:
    """What an eager call costs the host [µs]."""
    result = of(group, name)
    if result is None or not result.eager.rested:
        return _without(result, notes)
    if result.host_us is None:
        return NOTHING + notes.mark("A call of more than 2 ms: its host time is hidden")
    return f"{result.host_us:.0f}"


def error(group: Group, notes: Notes) -> str:
    """Of cmask, against float64."""
    if group.ours is None or group.ours.error is None:
        return _without(group.ours, notes)
    return f"{group.ours.error:.1e}"


def with_figures(groups: Sequence[Group]) -> list[str]:
    """Implementations that were timed on at least one of the masks, spellings of one together."""
    timed = {result.name for group in groups for result in group.results if result.times.rested}
    names = [name for name in names_of(groups) if name in timed]
    bases = list(dict.fromkeys(name.partition(":")[0] for name in names))
    return sorted(names, key=lambda name: bases.index(name.partition(":")[0]))


def labels(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """(headings, words of each row): the mask, and what the rows do not have in common."""
    columns = {
        "mask": [titles.of_mask(group) for group in groups],
        "batch × tokens": [group.place for group in groups],
        "heads": [titles.of_heads(group) for group in groups],
    }
    kept = {name: cells for name, cells in columns.items() if name == "mask" or len(set(cells)) > 1}
    return list(kept), [list(row) for row in zip(*kept.values(), strict=True)]


def _times(result: Result, eager: bool) -> Samples:
    return result.eager if eager else result.times


def _without(result: Result | None, notes: Notes) -> str:
    if result is None:
        return NOTHING + notes.mark("Not run on this mask")
    if result.is_ok:
        return NOTHING + notes.mark("Not timed")
    who = titles.of_implementation(result.name)
    detail = result.detail or result.status
    return result.status + notes.mark(detail if result.name == OURS else f"{who}: {detail}")


def _reservations(result: Result, notes: Notes, eager: bool) -> str:
    """Footnotes of a figure that is not quite like its neighbours."""
    said = []
    if not result.is_ok:
        said.append(f"{result.status}: {result.detail}".rstrip(": "))
    if result.mode == "eager" and not eager:
        why = f": {result.no_graph}" if result.no_graph else ""
        said.append(f"Eager calls, for no graph could be captured{why}")
    return "˒".join(notes.mark(text) for text in said)
