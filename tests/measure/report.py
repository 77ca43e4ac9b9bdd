"""What is printed and what is kept: lines that are flushed, a row a result, tables, JSON."""

from __future__ import annotations

import faulthandler
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from timing import HostTime, Samples

SILENCE_S = 120  # after which the process is taken to hang
HANGS = 3  # its exit code
OURS = "cmask"
_last_said = time.monotonic()
_is_watched = threading.Event()


def say(text: str = "") -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    is_alive()


def is_alive() -> None:
    """Tell the watchdog so: a GPU has just finished something."""
    global _last_said
    _last_said = time.monotonic()
    if _is_watched.is_set():
        faulthandler.dump_traceback_later(SILENCE_S + 30, exit=True)


def start_watchdog() -> None:
    """Kill this process once nothing was said or timed for `SILENCE_S`: kernels may hang.

    Where a hanging call keeps Python's lock, faulthandler ends it 30 s later, with exit code 1.
    """

    def watch() -> None:
        while time.monotonic() - _last_said < SILENCE_S:
            time.sleep(1)
        faulthandler.dump_traceback(all_threads=True)
        sys.stderr.write(f"nothing happened for {SILENCE_S} s: given up\n")
        sys.stderr.flush()
        os._exit(HANGS)

    _is_watched.set()
    say()
    threading.Thread(target=watch, daemon=True).start()


@dataclass(frozen=True)
class Row:
    """One implementation on one mask.

    status      "ok", or in a word why there is no time
    detail      the same at length
    error       cmask: largest errors of O and LSE against float64
    difference  peers: largest difference to cmask's output
    heads       of queries, of keys
    pairs       visible ones per batch element
    flops       useful ones of one call
    sizes       sizes and parameters that were bound
    eager       rested bursts without a graph [ms]
    """

    mask: str
    seq: int
    batch: int
    implementation: str
    status: str
    heads: tuple[int, int] = (0, 0)
    pairs: int = 0
    flops: float = 0.0
    sizes: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""
    mode: str = ""
    error: tuple[float, float] | None = None
    difference: float | None = None
    times: Samples = field(default_factory=Samples)
    eager: tuple[float, ...] = ()
    host: HostTime | None = None

    @property
    def place(self) -> str:
        """Batch × tokens."""
        return f"{self.batch} × {count(self.seq)}"

    def tflops(self, times: Sequence[float]) -> float | None:
        """Useful TFLOP/s by the median time."""
        return self.flops / statistics.median(times) / 1e9 if times else None


def count(tokens: int) -> str:
    """Tokens as people say them.

    >>> count(4096), count(33280)
    ('4k', '32.5k')
    """
    return f"{tokens / 1024:g}k" if tokens % 512 == 0 else str(tokens)


def state_of_gpu() -> str:
    """SM clock, power and temperature now."""
    return _nvidia_smi("clocks.sm,power.draw,temperature.gpu") or "nvidia-smi gave nothing"


def header() -> dict[str, str]:
    """The machine and the versions."""
    import torch

    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "driver": _nvidia_smi("driver_version") or "unknown",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "triton": _version("triton"),
        "flash-attn-4": _version("flash-attn-4"),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "python": sys.version.split()[0],
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def _nvidia_smi(query: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout.strip().splitlines() or [""])[0]


HEADING = (
    f"{'mask':21}{'batch × seq':>12}  {'implementation':15}{'rested ms':>10}"
    f"{'TFLOP/s rested / sustained':>28}{'cmask ÷ it':>15}{'spread':>13}  error or difference"
)


def line(row: Row, ours: Row | None) -> str:
    """A row as printed; `ours`: cmask's default on the same mask."""
    head = f"{row.mask:21}{row.place:>12}  {row.implementation:15}"
    if not row.times.rested:
        return f"{head}{row.status:>10}  {row.detail}"
    ms = statistics.median(row.times.rested)
    rates, ratios = speeds(row), _pair(_ratio(ours, row), 2)
    spread = _pair((_spread(row.times.rested), _spread(row.times.sustained)), 2)
    mode = "" if row.mode == "graph" else f"  {row.mode}"
    return f"{head}{ms:10.3f}{rates:>28}{ratios:>15}{spread:>13}  {_accuracy(row)}{mode}"


def eager_line(row: Row) -> str:
    """What a call without a graph costs."""
    head = f"{row.mask:21}{row.place:>12}  {row.implementation:15}"
    rate = row.tflops(row.eager)
    if rate is None or row.host is None:
        return f"{head}{'–':>10}"
    ms, host = statistics.median(row.eager), row.host
    return (
        f"{head}{ms:10.3f} ms{rate:6.0f} TFLOP/s eager"
        f"{host.enqueued_us:9.1f} µs host{host.drained_us:9.1f} µs until done"
    )


def speeds(row: Row) -> str:
    """Rested / sustained TFLOP/s, or why not."""
    rates = row.tflops(row.times.rested), row.tflops(row.times.sustained)
    return _pair(rates, 0) if row.times.rested else row.status


def _accuracy(row: Row) -> str:
    if row.error is not None:
        return f"O {row.error[0]:.1e} LSE {row.error[1]:.1e}"
    said = "" if row.difference is None else f"{row.difference:.1e}"
    return f"{said} {row.detail}".strip()


def _ratio(ours: Row | None, row: Row) -> tuple[float | None, float | None]:
    """How many times as fast as `row` cmask is, rested and sustained."""
    if ours is None:
        return None, None
    return (
        _quotient(row.times.rested, ours.times.rested),
        _quotient(row.times.sustained, ours.times.sustained),
    )


def _quotient(a: Sequence[float], b: Sequence[float]) -> float | None:
    return statistics.median(a) / statistics.median(b) if a and b else None


def _spread(times: Sequence[float]) -> float | None:
    return max(times) / min(times) if times else None


def _pair(values: tuple[float | None, float | None], digits: int) -> str:
    return " / ".join("–" if value is None else f"{value:.{digits}f}" for value in values)


def compact(rows: Sequence[Row]) -> Iterable[str]:
    """A Markdown table: a line a mask and length, a column an implementation."""
    names = list(dict.fromkeys(row.implementation for row in rows))
    against = [name for name in ("flex-fa4", "fa4") if name in names]
    columns = ["mask", "batch × seq", *names, *(f"cmask ÷ {name}" for name in against)]
    yield "| " + " | ".join(columns) + " |"
    yield "| --- |" + " --: |" * (len(columns) - 1)
    for mask, place in dict.fromkeys((row.mask, row.place) for row in rows):
        found = {r.implementation: r for r in rows if (r.mask, r.place) == (mask, place)}
        cells = [speeds(found[name]) if name in found else "–" for name in names]
        for name in against:
            pair = _ratio(found.get(OURS), found[name]) if name in found else (None, None)
            cells.append("–" if pair == (None, None) else _pair(pair, 2))
        yield "| " + " | ".join([mask, place, *cells]) + " |"


def as_json(row: Row, ours: Row | None) -> dict[str, Any]:
    """All of a row, and what follows from it."""
    return {
        **asdict(row),
        "tflops_rested": row.tflops(row.times.rested),
        "tflops_sustained": row.tflops(row.times.sustained),
        "tflops_eager": row.tflops(row.eager),
        "ratio_rested": _ratio(ours, row)[0],
        "ratio_sustained": _ratio(ours, row)[1],
        "spread_rested": _spread(row.times.rested),
        "spread_sustained": _spread(row.times.sustained),
    }


def ours_of(rows: Iterable[Row], row: Row) -> Row | None:
    """cmask's default on the mask and length of a row."""
    same = (r for r in rows if (r.mask, r.place) == (row.mask, row.place))
    return next((r for r in same if r.implementation == OURS), None)


def write_json(path: Path, facts: dict[str, Any], rows: Sequence[Row]) -> None:
    """The whole run so far."""
    listed = [as_json(row, ours_of(rows, row)) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, "rows": listed}, indent=1), encoding="utf-8")
