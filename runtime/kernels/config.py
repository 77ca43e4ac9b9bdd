"""Block shapes and launch parameters of the kernels, chosen by a computed budget.

Nothing is timed here: `choose_config` walks a fixed list from the fastest shape measured to the
smallest that always fits, and takes the first whose shared memory and registers suffice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from cmask.runtime.kernels.budget import SMALLEST_SHARED_MEMORY, Budget, padded_dim, shortage

Direction = Literal["forward", "dkdv", "dq"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "dkdv", "dq")

MAX_HEAD_DIM = 256
WARPS = (1, 2, 4, 8, 16, 32)  # of a program
MOST_STAGES = 8
L2_MIB = 32  # an H200's L2 holds 50 MB
_BARRIERS = 2816  # [bytes] mbarriers, scratch of reductions, pattern words
_BARRIERS_GLUON = 1024  # [bytes] mbarriers, records of items, scratch
_BARRIERS_SM_100 = 8192  # [bytes] more, as Triton 3.6 and 3.9 allocate


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """Block shape and launch parameters of one kernel.

    forward, dq  a program holds `block_m` queries and walks their keys `block_n` at a time
    dkdv         a program holds `block_n` keys and walks their queries `block_m` at a time
    In both, `num_stages` blocks of what is walked are in flight.
    kernel  "triton", or "gluon" on Hopper: in the forward a warpgroup (4 warps) for each 64
            queries; dkdv in blocks of 64 × 128, and dQ with it, or in blocks of 128 × 64
    l2_mib  heads are worked on together while their keys and values fit in so much [MiB]
    """

    direction: Direction
    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    kernel: str = "triton"
    l2_mib: int = L2_MIB

    @property
    def programs_sharing(self) -> int:
        """How many programs are to share a multiprocessor, counted for their shared memory."""
        is_gluon_forward = self.kernel == "gluon" and self.direction == "forward"
        return programs_sharing(self.block_m) if is_gluon_forward else 1

    def shared_memory_bytes(
        self, *, head_dim: int, v_head_dim: int, itemsize: int, architecture: int = 90
    ) -> int:
        """Blocks held, blocks in flight, barriers; what Triton allocates, or a bit more.

        Patterns need no room of their own: their loop has one block less in flight.
        On sm_100 what two products read stays in flight for one more block.
        """
        both = (padded_dim(head_dim) + padded_dim(v_head_dim)) * itemsize
        if self.kernel == "gluon" and self.direction == "dkdv":
            exchanged = 2 * self.block_m * self.block_n * itemsize  # dS, in two buffers
            exchanged += self.block_m * padded_dim(head_dim) * 4  # dQ, on its way to memory
            rows = self.block_m * (8 + 4 * 8)  # a row's lse and delta, and four intervals of keys
            words = self.block_n * 16
            walked = self.block_m * both + rows + words
            return self.block_n * both + exchanged + self.num_stages * walked + _BARRIERS_GLUON
        if self.kernel == "gluon" and self.direction == "dq":
            held, words = self.block_m * both, self.block_m * 16  # of a pattern
            return held + self.num_stages * (self.block_n * both + words) + _BARRIERS_GLUON
        if self.kernel == "gluon":
            d, dv = math.prod(pieces_of(head_dim)), padded_dim(v_head_dim)
            held = q_buffers(d, dv) * self.block_m * max(d, dv) * itemsize
            walked = self.block_n * (d + dv) * itemsize + self.block_m * 16  # words of a pattern
            return held + self.num_stages * walked + _BARRIERS_GLUON
        match self.direction:
            case "forward":
                held = self.block_m * padded_dim(head_dim) * itemsize
                walked = self.block_n * both
            case "dq":
                held = self.block_m * both
                walked = self.block_n * both
            case "dkdv":
                held = self.block_n * both
                walked = self.block_m * (both + 8)  # and a row's lse and delta
        scores = self.block_m * self.block_n
        # float32 scores change their layout between the products; of 32 × 32, _BARRIERS has room
        scratch = scores * itemsize * 9 // 8 if itemsize == 4 and scores > 1024 else 0
        shared = held + self.num_stages * walked + scratch + _BARRIERS
        if not 100 <= architecture < 120:
            return shared
        read_twice = {"forward": 0, "dq": self.block_n * padded_dim(head_dim) * itemsize}
        return shared + read_twice.get(self.direction, walked) + _BARRIERS_SM_100

    def accumulators(self, *, head_dim: int, v_head_dim: int) -> int:
        """Float32 registers a thread that hold scores and results."""
        d, dv = padded_dim(head_dim), padded_dim(v_head_dim)
        scores = self.block_m * self.block_n
        match self.direction:
            case "forward":
                held = self.block_m * dv + scores
            case "dq":
                held = self.block_m * d + 2 * scores
            case "dkdv":
                held = self.block_n * (d + dv) + 2 * scores
        return held // (32 * self.num_warps)

    def to_fields(
        self,
        *,
        target: str,
        dtype: str,
        head_dim: int,
        measured: Mapping[str, str | float] | None = None,
    ) -> dict[str, Any]:
        """Plain values for the artifact; `measured`: what tuning found, or None."""
        return {
            "target": target,
            "kernel": self.kernel,
            "direction": self.direction,
            "dtype": dtype,
            "head_dim": head_dim,
            "block_m": self.block_m,
            "block_n": self.block_n,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "l2_mib": self.l2_mib,
            "measured": None if measured is None else dict(measured),
        }

    @staticmethod
    def from_fields(values: Mapping[str, Any]) -> KernelConfig:
        """The inverse of `to_fields`."""
        return KernelConfig(**{each.name: values[each.name] for each in fields(KernelConfig)})


# (block_m, block_n, num_warps, num_stages), fastest first.  The first of each list was the
# fastest of a sweep on an H200 at head_dim 128; the others were not compared with each other.
_Shapes = tuple[tuple[int, int, int, int], ...]
_HALF: dict[Direction, _Shapes] = {
    "forward": (
        (128, 128, 8, 3),
        (128, 128, 8, 2),
        (128, 64, 8, 3),
        (128, 64, 8, 2),
        (128, 32, 8, 2),
        (64, 64, 8, 2),
        (64, 32, 8, 2),
        (32, 32, 4, 2),
        (32, 32, 4, 1),
    ),
    "dkdv": (
        (64, 64, 4, 2),
        (64, 128, 8, 2),
        (64, 64, 8, 2),
        (32, 64, 8, 2),
        (32, 32, 8, 2),
        (16, 32, 8, 2),
        (16, 32, 4, 1),
        (16, 16, 4, 1),
    ),
    "dq": (
        (128, 64, 8, 3),
        (128, 128, 8, 2),
        (128, 64, 8, 2),
        (64, 64, 8, 2),
        (64, 32, 8, 2),
        (32, 32, 4, 2),
        (32, 32, 4, 1),
        (32, 16, 4, 1),
    ),
}
_GLUON: _Shapes = (  # of (64, 64), two programs share a multiprocessor
    (128, 128, 8, 2),
    (128, 64, 8, 2),
    (64, 64, 4, 2),
)
GLUON_BACKWARD = KernelConfig(  # dQ comes with it
    direction="dkdv", block_m=64, block_n=128, num_warps=8, num_stages=2, kernel="gluon"
)
GLUON_BACKWARD_DQ = KernelConfig(  # instead, where gradients must be deterministic
    direction="dq", block_m=128, block_n=64, num_warps=8, num_stages=2, kernel="gluon"
)
GLUON_BACKWARD_DIMS = ((64, 64), (128, 128))  # head_dim of q and v
GLUON_SHAPES: dict[Direction, tuple[tuple[int, int], ...]] = {
    "forward": tuple((m, n) for m, n, _, _ in _GLUON),
    "dkdv": ((GLUON_BACKWARD.block_m, GLUON_BACKWARD.block_n),),
    "dq": ((GLUON_BACKWARD_DQ.block_m, GLUON_BACKWARD_DQ.block_n),),
}
# One stage would wait for the next block before it gives its own back; a fourth has no barrier.
GLUON_STAGES: dict[Direction, tuple[int, ...]] = {"forward": (2, 3), "dkdv": (2,), "dq": (2,)}
_FLOAT32: _Shapes = (
    (32, 32, 8, 2),
    (32, 32, 8, 1),
    (16, 16, 8, 1),
)


def choose_config(
    direction: Direction,
    *,
    dtype: str,
    head_dim: int,
    v_head_dim: int,
    shared_memory_limit: int = SMALLEST_SHARED_MEMORY,
    architecture: int = 80,
    kernel: str = "triton",
    shape: tuple[int, int] | None = None,
) -> KernelConfig:
    """The first configuration of the list that fits: same question, same answer.

    dtype: "bfloat16", "float16" or "float32".
    kernel: of the forward; the backward of "gluon" is "triton", but for dK and dV of the head
        dimensions that the Hopper backward serves.
    shape: (block_m, block_n) that the "gluon" forward has if it fits.
    shared_memory_limit: [bytes] that one program of the device may have.
    architecture: compute capability as one number, 90 for sm_90.
    Raises ValueError if none fits.
    """
    budget = Budget(
        dtype=dtype,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        shared_memory_limit=shared_memory_limit,
        architecture=architecture,
    )
    for config in listed_configs(direction, budget, kernel, shape):
        if not shortage(config, budget):
            return config
    raise ValueError(
        f"no configuration of the {direction} kernel fits {shared_memory_limit} bytes of shared "
        f"memory with head_dim {head_dim}, v head_dim {v_head_dim} and {dtype}"
    )


def listed_configs(
    direction: Direction, budget: Budget, kernel: str, shape: tuple[int, int] | None = None
) -> list[KernelConfig]:
    """What `choose_config` chooses from, whether it fits or not."""
    configs = []
    dims = (budget.head_dim, budget.v_head_dim)
    if kernel == "gluon" and direction == "dkdv" and dims in GLUON_BACKWARD_DIMS:
        configs.append(GLUON_BACKWARD)
    kernel = kernel if direction == "forward" else "triton"
    shapes = _FLOAT32 if budget.dtype == "float32" else _HALF[direction]
    if kernel == "gluon":
        shapes = tuple(sorted(_GLUON, key=lambda s: s[:2] != (shape or _GLUON[0][:2])))
    return configs + [
        KernelConfig(
            direction=direction,
            block_m=m,
            block_n=n,
            num_warps=warps,
            num_stages=stages,
            kernel=kernel,
        )
        for m, n, warps, stages in shapes
    ]


def programs_sharing(block_m: int) -> int:
    """How many programs of the Hopper forward share a multiprocessor."""
    return 2 if block_m == 64 else 1


def q_buffers(head_dim: int, v_head_dim: int) -> int:
    """How many query blocks the Hopper forward has in flight (padded head dimensions)."""
    return 2 if max(head_dim, v_head_dim) <= 128 else 1


def pieces_of(head_dim: int) -> tuple[int, int]:
    """How many pieces of how many columns the Hopper forward holds queries and keys in.

    Three quarters of 128 or 256 where that is enough: a piece's columns are a power of two.
    """
    whole = padded_dim(head_dim)
    return (3, whole // 4) if whole >= 128 and head_dim <= whole * 3 // 4 else (1, whole)
