"""Compiles the portable kernels for GPUs that are not here; prints JSON.

In tests/: python -m support.compile_ahead few|all TARGET...
A process of its own: the tests' process has imported triton as an interpreter.
"""

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from cmask.runtime.kernels.budget import padded_dim
from cmask.runtime.kernels.config import DIRECTIONS, Direction, KernelConfig, choose_config
from cmask.runtime.kernels.triton_backward import backward_dkdv, backward_dq, backward_rows
from cmask.runtime.kernels.triton_forward import attention_forward
from support.ahead import SHARED_MEMORY, compile_measured, report

KERNELS = {"forward": attention_forward, "dkdv": backward_dkdv, "dq": backward_dq}
TRITON_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
BY_QUERY = ("Q", "GRAD_OUT", "OUT", "DQ")
BY_VALUE_DIM = ("V", "OUT", "GRAD_OUT", "DV")
TENSORS = ("Q", "K", "V", "OUT", "GRAD_OUT", "DQ", "DK", "DV")
MASKS = {"pattern": (0, True), "bounds": (1, False), "four intervals": (4, True)}


def compile_one(
    target: int, direction: Direction, dtype: str, dims: tuple[int, int], mask: str, flag: bool
) -> dict[str, Any]:
    """Resources of one kernel with the configuration that ships for it."""
    limit = SHARED_MEMORY[target] * 1024
    config = choose_config(
        direction,
        dtype=dtype,
        head_dim=dims[0],
        v_head_dim=dims[1],
        shared_memory_limit=limit,
        architecture=target,
    )
    kernel = KERNELS[direction]
    tma = 90 <= target < 120 and dtype != "float32"
    constants = _constants(config, kernel.arg_names, tma, dtype, dims, mask, flag)
    types = {name: _type(name, tma, config, dtype, dims) for name in kernel.arg_names}
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    found = _compile(kernel, signature, constants, target, config.num_warps, config.num_stages)
    itemsize = 4 if dtype == "float32" else 2
    budget = config.shared_memory_bytes(
        head_dim=dims[0], v_head_dim=dims[1], itemsize=itemsize, architecture=target
    )
    name = f"{direction} {dtype} {dims[0]}/{dims[1]} {mask}{' flag' if flag else ''}"
    shape = f"{config.block_m}x{config.block_n} w{config.num_warps} s{config.num_stages}"
    return {"name": name, "config": shape, "budget": budget, **found}


def compile_rows(target: int) -> dict[str, Any]:
    """Resources of the kernel that runs before the other two of the backward."""
    names = backward_rows.arg_names
    pointers = {"OUT": "*bf16", "GRAD_OUT": "*bf16"}
    constants = {"HAS_GRAD_LSE": True, "BLOCK": 32, "HEAD_DIM": 128, "PADDED_DIM": 128}
    signature = {n: pointers.get(n, "*fp32" if n.isupper() else "i32") for n in names}
    signature |= dict.fromkeys(constants, "constexpr")
    found = _compile(backward_rows, signature, constants, target, 4, 2)
    return {"name": "rows", "config": "", "budget": 1 << 20, **found}


def _constants(
    config: KernelConfig,
    names: list[str],
    tma: bool,
    dtype: str,
    dims: tuple[int, int],
    mask: str,
    flag: bool,
) -> dict[str, Any]:
    every: dict[str, Any] = {
        "NUM_INTERVALS": MASKS[mask][0],
        "HAS_PATTERNS": MASKS[mask][1],
        "UNREAD_KEYS": flag,
        "EMPTY_ROWS": flag,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "HEAD_DIM": padded_dim(dims[0]),
        "V_HEAD_DIM": padded_dim(dims[1]),
        "NUM_STAGES": config.num_stages,
        "PRECISION": "ieee" if dtype == "float32" else "tf32",
        "TMA": tma,
    }
    if tma:
        every |= {name: None for name in names if name.endswith("_layout")}
    return {name: value for name, value in every.items() if name in names}


def _type(
    name: str, tma: bool, config: KernelConfig, dtype: str, dims: tuple[int, int]
) -> str | tuple[str, ...]:
    if name.endswith("_layout"):
        return "constexpr" if tma else ("i32",) * 5
    if name in TENSORS:
        rows = config.block_m if name in BY_QUERY else config.block_n
        dim = padded_dim(dims[1] if name in BY_VALUE_DIM else dims[0])
        scalar = TRITON_NAMES[dtype]
        return f"tensordesc<{scalar}[1,1,{rows},{dim}]>" if tma else f"*{scalar}"
    if name in ("LSE_BASE_2", "DELTA", "BOUNDS") and tma and config.direction == "dkdv":
        return f"tensordesc<{'i32' if name == 'BOUNDS' else 'fp32'}[1,{config.block_m}]>"
    if name in ("LSE", "LSE_BASE_2", "DELTA"):
        return "*fp32"
    if name.isupper():
        return "*i32"
    return "fp32" if "scale" in name else "i32"


def _compile(
    kernel: Any,
    signature: dict[str, Any],
    constants: dict[str, Any],
    target: int,
    num_warps: int,
    num_stages: int,
) -> dict[str, Any]:
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(kernel.arg_names)
        if str(signature[name]).startswith("*") or name.endswith("_stride")
    }
    source = ASTSource(kernel, signature, constants, aligned)
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
    gpu = GPUTarget("cuda", target, 32)
    return compile_measured(lambda: triton.compile(source, target=gpu, options=options), target)[1]


def main(which: str, targets: list[int]) -> None:
    """Each result on a line of its own."""
    halves = ("bfloat16",) if which == "few" else ("bfloat16", "float16")
    dims = (
        ((128, 128),)
        if which == "few"
        else ((64, 64), (128, 128), (256, 256), (192, 128), (40, 40))
    )
    for target in targets:
        report(compile_rows(target))
        for direction in DIRECTIONS:
            cases = [
                (half, dim, mask, False)
                for half in halves
                for dim in dims
                for mask in ("pattern", "bounds")
            ]
            if which == "all":
                cases += [("bfloat16", (128, 128), "four intervals", True)]
                cases += [("float32", dim, "pattern", True) for dim in ((64, 64), (256, 256))]
            for dtype, dim, mask, flag in cases:
                report(compile_one(target, direction, dtype, dim, mask, flag))


if __name__ == "__main__":
    main(sys.argv[1], [int(target) for target in sys.argv[2:]])
