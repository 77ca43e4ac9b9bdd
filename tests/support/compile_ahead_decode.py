"""Compiles the decode kernels for GPUs that are not here; prints JSON.

In tests/: python -m support.compile_ahead_decode few|all TARGET...
A process of its own: the tests' process has imported triton as an interpreter.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from cmask.runtime.kernels.budget import ITEMSIZE, padded_dim
from cmask.runtime.kernels.decode_config import choose_decode_config
from cmask.runtime.kernels.decode_launch import stages_of_loop
from cmask.runtime.kernels.triton_decode import decode_splits, merge_splits
from support.ahead import SHARED_MEMORY, compile_measured, report

TRITON_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class Case(NamedTuple):
    """One kernel: page_size 0 is a contiguous cache."""

    packed_rows: int = 8
    dims: tuple[int, int] = (128, 128)
    dtype: str = "bfloat16"
    page_size: int = 0
    is_ragged: bool = False
    intervals: int = 1
    step: int = 8


FEW = (
    Case(),
    Case(packed_rows=64),
    Case(page_size=16, is_ragged=True),
    Case(packed_rows=64, page_size=16, is_ragged=True, intervals=4),
)
ALL = (
    *FEW,
    Case(packed_rows=32, page_size=64, is_ragged=True, intervals=2),
    Case(packed_rows=64, page_size=256, is_ragged=True),
    *(
        Case(rows, dims)
        for rows in (8, 64)
        for dims in ((64, 64), (256, 256), (192, 128), (40, 40))
    ),
    Case(dtype="float16"),
    Case(step=1),
    *(Case(8, (d, d), "float32", 16, True, 2, 4) for d in (64, 128, 256)),
)


def compile_splits(target: int, case: Case) -> dict[str, Any]:
    """Resources of the kernel that walks the keys."""
    limit = SHARED_MEMORY[target] * 1024
    head_dim, v_head_dim = case.dims
    config = choose_decode_config(
        packed_rows=case.packed_rows,
        dtype=case.dtype,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        page_size=case.page_size,
        shared_memory_limit=limit,
    )
    constants: dict[str, Any] = {
        "NUM_INTERVALS": case.intervals,
        "PAGE_SIZE": case.page_size,
        "K_STEP": case.step,
        "V_STEP": case.step,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "HEAD_DIM": head_dim,
        "PADDED": padded_dim(head_dim),
        "V_HEAD_DIM": v_head_dim,
        "V_PADDED": padded_dim(v_head_dim),
        "NUM_STAGES": stages_of_loop(config.num_stages, case.page_size),
        "PRECISION": "ieee" if case.dtype == "float32" else "tf32",
    }
    absent = [] if case.is_ragged else ["KV_LENS", "KV_STARTS"]
    absent += [] if case.page_size else ["PAGES"]
    constants |= dict.fromkeys(absent)
    found = _compile(
        decode_splits, constants, case.dtype, target, config.num_warps, config.num_stages
    )
    budget = config.shared_memory_bytes(
        head_dim=head_dim, v_head_dim=v_head_dim, itemsize=ITEMSIZE[case.dtype]
    )
    shape = f"{config.block_m}x{config.block_n} w{config.num_warps} s{config.num_stages}"
    is_common = case.step > 1 and (case.dtype != "float32" or max(case.dims) <= 128)
    return {
        "name": f"decode {case}",
        "config": shape,
        "budget": budget,
        "is_common": is_common,
        **found,
    }


def compile_merge(target: int, splits: int) -> dict[str, Any]:
    """Resources of the kernel that sums the shares up."""
    constants = {"SPLITS": splits, "V_HEAD_DIM": 256, "BLOCK": 128}
    found = _compile(merge_splits, constants, "bfloat16", target, 4, 2)
    return {"name": f"merge {splits}", "budget": 1 << 14, "is_common": True, **found}


def _compile(
    kernel: Any,
    constants: dict[str, Any],
    dtype: str,
    target: int,
    num_warps: int,
    num_stages: int,
) -> dict[str, Any]:
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else _type(n, dtype) for n in names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if str(signature[name]).startswith("*")
    }
    for i, name in enumerate(names):
        if name.endswith("_layout"):  # its last stride is 1
            constants = {**constants, (i, 3): 1}
            signature[name] = (*signature[name][:3], "constexpr")
    source = ASTSource(kernel, signature, constants, aligned)
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
    gpu = GPUTarget("cuda", target, 32)
    return compile_measured(lambda: triton.compile(source, target=gpu, options=options), target)[1]


def _type(name: str, dtype: str) -> str | tuple[str, ...]:
    if name.endswith("_layout"):
        return ("i32",) * 4
    if name in ("Q", "K", "V", "OUT"):
        return f"*{TRITON_NAMES[dtype]}"
    if name in ("PARTIAL", "PARTIAL_LSE", "LSE"):
        return "*fp32"
    if name.isupper():
        return "*i32"
    return "fp32" if name in ("scale", "lse_unit") else "i32"


def main(which: str, targets: list[int]) -> None:
    """Each result on a line of its own."""
    for target in targets:
        for splits in (2, 64):
            report(compile_merge(target, splits))
        for case in FEW if which == "few" else ALL:
            report(compile_splits(target, case))


if __name__ == "__main__":
    main(sys.argv[1], [int(target) for target in sys.argv[2:]])
