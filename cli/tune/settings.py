"""What is to be tuned, read from what people type; nothing here loads torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cmask.cli.bench.settings import DIRECTIONS, DTYPES, Direction
from cmask.cli.bench.settings import Settings as BenchSettings
from cmask.cli.values import ValueFault
from cmask.compiler.configs import SHARED_MEMORY
from cmask.runtime.kernels.budget import ITEMSIZE
from cmask.runtime.kernels.config import MAX_HEAD_DIM

TARGETS = tuple(SHARED_MEMORY)
KERNELS = ("gluon", "triton")
ROUNDS = 6
BUDGET_S = 900.0
_NAMES = {**DTYPES, "fp32": "float32"}


@dataclass(frozen=True)
class Settings:
    """One run.

    seq, sizes  at which the mask is timed; the winners hold for all its sizes
    targets     whose configurations the artifact carries; only that of the GPU here is measured
    tokens      batch × length
    heads       of queries, of keys
    head_dims   of q, k and v
    dtypes      torch's names
    directions  "bwd" is dQ, dK and dV of a forward made before
    kernels     candidates are of these
    rounds      of every candidate that is not hopeless, and again of the fastest
    budget_s    no candidate is begun after so long
    """

    seq: int
    sizes: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[str, ...] = TARGETS
    tokens: int = 32768
    heads: tuple[int, int] = (16, 16)
    head_dims: tuple[int, ...] = (128,)
    dtypes: tuple[str, ...] = ("bfloat16",)
    directions: tuple[Direction, ...] = DIRECTIONS
    kernels: tuple[str, ...] = KERNELS
    rounds: int = ROUNDS
    budget_s: float = BUDGET_S

    def of_bench(self, dtype: str, head_dim: int) -> BenchSettings:
        """The same for a problem of cmask bench."""
        return BenchSettings(
            tokens=self.tokens, heads=self.heads, dims=(head_dim, head_dim), dtype=dtype
        )


def parse_targets(text: str) -> tuple[str, ...]:
    """Architectures between commas.

    >>> parse_targets("sm_90,sm_80")
    ('sm_90', 'sm_80')
    """
    return _known(text, {name: name for name in TARGETS}, "target")


def parse_dtypes(text: str) -> tuple[str, ...]:
    """Torch's names of `bf16`, `fp16` and `fp32`.

    >>> parse_dtypes("bf16,fp16")
    ('bfloat16', 'float16')
    """
    return _known(text, {**_NAMES, **{name: name for name in ITEMSIZE}}, "dtype")


def parse_kernels(text: str) -> tuple[str, ...]:
    """Kernels between commas."""
    return _known(text, {name: name for name in KERNELS}, "kernel")


def parse_head_dims(text: str) -> tuple[int, ...]:
    """Head dimensions between commas.

    >>> parse_head_dims("64,128")
    (64, 128)
    """
    items = [item.strip() for item in text.split(",")]
    if not all(item.isdigit() and 1 <= int(item) <= MAX_HEAD_DIM for item in items):
        raise ValueFault(
            f"`{text}` are no head dimensions; write 128 or 64,128, each at most {MAX_HEAD_DIM}, "
            "the same for q, k and v"
        )
    return tuple(dict.fromkeys(map(int, items)))


def _known(text: str, known: Mapping[str, str], what: str) -> tuple[str, ...]:
    names = [item.strip() for item in text.split(",")]
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise ValueFault(f"`{unknown}` is no {what}; there are {', '.join(known)}")
    return tuple(dict.fromkeys(known[name] for name in names))
