"""What tuning measured, as an artifact has it: the configurations that a call can take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from cmask.runtime.kernels import HALVES
from cmask.runtime.kernels.budget import Budget, shortage
from cmask.runtime.kernels.config import Direction, KernelConfig
from cmask.runtime.kernels.config_checks import fault_of
from cmask.runtime.schema import StoredConfig

Measured = dict[Direction, KernelConfig]


def measured_configs(stored: Sequence[StoredConfig], budget: Budget) -> Measured:
    """Of each direction the one that was measured for this target, dtype and head dimension.

    Only what the device can run: an artifact may come from elsewhere.
    """
    if budget.head_dim != budget.v_head_dim:
        return {}
    key = (f"sm_{budget.architecture}", budget.dtype, budget.head_dim)
    found = [
        KernelConfig.from_fields(asdict(config))
        for config in stored
        if config.measured is not None and (config.target, config.dtype, config.head_dim) == key
    ]
    fit = {
        config.direction: config
        for config in found
        if _exists(config, budget) and not shortage(config, budget)
    }
    kernels = [fit[direction].kernel for direction in ("dkdv", "dq") if direction in fit]
    if kernels == ["triton", "gluon"]:  # no kernel makes dQ beside a portable dK and dV
        del fit["dq"]
    return fit


def _exists(config: KernelConfig, budget: Budget) -> bool:
    """Whether there is such a kernel."""
    if fault_of(config, budget.head_dim, budget.v_head_dim):
        return False
    return config.kernel == "triton" or (budget.architecture == 90 and budget.dtype in HALVES)


def kernel_of(measured: Measured, *, needs_grad: bool) -> str | None:
    """The kernel of a call by its measured forward; None if the usual one is to run.

    A Hopper backward needs the Hopper forward: a portable forward is not worth its loss.
    """
    forward, dkdv = measured.get("forward"), measured.get("dkdv")
    if forward is None:
        return None
    if needs_grad and dkdv is not None and dkdv.kernel == "gluon":
        return dkdv.kernel
    return forward.kernel


def of_kernel(measured: Measured, kernel: str) -> Measured:
    """What can run in a call by this kernel; its backward may be the portable one."""
    return {
        direction: config
        for direction, config in measured.items()
        if config.kernel == kernel or (direction != "forward" and config.kernel == "triton")
    }
