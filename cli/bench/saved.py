"""Runs that `--json` wrote, read again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from cmask.cli.bench.rows import Binding, Group, Result, Samples
from cmask.cli.report import CommandFault

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """One call of `cmask bench` on a GPU.

    name      of its file, as whoever asks for it spells it
    machine   see `machine.describe`
    settings  as they were given, plain data
    left_out  masks that were not measured
    """

    name: str
    machine: Mapping[str, str]
    settings: Mapping[str, Any]
    groups: tuple[Group, ...]
    left_out: tuple[str, ...] = ()
    is_interrupted: bool = False


def read_run(path: Path, name: str = "") -> Run:
    """The run in a file; a `CommandFault` where there is none."""
    name = name or str(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandFault(f"{name} cannot be read: {error.strerror}") from None
    except ValueError:
        raise CommandFault(f"{name} is no JSON") from None
    if not isinstance(found, dict) or "groups" not in found:
        raise CommandFault(f"{name} holds no times; `cmask bench --json` writes them on a GPU")
    try:
        return _run(name, found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CommandFault(f"{name} is not as `cmask bench --json` writes it: {error!r}") from None


def _run(name: str, found: Mapping[str, Any]) -> Run:
    return Run(
        name,
        found["machine"],
        found["settings"],
        tuple(_group(group) for group in found["groups"]),
        tuple(found["left_out"]),
        found["is_interrupted"],
    )


def _group(found: Mapping[str, Any]) -> Group:
    made = {
        **found,
        "heads": _pair(found["heads"]),
        "dims": _pair(found["dims"]),
        "results": tuple(_result(result) for result in found["results"]),
        "ceiling": None if found.get("ceiling") is None else _result(found["ceiling"]),
        "binding": None if found.get("binding") is None else _known(Binding, found["binding"]),
    }
    return _known(Group, made)


def _result(found: Mapping[str, Any]) -> Result:
    samples = {
        mode: Samples(tuple(found[mode]["rested"]), tuple(found[mode]["sustained"]))
        for mode in ("graph", "eager")
    }
    # errors that are no numbers were written as text
    errors = {name: _number(found.get(name)) for name in ("error", "lse_error", "difference")}
    return _known(Result, {**found, **samples, **errors})


def _known(kind: type[T], found: Mapping[str, Any]) -> T:
    """Its fields; what follows from them is in the file too, for other readers."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in found.items() if name in names})


def _pair(values: Sequence[int]) -> tuple[int, int]:
    first, second = values
    return first, second


def _number(value: float | str | None) -> float | None:
    return None if value is None else float(value)
