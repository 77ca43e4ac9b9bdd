"""Without a GPU: what the masks are made of, and how long binding takes on the host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cmask.cli.bench.binding import bind_anew
from cmask.cli.bench.case import Case, compiled
from cmask.cli.bench.rows import count
from cmask.runtime.derive.facts import Facts
from cmask.runtime.mask import Mask

REPEATS = 3
HEADING = (
    f"{'mask':21}{'tokens':>8}{'visible pairs':>15}{'full':>9}{'partial':>9}{'empty':>9}"
    f"{'useful':>8}{'KiB':>8}{'bind ms':>9}"
)


@dataclass(frozen=True)
class Survey:
    """One mask.

    bind_ms  `Mask.bind` for new lengths, and the forward's block lists made [ms]
    """

    mask: str
    facts: Facts
    bind_ms: float

    def line(self) -> str:
        """As printed, below `HEADING`."""
        f = self.facts
        return (
            f"{self.mask:21}{count(f.q_len):>8}{f.visible_pairs:>15,}{f.full_blocks:>9,}"
            f"{f.partial_blocks:>9,}{f.empty_blocks:>9,}{f.useful_share:>8.1%}"
            f"{f.descriptor_bytes / 1024:>8.1f}{self.bind_ms:>9.1f}"
        )

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {"mask": self.mask, "facts": asdict(self.facts), "bind_ms": self.bind_ms}


def survey(case: Case) -> Survey:
    """Compile a mask, and bind it a few times."""
    mask = compiled(case)
    assert mask.facts is not None
    return Survey(case.name, mask.facts, statistics.median(_bind_ms(mask) for _ in range(REPEATS)))


def _bind_ms(mask: Mask) -> float:
    begun = time.perf_counter()
    bind_anew(mask, "cpu")
    return (time.perf_counter() - begun) * 1e3


def as_json(surveys: Sequence[Survey]) -> dict[str, Any]:
    """A run without a GPU."""
    return {"machine": {"gpu": "none"}, "surveys": [each.as_json() for each in surveys]}
