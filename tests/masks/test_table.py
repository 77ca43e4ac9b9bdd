"""The table of shipped masks in docs/masks.md: its facts are what the compiler finds.

`pytest tests/masks/test_table.py --update-golden` makes it again, compile times included.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from cmask import masks
from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import bind_source
from cmask.grammar.source import Source
from cmask.runtime.derive.facts import Facts, facts_of

PAGE = Path(__file__).parents[2] / "docs" / "masks.md"
HEAD = [
    "| mask | density | intervals per row | full blocks | partial blocks | useful share "
    "| descriptor [KiB] | compile [s] |",
    "| --- | --: | --: | --: | --: | --: | --: | --: |",
]


def test_the_table_of_masks_is_true(update_golden: bool, tmp_path: Path) -> None:
    """All columns but the last, which says how long one machine took."""
    lines = PAGE.read_text(encoding="utf-8").split("\n")
    start = lines.index(HEAD[0])
    stop = start + next(i for i, line in enumerate(lines[start:]) if not line.startswith("|"))
    rows = [row_of(name) for name in masks.names()]
    if update_golden:
        timed = [f"{row} {seconds_to_compile(row, tmp_path):.1f} |" for row in rows]
        PAGE.write_text("\n".join([*lines[:start], *HEAD, *timed, *lines[stop:]]), encoding="utf-8")
    else:
        written = [line.rsplit("|", 2)[0] + "|" for line in lines[start + 2 : stop]]
        assert written == rows
        assert lines[start + 1] == HEAD[1]


def row_of(name: str) -> str:
    """A mask's line of the table at 32k, without the compile time."""
    text = masks.path(name).read_text(encoding="utf-8")
    facts = facts_of(bind_source(Source(name, text), CompileOptions(seq=32768)))
    return "| " + " | ".join([f"[{name}](../masks/{name}.cmask)", *_cells(facts)]) + " |"


def _cells(facts: Facts) -> list[str]:
    return [
        f"{facts.density:.4f}",
        "-" if facts.max_intervals is None else str(facts.max_intervals),
        f"{facts.full_blocks:,}",
        f"{facts.partial_blocks:,}",
        f"{facts.useful_share:.1%}",
        f"{facts.descriptor_bytes / 1024:.1f}",
    ]


def seconds_to_compile(row: str, folder: Path) -> float:
    """Wall time of `cmask compile NAME --seq 32k` in a process of its own, the better of two."""
    name = row.split("[")[1].split("]")[0]
    command = [sys.executable, "-m", "cmask.cli", "compile", name, "--seq", "32k"]
    command += ["-o", str(folder / "timed.cmaskc")]
    times = []
    for _ in range(2):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        times.append(time.perf_counter() - started)
    return min(times)
