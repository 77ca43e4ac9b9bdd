"""One implementation's result, and what follows from its times."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cmask.cli.bench.settings import OURS, Direction

Regime = Literal["rested", "sustained"]
REGIMES: tuple[Regime, ...] = ("rested", "sustained")

CEILING = "matmul"
CEILING_SIDE = 8192
CEILING_FLOPS = 2.0 * CEILING_SIDE**3


@dataclass(frozen=True)
class Samples:
    """Time of one call in each round [ms]."""

    rested: tuple[float, ...] = ()
    sustained: tuple[float, ...] = ()

    def median(self, regime: Regime) -> float | None:
        """None where nothing was measured."""
        times = self.rested if regime == "rested" else self.sustained
        return statistics.median(times) if times else None

    def spread(self, regime: Regime) -> float | None:
        """The longest time by the shortest."""
        times = self.rested if regime == "rested" else self.sustained
        return max(times) / min(times) if times else None


@dataclass(frozen=True)
class Result:
    """One implementation on one mask in one direction.

    status      "ok", or in a word why there is no time
    detail      the same at length
    spelling    how it was told the mask
    error       the largest of sampled vectors against float64 (see exact.py)
    lse_error   the same of the log-sum-exp, absolute
    difference  of the whole result to cmask's, by its length
    graph       replays of a CUDA graph; empty where none could be captured
    eager       calls as Python makes them
    no_graph    why there is none
    host_us     what a call costs the host [µs]
    """

    name: str
    status: str = "ok"
    detail: str = ""
    spelling: str = ""
    error: float | None = None
    lse_error: float | None = None
    difference: float | None = None
    graph: Samples = field(default_factory=Samples)
    eager: Samples = field(default_factory=Samples)
    no_graph: str = ""
    host_us: float | None = None

    @property
    def mode(self) -> str:
        """Which times speak for it."""
        return "graph" if self.graph.rested or not self.eager.rested else "eager"

    @property
    def times(self) -> Samples:
        """By graph where there is one."""
        return self.graph if self.mode == "graph" else self.eager

    @property
    def is_ok(self) -> bool:
        """Whether it was right and could be timed."""
        return self.status == "ok"


@dataclass(frozen=True)
class Binding:
    """What it costs to make a mask known to a kernel [ms, bytes].

    ours            `Mask.bind` for new lengths, block lists put on the device
    eager, compiled  FlexAttention's create_block_mask
    device          one `plan.bind_` of the same lengths, in tensors: GPU time
    device_trained  likewise, with the lists of the backward
    device_host_us  what it costs the host to launch that [µs]
    *_peak          the most device memory that was held meanwhile, beyond what was held before;
                    of `device` with the plan itself
    *_bytes         what is left of it: block lists, BlockMask
    *_why           in a word, why there is no time
    """

    ours_ms: float
    ours_peak: int | None = None
    ours_bytes: int = 0
    eager_ms: float | None = None
    eager_peak: int | None = None
    eager_why: str = ""
    compiled_ms: float | None = None
    compiled_peak: int | None = None
    compiled_why: str = ""
    block_mask_bytes: int | None = None
    device_ms: float | None = None
    device_host_us: float | None = None
    device_peak: int | None = None
    device_trained_ms: float | None = None
    device_why: str = ""


@dataclass(frozen=True)
class Group:
    """All implementations on one mask in one direction, timed in turn.

    pairs    visible ones per batch element
    flops    useful ones of one call
    ceiling  the matrix product that was timed among them
    before, after  clock, power and temperature of the device
    """

    mask: str
    direction: Direction
    seq: int
    batch: int
    heads: tuple[int, int]
    dims: tuple[int, int]
    pairs: int
    density: float
    flops: float
    sizes: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[Result, ...] = ()
    ceiling: Result | None = None
    binding: Binding | None = None
    before: str = ""
    after: str = ""

    @property
    def place(self) -> str:
        """Batch × tokens."""
        return f"{self.batch} × {count(self.seq)}"

    @property
    def ours(self) -> Result | None:
        """The result of the kernel that cmask chooses."""
        return next((result for result in self.results if result.name == OURS), None)

    def tflops(self, times: Samples, regime: Regime) -> float | None:
        """Useful TFLOP/s by the median time."""
        ms = times.median(regime)
        return self.flops / ms / 1e9 if ms else None

    def ratio(self, result: Result, regime: Regime) -> float | None:
        """How many times as fast as `result` cmask is."""
        theirs = result.times.median(regime)
        ours = self.ours.times.median(regime) if self.ours else None
        return theirs / ours if theirs and ours else None

    def share(self, result: Result, regime: Regime) -> float | None:
        """Its speed by that of the matrix product."""
        speed = self.tflops(result.times, regime)
        ms = self.ceiling.times.median(regime) if self.ceiling else None
        return speed / (CEILING_FLOPS / ms / 1e9) if speed and ms else None


def count(tokens: int) -> str:
    """Tokens as people say them.

    >>> count(4096), count(33280)
    ('4k', '32.5k')
    """
    return f"{tokens / 1024:g}k" if tokens >= 1024 and tokens % 512 == 0 else str(tokens)


def names_of(groups: Sequence[Group]) -> list[str]:
    """All columns, in the order in which they first appear."""
    return list(dict.fromkeys(result.name for group in groups for result in group.results))
