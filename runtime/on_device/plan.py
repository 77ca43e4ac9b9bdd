"""A plan that is allocated once and bound again and again, on the device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cmask.runtime.closed_form import ClosedForm
from cmask.runtime.derive.boxes import GridRows
from cmask.runtime.derive.tokens import WHOLE
from cmask.runtime.kernels.operator import on_device_of
from cmask.runtime.kernels.prepare import CallKind, Prepared
from cmask.runtime.kernels.triton_bind_blocks import TOO_MANY_RUNS
from cmask.runtime.kernels.triton_bind_rows import (
    NEGATIVE_LENGTH,
    TOO_MANY_INTERVALS,
    TOO_MANY_KEYS,
    TOO_MANY_QUERIES,
    bind_rows,
    bind_segments,
)
from cmask.runtime.lasting import lasting
from cmask.runtime.on_device.kinds import Kind, Kinds
from cmask.runtime.on_device.lists import CapacityDescriptor
from cmask.runtime.on_device.places import MAX_TERMS, step_of
from cmask.runtime.on_device.replay import (
    Replay,
    check_kernels_run,
    launch_beside,
    recorder_for,
)
from cmask.runtime.on_device.room import Room, check_room
from cmask.runtime.on_device.sides import KEYS, Rows
from cmask.runtime.on_device.slots import slots_at
from cmask.runtime.on_device.table import TableShape, check
from cmask.runtime.schema import StoredConfig

_KEPT = 8  # intervals of a row while clauses are united
_ROWS = 32  # of a program, which is a warp; divides 128
_SIDES = {"query": 1, "key": 2, "both": 3}
_ERRORS = {
    TOO_MANY_QUERIES: "more queries than there is room for (tokens)",
    TOO_MANY_KEYS: "more keys than there is room for (tokens)",
    NEGATIVE_LENGTH: "a negative length, taken as 0",
    TOO_MANY_INTERVALS: "a row with more intervals than there is room for (intervals)",
    TOO_MANY_RUNS: "more runs of blocks than there is room for (runs_per_block): nothing is seen",
}


class CapacityError(RuntimeError):
    """Lengths that were bound on the device did not fit the plan."""


class DevicePlan:
    """A mask with room for lengths that are bound on its device; `attention` takes it.

    Tensors that are attended have as many tokens as there is room for; those behind the bound
    ones see nothing and are seen by nothing, whatever they hold.  Made by `Mask.plan`.
    """

    def __init__(
        self,
        form: ClosedForm,
        fixed: Mapping[str, object],
        room: Room,
        device: str | torch.device,
        *,
        forward_shape: tuple[int, int] = (128, 128),
        measured: tuple[StoredConfig, ...] = (),
    ) -> None:
        """fixed: values of names (`seq` too) for bindings that give no others."""
        check(form)
        check_room(form, room)
        self.form, self.room = form, room
        self.device: str | torch.device = device
        self.forward_shape, self.measured = forward_shape, measured
        self.prepared: dict[CallKind, Prepared] = {}
        self.ready: dict[Hashable, Callable[..., Any]] = {}
        self._shape = TableShape.of(form, slots_at(form, room.instances))
        self._descriptors: dict[tuple[int, int], CapacityDescriptor] = {}
        self._kind: Kind | None = None  # whose table is on the device
        with lasting():
            self._allocate(torch.device(device))
        self._kinds = Kinds(self._shape, fixed, self._on_device)
        self._replay = Replay(recorder_for(self._on_device.device))

    def _allocate(self, device: torch.device) -> None:
        shape, (q_capacity, kv_capacity) = self._shape, self.room.tokens
        like: dict[str, Any] = {"dtype": torch.int64, "device": device}
        size = list(shape.sections.values())[-1][1]
        self._on_device = torch.zeros(size, **like)
        self._parts = self._parts_of_table()
        self._q_start, self._pos = torch.zeros(2, shape.stride, **like)
        self._values = torch.zeros(3, shape.stride, **like)
        self._statics = _split(_statics(shape).to(device), len(shape.scopes))
        num_rows, num_keys = (-(-n // 128) * 128 for n in self.room.tokens)
        ints: dict[str, Any] = {"dtype": torch.int32, "device": device}
        self._rows = Rows(
            q_capacity,
            kv_capacity,
            bounds=torch.zeros(2 * self.room.intervals, num_rows, **ints),
            totals=torch.zeros(2, **like),
            errors=torch.zeros(1, **ints),
            key_is_read=torch.zeros(num_keys, **ints),
            furthest=torch.zeros(num_keys, **ints),
            furthest_of_block=torch.zeros(num_keys // KEYS, **ints),
        )

    def _parts_of_table(self) -> dict[str, Tensor]:
        sections = self._shape.sections.items()
        return {name: self._on_device[first:stop] for name, (first, stop) in sections}

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which have tables of their own: views of one that was pickled are none."""
        of_this_plan: dict[str, Any] = {"_parts": {}, "_kind": None, "ready": {}}
        return {**self.__dict__, **of_this_plan}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with lasting():
            self._parts = self._parts_of_table()

    # ------------------------------------------------------------------------------- binding
    @torch.compiler.disable(  # type: ignore[no-untyped-call, untyped-decorator]
        reason="lengths are bound between compiled functions, not within"
    )
    def bind_(self, **sizes: object) -> DevicePlan:
        """Bind lengths and other sizes in place; nothing is read back.

        sizes: as `Mask.bind` takes them, or lengths of regions as tensors of the plan's device:
        integers[instances], or [instances, instances] in nested groups, 0 where an instance is to
        be absent; or `CuSeqlens`.  What is not given keeps the value that the plan was made with.

        Lists are changed where they lie: bind after the backward of what was attended before.

        Raises `BindError` for what the host can know.  Whether lengths on the device fit is
        asked by `check`.
        """
        check_kernels_run(self._on_device.device)
        kind, tensors = self._kinds.find(sizes)
        with on_device_of(self._on_device):
            captures = self._on_device.is_cuda and torch.cuda.is_current_stream_capturing()
            if captures:  # replays copy again, and others must not rely on what they find
                self._rows.captured.append(kind.source)
            if self._rows.captured or kind is not self._kind:
                self._on_device.copy_(kind.source, non_blocking=True)
                self._kind = kind
            kind.write(tensors)
            launched = tuple(each.launches for each in self._descriptors.values())
            self._replay.run(self._fill, launched, plainly=captures)
        return self

    def check(self) -> None:
        """Raise `CapacityError` if something did not fit since the last check; reads the device."""
        found = int(self._rows.errors.item())
        self._rows.errors.zero_()
        if found:
            reasons = "; ".join(text for bit, text in _ERRORS.items() if found & bit)
            raise CapacityError(f"`{self.form.name}` was bound to {reasons}")

    def _fill(self) -> None:
        """Everything else, from the table on the device.

        A graph may do it in place of this: no address or number may depend on what is bound.
        """
        rows, shape, parts = self._rows, self._shape, self._parts
        count, (q_capacity, kv_capacity) = shape.slots.count, self.room.tokens
        region, sides, steps, first, stop = self._statics
        bind_segments[(1,)](
            parts["length"], parts["constant"], parts["terms"], sides, self._q_start,
            self._values, self._pos, rows.totals, rows.errors, rows.furthest_of_block, count,
            shape.stride, q_capacity, kv_capacity, len(rows.furthest_of_block),
            NUM_TERMS=MAX_TERMS, BLOCK=512, num_warps=4,
        )  # fmt: skip
        num_rows = rows.bounds.shape[1]
        bind_rows[(num_rows // _ROWS,)](
            self._q_start, self._values, self._pos, steps, region, parts["levels"], first, stop,
            parts["clauses"], parts["limits"], rows.totals, rows.bounds, rows.errors, count,
            shape.stride, len(self.form.clauses), q_capacity, kv_capacity, num_rows,
            NUM_INTERVALS=self.room.intervals, KEPT=_KEPT, ROWS=_ROWS, num_warps=1,
        )  # fmt: skip
        fills = [
            partial(descriptor.fill, marks_keys=i == 0)
            for i, descriptor in enumerate(self._descriptors.values())
        ]
        launch_beside(fills, self._on_device.device)

    # ----------------------------------------------------------------------------- attention
    @property
    def q_len(self) -> int:
        """Queries that there is room for [tokens]."""
        return self.room.tokens[0]

    @property
    def kv_len(self) -> int:
        """Keys that there is room for [tokens]."""
        return self.room.tokens[1]

    num_q_slots = q_len
    num_kv_slots = kv_len

    @property
    def is_permuted(self) -> bool:
        """Kernels work in the caller's order."""
        return False

    @property
    def variants(self) -> tuple[()]:
        """All heads see the same."""
        return ()

    @property
    def grid_rows(self) -> GridRows | None:
        """There are no grids."""
        return None

    @property
    def bounds(self) -> Tensor:
        """int32[2 * intervals, rows]: start_0, stop_0, start_1, … of each row; [0, 0): none."""
        return self._rows.bounds

    @property
    def descriptors(self) -> tuple[CapacityDescriptor, ...]:
        """Of the block shapes that were asked for."""
        return tuple(self._descriptors.values())

    def device_descriptor(self, block_m: int, block_n: int) -> CapacityDescriptor:
        """The lists of one block shape; allocated and filled when first asked for."""
        key = (block_m, block_n)
        if key not in self._descriptors:
            self._rows.check_not_captured(f"blocks of {block_m} × {block_n}")
            made = CapacityDescriptor.at(self._rows, block_m, block_n, self.room.runs_per_block)
            made.fill(marks_keys=not self._descriptors)
            self._descriptors[key] = made
        return self._descriptors[key]

    def permute(self, x: Tensor, side: str = "query", *, dim: int = -2) -> Tensor:
        """`x` itself: kernels work in the caller's order."""
        return x

    def unpermute(self, x: Tensor, side: str = "query", *, dim: int = -2) -> Tensor:
        """`x` itself."""
        return x

    def read_tokens(self, block_m: int, block_n: int) -> Tensor:
        """Asked for grids only."""
        raise NotImplementedError("there are no grids")

    def slot_tokens(self) -> Tensor:
        """Asked for grids only."""
        raise NotImplementedError("there are no grids")


def _statics(shape: TableShape) -> Tensor:
    """int64[3 + 2 * scopes, stride]: region, side, step, and the scopes' first and last slots."""
    slots = shape.slots
    sides = torch.tensor([_SIDES[r.side] for r in slots.regions] or [0])
    steps = torch.tensor([step_of(r) for r in slots.regions] or [0])
    region = torch.from_numpy(slots.region)
    scopes = shape.scopes or (WHOLE,)
    columns = [region, sides[region], steps[region]]
    columns += [torch.from_numpy(of[s]) for of in (slots.first, slots.stop) for s in scopes]
    table = torch.zeros(len(columns), shape.stride, dtype=torch.int64)
    table[:, : slots.count] = torch.stack(columns)
    return table


def _split(statics: Tensor, num_scopes: int) -> tuple[Tensor, ...]:
    """Region, side, step, and int64[scopes, stride] twice."""
    scopes = max(1, num_scopes)
    return (*statics[:3], statics[3 : 3 + scopes], statics[3 + scopes :])
