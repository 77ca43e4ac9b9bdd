"""A run as JSON: every sample, and what the table says of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cmask.cli.bench.rows import REGIMES, Group
from cmask.cli.bench.run import Outcome
from cmask.cli.bench.settings import Settings

WIDTH = 100  # of a line


def write(path: Path, machine: Mapping[str, str], settings: Settings, outcome: Outcome) -> None:
    """Everything so far; a run that is killed later leaves a whole file.

    Raises OSError.
    """
    settings_said = {**asdict(settings), "json": None, "plot": None}
    found = {
        "machine": dict(machine),
        "settings": settings_said,
        "left_out": outcome.left_out,
        "is_interrupted": outcome.is_interrupted,
        "groups": [as_json(group) for group in outcome.groups],
    }
    write_json(path, found)


def write_json(path: Path, found: Mapping[str, Any]) -> None:
    """A file that takes the place of an older one only once it is whole."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(_text(_plain(found)) + "\n", encoding="utf-8")
    beside.replace(path)


def as_json(group: Group) -> dict[str, Any]:
    """All of a group, and what follows from it."""
    found = asdict(group)
    for result, said in zip(group.results, found["results"], strict=True):
        said["mode"] = result.mode
        for regime in REGIMES:
            said[f"tflops_{regime}"] = group.tflops(result.times, regime)
            said[f"tflops_eager_{regime}"] = group.tflops(result.eager, regime)
            said[f"cmask_ratio_{regime}"] = group.ratio(result, regime)
            said[f"share_of_dense_{regime}"] = group.share(result, regime)
            said[f"spread_{regime}"] = result.times.spread(regime)
    return found


def _text(value: Any, indent: str = "") -> str:
    """JSON in which what fits a line stands on one: samples do not take a line each."""
    line = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if len(indent) + len(line) <= WIDTH or not isinstance(value, (dict, list)) or not value:
        return line
    inner = indent + " "
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_text(item, inner)}" for key, item in value.items()]
        opening, closing = "{}"
    else:
        items = [_text(item, inner) for item in value]
        opening, closing = "[]"
    body = f",\n{inner}".join(items)
    return f"{opening}\n{inner}{body}\n{indent}{closing}"


def _plain(value: Any) -> Any:
    """What JSON knows: no arrays, and "nan", "inf" for errors that are no numbers.

    Floats have seven digits, more than any clock here has.
    """
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return _plain(value.tolist()) if hasattr(value, "tolist") else str(value)
