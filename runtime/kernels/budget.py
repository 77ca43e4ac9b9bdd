"""What a device gives one program of a kernel, and whether a configuration makes do with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cmask.runtime.kernels.config import KernelConfig

ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}  # [bytes]
SMALLEST_SHARED_MEMORY = 99 * 1024  # [bytes] sm_86, sm_89, sm_120; CUDA programming guide, 20.2
# float32 registers a thread that may hold scores and results, of the 255 that it has: where a
# warp group multiplies from shared memory, where operands need registers, too, and for float32
# The Hopper forward's consumers hold the weights of a block, too.
MAX_ACCUMULATORS = {"shared": 200, "registers": 100, "float32": 64, "gluon": 168}


def padded_dim(head_dim: int) -> int:
    """The head dimension of a block: a power of two, and 16 at least for a matrix product."""
    return max(16, 1 << (head_dim - 1).bit_length())


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A device and the tensors of a call.

    dtype                "bfloat16", "float16" or "float32"
    shared_memory_limit  that one program of the device may have [bytes]
    architecture         compute capability as one number, 90 for sm_90
    """

    dtype: str
    head_dim: int
    v_head_dim: int
    shared_memory_limit: int = SMALLEST_SHARED_MEMORY
    architecture: int = 80


def shortage(config: KernelConfig, budget: Budget) -> str:
    """What a configuration lacks there, in words; empty if it fits, beside others of its kind."""
    if lack := lack_of_memory(config, budget, config.programs_sharing):
        return lack
    held = config.accumulators(head_dim=budget.head_dim, v_head_dim=budget.v_head_dim)
    most = _most_accumulators(config, budget)
    if held > most:
        return f"needs {held} registers a thread for scores and results, there are {most}"
    return ""


def lack_of_memory(config: KernelConfig, budget: Budget, programs: int = 1) -> str:
    """What so many programs on one multiprocessor lack of shared memory; empty if they fit."""
    needed = programs * config.shared_memory_bytes(
        head_dim=budget.head_dim,
        v_head_dim=budget.v_head_dim,
        itemsize=ITEMSIZE[budget.dtype],
        architecture=budget.architecture,
    )
    if needed <= budget.shared_memory_limit:
        return ""
    return f"needs {needed:,} bytes of shared memory, there are {budget.shared_memory_limit:,}"


def _most_accumulators(config: KernelConfig, budget: Budget) -> int:
    if config.kernel == "gluon" and config.direction == "forward":
        # a program of one warpgroup starts with 128 registers a thread
        return MAX_ACCUMULATORS["registers" if config.block_m == 64 else "gluon"]
    if config.kernel == "gluon":
        return MAX_ACCUMULATORS["shared"]
    if budget.dtype == "float32":
        return MAX_ACCUMULATORS["float32"]
    return MAX_ACCUMULATORS["shared" if 90 <= budget.architecture < 120 else "registers"]
