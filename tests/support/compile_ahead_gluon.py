"""Compiles the Hopper kernel where there is no GPU and reads the code that came out; prints JSON.

In tests/: python -m support.compile_ahead_gluon few|all
The product's own host code runs up to the launch, so that descriptors, constants and registers are
those of real calls.  A process of its own, like `compile_ahead`.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest import mock

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from cmask.runtime.derive.boxes import GridRows
from cmask.runtime.kernels import gluon_backward_launch, gluon_forward_launch
from cmask.runtime.kernels.budget import ITEMSIZE
from cmask.runtime.kernels.config import (
    GLUON_BACKWARD_DQ,
    Direction,
    KernelConfig,
    choose_config,
)
from cmask.runtime.kernels.gluon_forward_sm90 import attention_forward
from cmask.runtime.kernels.launch import Launch
from support.ahead import SHARED_MEMORY, compile_measured, report
from support.sass import product_loops

TARGET = 90
WARPGROUP = 64  # queries
HEADS, KV_HEADS = 4, 2
TEXT = 100  # tokens before a grid
ONE_WARPGROUP = (64, 64)  # queries and keys of a block


def _grid(tile: tuple[int, ...], sizes: tuple[int, ...]) -> GridRows:
    """A grid behind some text, cut into tiles that divide it."""
    *frames, rows, columns = sizes
    tiles = [size // step for size, step in zip(sizes, tile, strict=True)]
    slots = math.prod(tiles) * math.prod(tile)
    return GridRows(
        first_slot=128, stop_slot=128 + slots, tiles_down=tiles[-2], tiles_across=tiles[-1],
        frames=frames[0] if frames else 1, rows=rows, columns=columns,
        first_token=TEXT, line_first=0, line_length=TEXT,
        tile_frames=tile[0] if frames else 0, tile_rows=tile[-2], tile_columns=tile[-1],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """One kind of call; `shape` None: the block shape that is chosen first."""

    dims: tuple[int, int] = (128, 128)
    has_patterns: bool = True
    num_intervals: int = 0
    dtype: str = "bfloat16"
    grid: GridRows | None = None
    shape: tuple[int, int] | None = None


IMAGE = _grid((8, 16), (64, 96))
SMALL_TILES = _grid((8, 8), (64, 96))
VIDEO = _grid((4, 4, 8), (12, 20, 40))
FEW = {
    "pattern": Variant(),
    "bounds": Variant(has_patterns=False, num_intervals=1),
    "full": Variant(has_patterns=False),
    "grid of two axes": Variant(grid=IMAGE),
    "head_dim 64": Variant(dims=(64, 64)),
}
ALL = FEW | {
    "float16": Variant(dtype="float16"),
    "float16 bounds": Variant(has_patterns=False, num_intervals=1, dtype="float16"),
    "two intervals": Variant(has_patterns=False, num_intervals=2),
    "four intervals": Variant(has_patterns=False, num_intervals=4),
    "pattern and bounds": Variant(num_intervals=1),
    "grid of three axes": Variant(grid=VIDEO),
    "head_dim 256": Variant(dims=(256, 256)),
    "head_dim 256 bounds": Variant(dims=(256, 256), has_patterns=False, num_intervals=1),
    "head_dim 96": Variant(dims=(96, 96)),
    "head_dim 192/128": Variant(dims=(192, 128)),
    "head_dim 192/128 bounds": Variant(dims=(192, 128), has_patterns=False, num_intervals=1),
    "head_dim 192/128 on a grid": Variant(dims=(192, 128), grid=VIDEO),
    "head_dim 64/128": Variant(dims=(64, 128)),
    "head_dim 16": Variant(dims=(16, 16)),
    "one warpgroup": Variant(shape=ONE_WARPGROUP),
    "one warpgroup on a grid": Variant(shape=ONE_WARPGROUP, grid=SMALL_TILES),
}


def examine(name: str, variant: Variant) -> dict[str, Any]:
    """Resources of the kernel of one kind of call, and its loops."""
    config = _chosen(variant, "forward")
    kernel, measured = compile_measured(lambda: _compiled(variant, config), TARGET)
    kinds = 1 + variant.has_patterns + (variant.num_intervals > 0)
    return {
        "name": name,
        "config": f"{config.block_m}x{config.block_n} w{config.num_warps} s{config.num_stages}",
        "budget": _budget(variant, config),
        "scores": config.block_n // 2,  # of a block, in a thread: each needs an exponential
        "num_loops": kinds * config.block_m // WARPGROUP,
        **measured,
        "loops": [_fields(loop) for loop in product_loops(_disassembled(kernel))],
    }


def _budget(variant: Variant, config: KernelConfig) -> int:
    d, dv = variant.dims
    return config.shared_memory_bytes(
        head_dim=d, v_head_dim=dv, itemsize=ITEMSIZE[variant.dtype], architecture=TARGET
    )


def _chosen(variant: Variant, direction: Direction) -> KernelConfig:
    return choose_config(
        direction,
        dtype=variant.dtype,
        head_dim=variant.dims[0],
        v_head_dim=variant.dims[1],
        shared_memory_limit=SHARED_MEMORY[TARGET] * 1024,
        architecture=TARGET,
        kernel="gluon",
        shape=variant.shape,
    )


def _disassembled(kernel: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(kernel.asm["cubin"])
        command = [knobs.nvidia.nvdisasm.path, "-c", str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _fields(loop: Any) -> dict[str, int]:
    return {name: getattr(loop, name) for name in loop.__slots__}


# ------------------------------------------------------------------------------ without a GPU


class _Hopper:
    """As much of a driver as compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", TARGET, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


class _Compiled(Exception):
    """The kernel of a call, instead of its launch."""


def _compiled(variant: Variant, config: KernelConfig) -> Any:
    """What the host code makes Triton compile for a call."""
    warmup = attention_forward.warmup

    def compile_only(*arguments: Any, **options: Any) -> NoReturn:
        raise _Compiled(warmup(*arguments, **options))

    driver.set_active(_Hopper())
    processor = SimpleNamespace(multi_processor_count=132)
    with (
        mock.patch.object(attention_forward, "warmup", compile_only),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=processor),
    ):
        try:
            _call(variant, config)
        except _Compiled as compiled:
            return compiled.args[0]
    raise RuntimeError("the host code has compiled nothing")


def _call(variant: Variant, config: KernelConfig) -> None:
    """One call, on tensors of the host; what is in them does not matter."""
    tokens = _tokens(variant)
    dtype = getattr(torch, variant.dtype)
    d, dv = variant.dims
    q, out = (torch.zeros(1, HEADS, tokens, dim, dtype=dtype) for dim in (d, dv))
    k, v = (torch.zeros(1, KV_HEADS, tokens, dim, dtype=dtype) for dim in (d, dv))
    launch = _launch(variant, config, -(-tokens // config.block_m))
    gluon_forward_launch.forward(q, k, v, (launch,), d**-0.5, out=out)


def _tokens(variant: Variant) -> int:
    grid = variant.grid
    return 1024 if grid is None else TEXT + grid.frames * grid.rows * grid.columns


def _launch(variant: Variant, config: KernelConfig, num_blocks: int) -> Launch:
    """Lists of the right shapes."""
    shapes = {
        "offsets": (3, num_blocks + 1),
        "counts": (2, num_blocks),
        "entries": (num_blocks, 2),
        "patterns": (1, max(config.block_m, config.block_n), 4),
        "bounds": (2 * max(1, variant.num_intervals), num_blocks * config.block_m),
        "key_is_read": (num_blocks * config.block_m,),
        "items": (HEADS * num_blocks, 2),
        "owners": (num_blocks, 2),
        "heavy": (1, 3),
        "tokens": (num_blocks * config.block_m,),
    }
    return Launch(
        **{name: torch.ones(shape, dtype=torch.int32) for name, shape in shapes.items()},
        block_m=config.block_m,
        block_n=config.block_n,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        num_intervals=variant.num_intervals,
        has_patterns=int(variant.has_patterns),
        has_unread_keys=0,
        has_empty_rows=0,
        is_gluon=1,
        num_slots=2,
        first_key=0,
        stop_key=_tokens(variant),
        has_holes=0,
        grid=variant.grid,
    )


# ------------------------------------------------------------------------------ backward


def examine_backward(name: str, variant: Variant, *, has_dq: bool) -> dict[str, Any]:
    """The same of dK, dV and (unless it is to be deterministic) dQ."""
    config = _chosen(variant, "dkdv")
    return _examined(name, variant, config, lambda: _backward(variant, config, has_dq))


def examine_dq(name: str, variant: Variant) -> dict[str, Any]:
    """The same of dQ by a kernel of its own."""
    return _examined(f"dq {name}", variant, GLUON_BACKWARD_DQ, lambda: _dq(variant))


def _examined(
    name: str, variant: Variant, config: KernelConfig, compile_it: Callable[[], Any]
) -> dict[str, Any]:
    kernel, measured = compile_measured(compile_it, TARGET)
    kinds = 1 + variant.has_patterns + (variant.num_intervals > 0)
    return {
        "name": f"backward {name}",
        "budget": _budget(variant, config),
        "num_loops": 2 * kinds,
        **measured,
        "loops": [_fields(loop) for loop in product_loops(_disassembled(kernel))],
    }


def _dq(variant: Variant) -> Any:
    d, tokens = variant.dims[0], _tokens(variant)
    dtype = getattr(torch, variant.dtype)
    q, k = (torch.zeros(1, heads, tokens, d, dtype=dtype) for heads in (HEADS, KV_HEADS))
    rows = torch.zeros(HEADS, tokens)
    launch = _launch(variant, GLUON_BACKWARD_DQ, tokens // 128)
    inputs = gluon_backward_launch.triton_backward.Inputs(q, k, k, q)
    return _instead_of_running(
        gluon_backward_launch.attention_backward_dq,
        launch,
        lambda: gluon_backward_launch.by_query(inputs, rows, rows, launch, 1.0, q),
    )


def _backward(variant: Variant, config: KernelConfig, has_dq: bool) -> Any:
    d, tokens = variant.dims[0], _tokens(variant)
    dtype = getattr(torch, variant.dtype)
    q, k = (torch.zeros(1, heads, tokens, d, dtype=dtype) for heads in (HEADS, KV_HEADS))
    rows = torch.zeros(HEADS, tokens)
    sums = torch.zeros(HEADS, tokens // 64, 2, 32 * d) if has_dq else None
    launch = _launch(variant, config, tokens // 128)
    return _instead_of_running(
        gluon_backward_launch.attention_backward,
        launch,
        lambda: gluon_backward_launch.by_key((q, k, k, q), (rows, rows), launch, 1.0, k, k, sums),
    )


def _instead_of_running(kernel: Any, launch: Launch, call: Callable[[], None]) -> Any:
    """What a call compiles."""
    run = kernel.run

    def compile_only(*arguments: Any, grid: Any, warmup: bool, **options: Any) -> NoReturn:
        raise _Compiled(run(*arguments, grid=grid, warmup=True, **options))

    driver.set_active(_Hopper())
    processor = SimpleNamespace(multi_processor_count=132)
    with (
        mock.patch.object(kernel, "run", compile_only),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=processor),
        mock.patch.object(gluon_backward_launch, "current_tickets", return_value=launch.items),
    ):
        try:
            call()
        except _Compiled as compiled:
            return compiled.args[0]
    raise RuntimeError("the host code has compiled nothing")


BACKWARD = {
    "pattern": (Variant(), True),
    "grid of two axes": (Variant(grid=IMAGE), True),
    "bounds": (Variant(has_patterns=False, num_intervals=1), True),
}
DQ = {
    "pattern": Variant(),
    "bounds": Variant(has_patterns=False, num_intervals=1),
}
ALL_DQ = DQ | {
    "full": Variant(has_patterns=False),
    "four intervals": Variant(has_patterns=False, num_intervals=4),
    "float16 head_dim 64": Variant(dims=(64, 64), dtype="float16"),
    "grid of two axes": Variant(grid=IMAGE),
    "grid of three axes": Variant(grid=VIDEO),
}
ALL_BACKWARD = BACKWARD | {
    "full": (Variant(has_patterns=False), True),
    "four intervals": (Variant(has_patterns=False, num_intervals=4), True),
    "float16 head_dim 64": (Variant(dims=(64, 64), dtype="float16"), True),
    "without dQ": (Variant(), False),
    "grid of three axes": (Variant(grid=VIDEO), True),
    "grid of small tiles": (Variant(grid=SMALL_TILES), True),
}


if __name__ == "__main__":
    for name, variant in {"few": FEW, "all": ALL}[sys.argv[1]].items():
        report(examine(name, variant))
    for name, (variant, has_dq) in {"few": BACKWARD, "all": ALL_BACKWARD}[sys.argv[1]].items():
        report(examine_backward(name, variant, has_dq=has_dq))
    for name, variant in {"few": DQ, "all": ALL_DQ}[sys.argv[1]].items():
        report(examine_dq(name, variant))
