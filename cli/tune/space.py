"""Candidates: the configurations that the kernels have for a call, and why some are not tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from cmask.cli.bench.settings import Direction as Way
from cmask.runtime.kernels import HALVES
from cmask.runtime.kernels.budget import Budget, shortage
from cmask.runtime.kernels.config import (
    GLUON_BACKWARD,
    GLUON_BACKWARD_DIMS,
    GLUON_SHAPES,
    GLUON_STAGES,
    L2_MIB,
    Direction,
    KernelConfig,
    choose_config,
    listed_configs,
)
from cmask.runtime.kernels.schedule import heads_in_flight

# (block_m, block_n, num_warps, num_stages) of the portable kernels
_AXES: dict[Direction, tuple[tuple[int, ...], ...]] = {
    "forward": ((64, 128), (32, 64, 128), (4, 8), (2, 3, 4)),
    "dkdv": ((32, 64, 128), (64, 128), (4, 8), (1, 2, 3)),
    "dq": ((64, 128), (32, 64, 128), (4, 8), (2, 3, 4)),
}
_L2_MIB = (4, 8, 16, 64, 128)  # beside the usual


@dataclass(frozen=True)
class Candidate:
    """A way to run one direction of a call.

    configs  the forward's; or that of dK and dV, and dQ's unless dQ comes with them
    reason   why it is not tried; empty if it fits
    """

    configs: tuple[KernelConfig, ...]
    reason: str = ""

    @property
    def kernel(self) -> str:
        """By which it runs."""
        return self.configs[0].kernel

    def __str__(self) -> str:
        named = len(self.configs) > 1
        return "; ".join(f"{c.direction} {words(c)}" if named else words(c) for c in self.configs)


@dataclass(frozen=True)
class Walks:
    """What decides how many heads are worked on together; see `schedule.heads_in_flight`."""

    num_heads: int
    heads_per_walk: int
    bytes_per_walk: int

    def in_flight(self, l2_mib: int) -> int:
        """Heads that are worked on together by such a budget."""
        return heads_in_flight(self.num_heads, self.heads_per_walk, self.bytes_per_walk, l2_mib)


def words(config: KernelConfig) -> str:
    """A configuration as people read it."""
    order = "" if config.l2_mib == L2_MIB else f", {config.l2_mib} MiB of L2"
    return (
        f"{config.block_m} × {config.block_n}, {config.num_warps} warps, {config.num_stages} "
        f"stages, {config.kernel}{order}"
    )


def default_of(way: Way, budget: Budget, kernel: str, shape: tuple[int, int]) -> Candidate:
    """What the runtime chooses where nothing was measured.

    kernel, shape: of the forward.  Raises ValueError if nothing fits.
    """
    if way == "fwd":
        return Candidate((_chosen("forward", budget, kernel, shape),))
    dkdv = _chosen("dkdv", budget, kernel, shape)
    if dkdv.kernel == "gluon":
        return Candidate((dkdv,))
    return Candidate((dkdv, _chosen("dq", budget, kernel, shape)))


def _chosen(
    direction: Direction, budget: Budget, kernel: str, shape: tuple[int, int]
) -> KernelConfig:
    return choose_config(
        direction,
        dtype=budget.dtype,
        head_dim=budget.head_dim,
        v_head_dim=budget.v_head_dim,
        shared_memory_limit=budget.shared_memory_limit,
        architecture=budget.architecture,
        kernel=kernel,
        shape=shape,
    )


def candidates_of(
    way: Way, budget: Budget, kernels: Sequence[str], default: Candidate
) -> list[Candidate]:
    """All but the default, of each kernel the likely ones first.

    Of the portable backward, one kernel varies at a time beside the usual other one.
    """
    found: list[Candidate] = []
    if "gluon" in kernels and budget.architecture == 90 and budget.dtype in HALVES:
        found += [Candidate((config,)) for config in _gluon(way, budget)]
    if "triton" in kernels and way == "fwd":
        found += [Candidate((config,)) for config in _portable("forward", budget)]
    elif "triton" in kernels:
        base = default_of("bwd", budget, "triton", (0, 0)).configs
        found += [Candidate((dkdv, base[1])) for dkdv in _portable("dkdv", budget)]
        found += [Candidate((base[0], dq)) for dq in _portable("dq", budget)]
    found = [each for each in dict.fromkeys(found) if each != default]
    return [replace(each, reason=_reason(each, budget)) for each in found]


def _gluon(way: Way, budget: Budget) -> list[KernelConfig]:
    if way == "bwd":
        dims = (budget.head_dim, budget.v_head_dim)
        return [GLUON_BACKWARD] if dims in GLUON_BACKWARD_DIMS else []
    return [
        KernelConfig(
            direction="forward",
            block_m=m,
            block_n=n,
            num_warps=m // 16,
            num_stages=stages,
            kernel="gluon",
        )
        for stages, (m, n) in product(GLUON_STAGES["forward"], GLUON_SHAPES["forward"])
    ]


def _portable(direction: Direction, budget: Budget) -> list[KernelConfig]:
    """The product of all axes, what ships first; small shapes only where larger ones do not fit."""
    grid = [
        KernelConfig(direction=direction, block_m=m, block_n=n, num_warps=warps, num_stages=stages)
        for m, n, warps, stages in product(*_AXES[direction])
    ]
    listed = listed_configs(direction, budget, "triton")
    chosen = next(config for config in listed if not shortage(config, budget))
    first = [config for config in listed if config in grid or chosen not in grid]
    return list(dict.fromkeys([*first, *grid]))


def _reason(candidate: Candidate, budget: Budget) -> str:
    return next((why for c in candidate.configs if (why := shortage(c, budget))), "")


def schedules(candidate: Candidate, walks: Mapping[Direction, Walks]) -> list[Candidate]:
    """The same blocks in another order of work: one for each other number of heads in flight."""

    def in_flight(l2_mib: int) -> tuple[int, ...]:
        return tuple(walks[config.direction].in_flight(l2_mib) for config in candidate.configs)

    orders = {in_flight(L2_MIB): L2_MIB}
    for l2_mib in _L2_MIB:
        orders.setdefault(in_flight(l2_mib), l2_mib)
    return [
        Candidate(tuple(replace(config, l2_mib=l2_mib) for config in candidate.configs))
        for l2_mib in orders.values()
        if l2_mib != L2_MIB
    ]


def combined(fastest: Sequence[Candidate], budget: Budget) -> list[Candidate]:
    """The best kernel for dK and dV beside the best for dQ, each found beside the usual other.

    fastest: candidates of the backward, the fastest first.
    """
    base = default_of("bwd", budget, "triton", (0, 0)).configs
    pairs = [each.configs for each in fastest if len(each.configs) == 2]
    dkdv = next((pair[0] for pair in pairs if pair[1] == base[1]), base[0])
    dq = next((pair[1] for pair in pairs if pair[0] == base[0]), base[1])
    pair = (dkdv, dq)
    return [] if not pairs or pair in pairs else [Candidate(pair)]
