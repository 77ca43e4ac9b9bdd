"""What configurations of kernels there are: asked of a caller's, a stored one and the tuner's."""

from __future__ import annotations

from cmask.runtime.checks import listed
from cmask.runtime.kernels.config import (
    DIRECTIONS,
    GLUON_BACKWARD_DIMS,
    GLUON_SHAPES,
    GLUON_STAGES,
    KernelConfig,
)

SIDES = (16, 32, 64, 128)  # a matrix product's least side; lists and bounds are padded to 128
WARPS = (1, 2, 4, 8, 16, 32)
MOST_STAGES = 8


def check_config(config: KernelConfig, kernel: str, head_dim: int, v_head_dim: int) -> None:
    """Refuse a configuration that no kernel has, or not the one that runs.

    kernel: of the call.  Raises ValueError.
    """
    if why := fault_of(config, head_dim, v_head_dim):
        raise ValueError(why)
    if config.direction == "forward" and config.kernel != kernel:
        raise ValueError(f'a forward by "{config.kernel}" needs that kernel, got {kernel}')
    if config.kernel == "gluon" and kernel != "gluon":
        raise ValueError(f'{config.direction} by "gluon" needs kernel="gluon", got {kernel}')


def fault_of(config: KernelConfig, head_dim: int, v_head_dim: int) -> str:
    """Why no kernel has such a configuration, in words; empty if one has."""
    if config.direction not in DIRECTIONS:
        return f"direction must be one of {listed(DIRECTIONS)}, got {config.direction!r}"
    if config.kernel not in ("triton", "gluon"):
        return f'a configuration is for "triton" or "gluon", got {config.kernel!r}'
    numbers = (config.block_m, config.block_n, config.num_warps, config.num_stages, config.l2_mib)
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        return f"a configuration has whole numbers above 0, got {config}"
    if config.kernel == "gluon":
        return _fault_on_hopper(config, head_dim, v_head_dim)
    name = f'{config.direction} by "triton"'
    if not {config.block_m, config.block_n} <= set(SIDES):
        shape = f"{config.block_m} × {config.block_n}"
        return f"{name} has blocks with sides of {listed(SIDES)}, got {shape}"
    if config.num_warps not in WARPS:
        return f"{name} has {listed(WARPS)} warps, got {config.num_warps}"
    if config.num_stages > MOST_STAGES:
        return f"{name} has at most {MOST_STAGES} stages, got {config.num_stages}"
    return ""


def _fault_on_hopper(config: KernelConfig, head_dim: int, v_head_dim: int) -> str:
    name = f'{config.direction} by "gluon"'
    shapes, stages = GLUON_SHAPES[config.direction], GLUON_STAGES[config.direction]
    if (config.block_m, config.block_n) not in shapes:
        known = listed(f"{m} × {n}" for m, n in shapes)
        return f"{name} has blocks of {known}, got {config.block_m} × {config.block_n}"
    if config.num_stages not in stages:
        return f"{name} has {listed(stages)} stages, got {config.num_stages}"
    warps = config.block_m // 16 if config.direction == "forward" else 8
    if config.num_warps != warps:
        return f"{name} has {warps} warps for such blocks, got {config.num_warps}"
    if config.direction != "forward" and (head_dim, v_head_dim) not in GLUON_BACKWARD_DIMS:
        return (
            f"{name} serves head dimensions 64 and 128, the same for q and v, got {head_dim} and "
            f"{v_head_dim}"
        )
    return ""
