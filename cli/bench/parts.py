"""The parts of a page that are made from runs, and the marks between which they stand.

<!-- bench: KIND FILE,… [forward|backward] [NAME=VALUE …] -->
what is made
<!-- end -->

`bench later:` instead of `bench:` leaves the part as it is: its figures are still to be measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from cmask.cli.bench.rows import Group
from cmask.cli.bench.saved import Run
from cmask.cli.bench.settings import Direction
from cmask.cli.report import CommandFault

KINDS = ("speed", "lengths", "eager", "binding", "paper", "plot", "agreement")
_DIRECTIONS: dict[str, Direction] = {"forward": "fwd", "backward": "bwd"}
_LISTS = ("masks", "columns", "against")
_MARK = re.compile(r"<!-- bench(?P<later> later)?:(?P<words>[^\n]*)-->\n")
_END = "<!-- end -->"


@dataclass(frozen=True)
class Part:
    """What a mark asks for.

    files    relative to the page
    masks    rows, in this order; empty: as in the files
    columns  implementations, `÷NAME` and `error`; empty: what has figures
    against  peers, where a ratio is all that is shown; empty: all
    svg      the picture's file, relative to the page; empty: the first file's name and direction
    """

    kind: str
    files: tuple[str, ...]
    direction: Direction = "fwd"
    masks: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    svg: str = ""


def part_of(words: str) -> Part:
    """What is written in a mark; a `CommandFault` says what cannot be read.

    >>> part_of("speed a.json,b.json backward masks=causal,hstu").masks
    ('causal', 'hstu')
    """
    kind, _, rest = words.strip().partition(" ")
    if kind not in KINDS:
        raise CommandFault(f"`{kind}` is no part of a page; there are {', '.join(KINDS)}")
    files, *others = rest.split() or [""]
    if not files.endswith(".json"):
        raise CommandFault(f"`{words.strip()}` names no JSON file behind {kind}")
    part = Part(kind, tuple(files.split(",")))
    for word in others:
        part = replace(part, **_said(word))
    return part


def _said(word: str) -> dict[str, Any]:
    """One field of a part."""
    name, _, value = word.partition("=")
    if word in _DIRECTIONS:
        return {"direction": _DIRECTIONS[word]}
    if name in _LISTS and value:
        return {name: tuple(value.split(","))}
    if name == "svg" and value:
        return {name: value}
    known = ", ".join(f"{name}=" for name in (*_LISTS, "svg"))
    raise CommandFault(f"`{word}` says nothing; there are forward, backward, {known}")


@dataclass(frozen=True)
class Mark:
    """A part in the text of a page.

    start, stop  of what is made, between mark and end
    """

    line: int
    part: Part
    is_later: bool
    start: int
    stop: int


def marks_of(text: str) -> list[Mark]:
    """All of a page, in order; a `CommandFault` names the line of one that is wrong."""
    found = list(_MARK.finditer(text))
    starts = [mark.start() for mark in found] + [len(text)]
    return [_mark(text, mark, before) for mark, before in zip(found, starts[1:], strict=True)]


def _mark(text: str, found: re.Match[str], before: int) -> Mark:
    """`before`: where the next one starts."""
    line = 1 + text.count("\n", 0, found.start())
    stop = text.find(_END, found.end(), before)
    if stop < 0:
        raise CommandFault(f"line {line}: a part that does not end with {_END}")
    with _at_line(line):
        return Mark(line, part_of(found["words"]), bool(found["later"]), found.end(), stop)


@contextmanager
def _at_line(line: int) -> Iterator[None]:
    """Faults meanwhile are those of a mark in this line."""
    try:
        yield
    except CommandFault as fault:
        raise CommandFault(f"line {line}: {fault}") from None


def replaced(text: str, make: Callable[[Part], str]) -> str:
    """The page with every part made anew but those for later; all other text as it was."""
    pieces, at = [], 0
    for mark in marks_of(text):
        if not mark.is_later:
            with _at_line(mark.line):
                pieces += [text[at : mark.start], make(mark.part).rstrip("\n"), "\n"]
            at = mark.stop
    return "".join([*pieces, text[at:]])


def chosen(part: Part, runs: list[Run]) -> list[Group]:
    """The groups that a part shows, in order; each mask and length once."""
    found: dict[tuple[Any, ...], Group] = {}
    for run in runs:
        for group in run.groups:
            key = (group.mask, group.batch, group.seq, group.heads, group.dims)
            if group.direction != part.direction or (part.masks and group.mask not in part.masks):
                continue
            if key in found:
                raise CommandFault(f"{group.mask} {group.place} is there twice: {run.name}")
            found[key] = group
    if not found:
        raise CommandFault(f"{', '.join(part.files)}: nothing there that the part asks for")
    groups = list(found.values())
    return sorted(groups, key=lambda g: part.masks.index(g.mask)) if part.masks else groups
