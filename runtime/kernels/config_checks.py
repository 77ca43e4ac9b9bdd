"""What configurations of kernels there are: asked of a caller's, a stored one and the tuner's."""

from __future__ import annotations

from cmask.runtime.checks import listed
from cmask.runtime.kernels.config import (
    DIRECTIONS,
    GLUON_BACKWARD_DIMS,
    GLUON_SHAPES,
    GLUON_STAGES,
    MOST_STAGES,
    WARPS,
    KernelConfig,
)
from cmask.runtime.kernels.decode_config import DecodeConfig

_SIDES = (16, 32, 64, 128)  # a matrix product's least side; lists and bounds are padded to 128


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
    return fault_of_launch(f'{config.direction} by "triton"', config)


def fault_of_launch(name: str, launch: KernelConfig | DecodeConfig) -> str:
    """The same of what Triton is launched with; name: of the kernel."""
    if not {launch.block_m, launch.block_n} <= set(_SIDES):
        shape = f"{launch.block_m} × {launch.block_n}"
        return f"{name} has blocks with sides of {listed(_SIDES)}, got {shape}"
    if launch.num_warps not in WARPS:
        return f"{name} has {listed(WARPS)} warps, got {launch.num_warps}"
    if not 1 <= launch.num_stages <= MOST_STAGES:
        return f"{name} has 1 to {MOST_STAGES} stages, got {launch.num_stages}"
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
