"""What was found, as text and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cmask.cli.tune.run import Group, Outcome
from cmask.cli.tune.space import words
from cmask.cli.tune.tried import Found, Tried

_ROWS = 8  # of a table: the fastest
_COUNTED = ("ok", "does not fit", "slow", "not tried")  # what needs no line of its own
_WAYS = {"fwd": "forward", "bwd": "backward"}


def group_lines(group: Group) -> list[str]:
    """A group as a table of its fastest candidates, and what became of the others."""
    found = group.found
    named = f"{_WAYS[group.way]}, {group.dtype}, head_dim {group.head_dim}, {group.target}"
    lines = [f"{named}{': ' if group.inputs else ''}{group.inputs}"]
    timed = _timed(found)
    lines += [_row(each, found) for each in timed[:_ROWS]]
    odd = [each for each in found.tried if each.status not in _COUNTED]
    lines += [f"  {each.status}: {each.candidate}: {each.detail}" for each in odd]
    counts = Counter(each.status for each in found.tried if each.status in _COUNTED)
    said = ", ".join(f"{count} {status}" for status, count in counts.items() if status != "ok")
    lines += [f"  {len(timed)} timed{', ' if said else ''}{said}"]
    return [*lines, f"  {verdict(found)}"]


def verdict(found: Found) -> str:
    """What is to be run, in a sentence."""
    winner, default = found.winner, found.default
    if winner is None:
        why = default.detail or found.stopped or "too few rounds"
        return f"not measured ({why}): {default.candidate}"
    if winner is default:
        return f"the default stays: {default.candidate}"
    gain = 1 / winner.ratio if winner.ratio else 1.0
    return f"{gain:.3f} × as fast as the default: {winner.candidate}"


def shipped_lines(outcome: Outcome) -> list[str]:
    """Without a GPU: what ships."""
    return [
        f"{group.target:6}  {config.direction:7}  {group.dtype}  head_dim {group.head_dim}  "
        f"{words(config)}"
        for group in outcome.groups
        for config in group.found.default.candidate.configs
    ]


def as_json(outcome: Outcome, machine: Mapping[str, str] | None) -> dict[str, Any]:
    """Every candidate with its time or its reason."""
    return {
        "machine": None if machine is None else dict(machine),
        "is_interrupted": outcome.is_interrupted,
        "groups": [_group_as_json(group) for group in outcome.groups],
    }


def _group_as_json(group: Group) -> dict[str, Any]:
    winner = group.found.winner
    return {
        "target": group.target,
        "direction": group.way,
        "dtype": group.dtype,
        "head_dim": group.head_dim,
        "inputs": group.inputs,
        "is_measured": winner is not None,
        "verdict": verdict(group.found),
        "winner": _configs(winner or group.found.default),
        "candidates": [_tried_as_json(each) for each in group.found.tried],
    }


def _tried_as_json(each: Tried) -> dict[str, Any]:
    return {
        "configs": _configs(each),
        "status": each.status,
        "detail": each.detail,
        "latency_ms": each.ms,
        "ratio_to_default": each.ratio,
        "difference": _plain(each.difference),
        "mode": each.mode,
        "times_ms": each.times,
        "ratios": each.ratios,
        "confirmed_ratios": each.confirmed,
    }


def _plain(value: float | None) -> float | str | None:
    """JSON knows no NaN and no infinity."""
    return value if value is None or math.isfinite(value) else str(value)


def _configs(each: Tried) -> list[dict[str, Any]]:
    return [asdict(config) for config in each.candidate.configs]


def _timed(found: Found) -> Sequence[Tried]:
    """The fastest first."""
    timed = [each for each in found.tried if each.status == "ok" and each.times]
    return sorted(timed, key=lambda each: _ratio(each, found))


def _ratio(each: Tried, found: Found) -> float:
    return 1.0 if each is found.default or each.ratio is None else each.ratio


def _row(each: Tried, found: Found) -> str:
    said = "default" if each is found.default else "confirmed" if each.confirmed else ""
    configs = [words(config) for config in each.candidate.configs]
    row = f"  {each.ms:9.4f} ms  {_ratio(each, found):.3f}  {configs[0]:48} {said}".rstrip()
    return "\n".join([row, *(f"{'':22}{more}" for more in configs[1:])])
