"""Pieces of a page: tables, footnotes, and on what machine their figures were measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cmask.cli.bench import titles
from cmask.cli.bench.rows import Group
from cmask.cli.bench.saved import Run

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_MISSING = ("missing", "unknown", "none", "None")
# of the machine's facts, those with names of their own; the others are as in the file
_NAMES = {"torch": "PyTorch", "cuda": "CUDA", "triton": "Triton", "cudnn": "cuDNN",
          "python": "Python"}  # fmt: skip


class Notes:
    """Footnotes of one part of a page, each text once."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}

    def mark(self, text: str) -> str:
        """What stands behind a cell."""
        number = self._texts.setdefault(text, len(self._texts) + 1)
        return str(number).translate(_RAISED)

    def lines(self) -> list[str]:
        """Below the table; nothing if there are none."""
        said = [f"{str(n).translate(_RAISED)} {plain(text)}" for text, n in self._texts.items()]
        return ["", ".\n".join(said) + "."] if said else []


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> list[str]:
    """A table whose first columns hold words, the others figures.

    >>> table(["mask", "ms"], [["full", "1"]])
    ['| mask | ms |', '| --- | --: |', '| full | 1 |']
    """
    rules = ["---"] * words + ["--:"] * (len(head) - words)
    return ["| " + " | ".join(cells) + " |" for cells in (head, rules, *rows)]


def plain(text: str) -> str:
    r"""Words of others, so that Markdown leaves them as they are.

    >>> plain("a_b <c> | d.")
    'a\\_b &lt;c&gt; \\| d'
    """
    for found, put in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(found, put)
    return "".join(f"\\{c}" if c in "\\`*_[]|" else c for c in text).rstrip(".")


def provenance(runs: Sequence[Run], groups: Sequence[Group]) -> list[str]:
    """Device, versions, date, what was measured and how, and where the figures are."""
    machines: dict[str, list[Run]] = {}
    for run in runs:
        machines.setdefault(_machine(run.machine), []).append(run)
    said = [
        f"{machine}; {', '.join(dict.fromkeys(_date(run) for run in mine))}"
        for machine, mine in machines.items()
    ]
    files = ", ".join(f"[{run.name.rpartition('/')[2]}]({run.name})" for run in runs)
    return ["", ".\n".join([*said, _measured(runs, groups), f"Figures: {files}"]) + "."]


def _machine(facts: Mapping[str, str]) -> str:
    """All but the date, where the run says it."""
    known = {name: value for name, value in facts.items() if value not in _MISSING}
    if "cudnn" in known:
        known["cudnn"] = _cudnn(known["cudnn"])
    others = [
        f"{_NAMES.get(name, name)} {value}"
        for name, value in known.items()
        if name not in ("gpu", "date")
    ]
    return ", ".join([known.get("gpu", "no device"), *others])


def _cudnn(number: str) -> str:
    """The number that cuDNN gives itself, as a version.

    >>> _cudnn("91900"), _cudnn("8907")
    ('9.19.0', '8.9.7')
    """
    if not number.isdigit():
        return number
    major, rest = divmod(int(number), 10000 if int(number) >= 90000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _date(run: Run) -> str:
    return run.machine.get("date", "no date")


def _measured(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    """What all rows have in common: type, heads, rounds."""
    types = dict.fromkeys(str(run.settings["dtype"]) for run in runs)
    heads = dict.fromkeys(titles.of_heads(group) for group in groups)
    rounds = dict.fromkeys(tuple(run.settings["rounds"]) for run in runs)
    medians = " or ".join(f"{rested} and {sustained}" for rested, sustained in rounds)
    cold = ", L2 overwritten before each call" if any(r.settings["cold_l2"] for r in runs) else ""
    places = list(dict.fromkeys(group.place for group in groups))
    place = f", {places[0]} tokens" if len(places) == 1 else ""
    return (
        f"{' or '.join(types)}, {' or '.join(heads)}{place}; rested / sustained, "
        f"medians of {medians} rounds{cold}"
    )
