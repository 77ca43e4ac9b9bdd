"""Results of cmask bench, made of given times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cmask.cli.bench.record import write
from cmask.cli.bench.rows import Group, Result, Samples
from cmask.cli.bench.run import Outcome
from cmask.cli.bench.settings import Settings

MACHINE = {"gpu": "a GPU", "driver": "1.2", "torch": "2.11", "flash-attn-4": "missing",
           "cudnn": "91900", "date": "2026-01-02 03:04 UTC"}  # fmt: skip


def timed(name: str, rested: float, sustained: float | None = None, **more: Any) -> Result:
    """Of these times [ms], by graph and eagerly."""
    times = Samples((rested,), () if sustained is None else (sustained,))
    return Result(name, graph=times, eager=times, **more)


def group_of(*results: Result, **more: Any) -> Group:
    """Of work that takes 1 ms at 1,000 TFLOP/s."""
    given: dict[str, Any] = {
        "mask": "causal", "direction": "fwd", "seq": 4096, "batch": 8, "heads": (16, 16),
        "dims": (128, 128), "pairs": 8_390_656, "density": 0.5001, "flops": 1e12, **more,
    }  # fmt: skip
    return Group(**given, results=results)


def write_run(path: Path, *groups: Group, left_out: tuple[str, ...] = (), **more: Any) -> Path:
    """A file as `--json` writes it."""
    write(path, MACHINE, Settings(**more), Outcome(list(groups), list(left_out)))
    return path
