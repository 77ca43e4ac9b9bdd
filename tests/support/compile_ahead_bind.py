"""Compiles the kernels that bind lengths for GPUs that are not here; prints JSON.

In tests/: python -m support.compile_ahead_bind TARGET...
A process of its own: the tests' process has imported triton as an interpreter.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from cmask.runtime.kernels.triton_bind_blocks import place_runs, runs_by_query
from cmask.runtime.kernels.triton_bind_keys import mark_blocks, mark_read_keys, runs_by_key
from cmask.runtime.kernels.triton_bind_order import order_items
from cmask.runtime.kernels.triton_bind_rows import bind_rows, bind_segments
from support.ahead import compile_measured, report

NARROW = ("BOUNDS", "RUNS", "COUNTS", "OFFSETS", "ENTRIES", "ERRORS", "ITEMS", "KEY_IS_READ")
NARROW += ("BITS", "PLACES", "FURTHEST", "FURTHEST_OF_BLOCK")
SHAPES = ((128, 128), (64, 128), (32, 32))


def kernels() -> Iterator[tuple[Any, dict[str, Any], int]]:
    """(kernel, constants, warps) of all that a binding launches."""
    yield bind_segments, {"NUM_TERMS": 6, "BLOCK": 512}, 4
    for intervals in (1, 2, 4):
        yield bind_rows, {"NUM_INTERVALS": intervals, "KEPT": 8, "ROWS": 32}, 1
        for m, n in SHAPES if intervals == 4 else SHAPES[:1]:
            shape = {"NUM_INTERVALS": intervals, "BLOCK_M": m, "BLOCK_N": n}
            for write, marks in ((False, False), (False, True), (True, False)):
                kind = {"WRITE": write, "PLACED": False, "MARKS": marks, "KEYS": 128}
                yield runs_by_query, {**shape, **kind}, 1
    yield place_runs, {"BLOCK": 4096}, 8
    yield mark_blocks, {"BLOCK": 32}, 1
    for write, placed in ((False, False), (True, False), (True, True)):
        yield runs_by_key, {"WRITE": write, "PLACED": placed, "BLOCK": 32}, 1
    yield mark_read_keys, {"BLOCK": 1024, "KEYS": 128}, 4
    yield order_items, {"PARTIAL_COST": 1.2, "OWNERS": 32, "OTHERS": 128, "HEADS": 32}, 4


def compile_one(kernel: Any, constants: dict[str, Any], warps: int, target: int) -> dict[str, Any]:
    """Resources of one kernel."""
    signature: dict[str, str] = {}
    for name in kernel.arg_names:
        pointer = "*i32" if name in NARROW else "*i64"
        signature[name] = pointer if name.isupper() else "i32"
    signature |= dict.fromkeys(constants, "constexpr")
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*")
    }
    source = ASTSource(kernel, signature, constants, aligned)
    options = {"num_warps": warps, "enable_fp_fusion": False}
    gpu = GPUTarget("cuda", target, 32)
    found = compile_measured(lambda: triton.compile(source, target=gpu, options=options), target)
    return {"name": kernel.__name__, "constants": constants, **found[1]}


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        for each, values, num_warps in kernels():
            report(compile_one(each, values, num_warps, number))
