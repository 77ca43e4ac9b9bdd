"""What the decode kernel takes of a plan: its rows as intervals of keys, on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from cmask.runtime.derive.bound import BoundMask
from cmask.runtime.derive.rows import RowIntervals
from cmask.runtime.derive.signatures import MAX_BOUNDS, row_bounds
from cmask.runtime.kernels.budget import ITEMSIZE, SMALLEST_SHARED_MEMORY
from cmask.runtime.kernels.config_checks import fault_of_launch
from cmask.runtime.kernels.decode_config import (
    DecodeConfig,
    DecodeLaunch,
    choose_decode_config,
    choose_splits,
)
from cmask.runtime.lasting import lasting


class DecodeKind(NamedTuple):
    """What decides how a call of the decode kernel runs."""

    batch: int
    num_q_heads: int
    num_kv_heads: int
    rows: int
    head_dim: int
    v_head_dim: int
    dtype: torch.dtype
    device: torch.device
    capacity: int  # keys of a sequence at most
    page_size: int  # 0: not paged
    is_ragged: bool  # the device knows how many there are
    kernel: str | None = None
    num_splits: int | None = None
    config: DecodeConfig | None = None


@dataclass(frozen=True, eq=False)
class Decoding:
    """The rows of a plan on a device, and how a kind of call walks them.

    bounds     int32[2 * num_intervals, rows]: start_0, stop_0, start_1, ... of the disjoint key
               intervals [start, stop) of each row, ascending; unused ones are [0, 0)
    most_keys  that one row sees
    integers   `DecodeLaunch`, as the operator takes it
    kernel     "triton" or "reference"
    """

    bounds: Tensor
    most_keys: int
    integers: list[int]
    kernel: str


class HasRows(Protocol):
    """What is asked of a plan here."""

    @property
    def decoding(self) -> dict[DecodeKind, Decoding]:
        """What earlier calls prepared, by their kind."""

    @property
    def bound(self) -> BoundMask:
        """The mask at its sizes."""


def why_not_rows(bound: BoundMask) -> str:
    """Why the kernel cannot take the rows of a mask, in words; empty if it can."""
    intervals = bound.row_intervals()
    if intervals is None:
        return "some rule of the mask does not show intervals of keys"
    most = int(intervals.counts.max(initial=0))
    if most > MAX_BOUNDS:
        return f"a row of the mask sees {most} intervals of keys, the kernel takes {MAX_BOUNDS}"
    return ""


def decoding_of(plan: HasRows, kind: DecodeKind, kernel: str) -> Decoding:
    """How the plan decodes calls of a kind, made once; `why_not_rows` must be empty.

    kernel: "triton" or "reference".
    """
    if kind not in plan.decoding:
        with lasting():
            bounds, most_keys = _table(plan, kind.device)
        launch = _launch(kind, most_keys)
        plan.decoding[kind] = Decoding(bounds, most_keys, launch.integers(), kernel)
    return plan.decoding[kind]


def _table(plan: HasRows, device: torch.device) -> tuple[Tensor, int]:
    """The bounds and the most keys; one table serves all kinds of calls on a device."""
    for made in plan.decoding.values():
        if made.bounds.device == device:
            return made.bounds, made.most_keys
    intervals = plan.bound.row_intervals()
    assert intervals is not None, "asked of why_not_rows before"
    most = int(intervals.counts.max(initial=1))
    count = 1 << (max(1, most) - 1).bit_length()
    table = row_bounds(intervals, count, plan.bound.q_len)
    return torch.from_numpy(table).to(device), _most_keys(intervals)


def _most_keys(intervals: RowIntervals) -> int:
    keys = torch.zeros(len(intervals.counts), dtype=torch.int64)
    lengths = torch.from_numpy(intervals.stops.astype("int64") - intervals.starts)
    keys.index_add_(0, torch.from_numpy(intervals.rows), lengths)
    return int(keys.max()) if len(keys) else 0


def _launch(kind: DecodeKind, most_keys: int) -> DecodeLaunch:
    packed = kind.num_q_heads // kind.num_kv_heads * kind.rows
    limit, processors = _resources(kind.device)
    dtype = str(kind.dtype).removeprefix("torch.")
    config = kind.config or choose_decode_config(
        packed_rows=max(1, packed),
        dtype=dtype if dtype in ITEMSIZE else "float32",  # the reference has no blocks
        head_dim=kind.head_dim,
        v_head_dim=kind.v_head_dim,
        page_size=kind.page_size,
        shared_memory_limit=limit,
    )
    if kind.config is not None:
        _check(kind, limit)
    splits, least = kind.num_splits, 1
    if splits is None:
        keys = min(kind.capacity, most_keys) + kind.rows
        splits, least = choose_splits(
            programs=kind.batch * kind.num_kv_heads * -(-packed // config.block_m),
            blocks=-(-keys // config.block_n),
            processors=processors,
            is_ragged=kind.is_ragged,
            share_bytes=4 * kind.batch * kind.num_q_heads * kind.rows * kind.v_head_dim,
        )
    return DecodeLaunch(
        block_m=config.block_m,
        block_n=config.block_n,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        num_splits=splits,
        least_blocks=least,
    )


def _check(kind: DecodeKind, limit: int) -> None:
    """Refuse a caller's block shape that no kernel has; raises ValueError."""
    config = kind.config
    assert config is not None, "chosen ones fit"
    if why := fault_of_launch("decode", config):
        raise ValueError(why)
    itemsize = kind.dtype.itemsize
    dims = {"head_dim": kind.head_dim, "v_head_dim": kind.v_head_dim}
    needed = config.shared_memory_bytes(**dims, itemsize=itemsize)
    if kind.device.type == "cuda" and needed > limit:
        raise ValueError(
            f"decode with these blocks needs {needed:,} bytes of shared memory, there are {limit:,}"
        )


def _resources(device: torch.device) -> tuple[int, int]:
    """Shared memory that one program may have [bytes], and multiprocessors."""
    if device.type != "cuda":
        return SMALLEST_SHARED_MEMORY, 1
    properties: Any = torch.cuda.get_device_properties(device)
    return properties.shared_memory_per_block_optin, properties.multi_processor_count
