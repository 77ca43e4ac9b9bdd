"""A plan that is allocated once and bound again and again, on the device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from cmask.runtime.closed_form import ClosedForm
from cmask.runtime.derive.boxes import GridRows
from cmask.runtime.derive.sizes import BindError, bind_names, bindable_names
from cmask.runtime.derive.tokens import WHOLE
from cmask.runtime.expressions import names_in
from cmask.runtime.kernels.device import DeviceDescriptor
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
from cmask.runtime.on_device.lengths import CuSeqlens, plain, shape_of, zeros
from cmask.runtime.on_device.lists import CapacityDescriptor, Rows
from cmask.runtime.on_device.places import MAX_TERMS, step_of
from cmask.runtime.on_device.room import Room, check_room
from cmask.runtime.on_device.slots import slots_at
from cmask.runtime.on_device.table import Table, TableShape, check, make_table
from cmask.runtime.schema import StoredConfig

_KEPT = 8  # intervals of a row while clauses are united
_ROWS = 128  # of a program
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
        self._fixed = dict(fixed)
        self._shape = TableShape.of(form, slots_at(form, room.instances))
        self._descriptors: dict[tuple[int, int], CapacityDescriptor] = {}
        self._key: object = None
        self._table: Table | None = None
        self._source = torch.zeros(0)  # of the table, on the host
        self._captured: list[Tensor] = []  # sources that graphs copy from
        with lasting():
            self._allocate(torch.device(device))

    def _allocate(self, device: torch.device) -> None:
        shape, (q_capacity, kv_capacity) = self._shape, self.room.tokens
        like: dict[str, Any] = {"dtype": torch.int64, "device": device}
        size = list(shape.sections.values())[-1][1]
        self._on_device = torch.zeros(size, **like)
        self._parts = {
            name: self._on_device[first:stop] for name, (first, stop) in shape.sections.items()
        }
        self._q_start, self._pos = torch.zeros(2, shape.stride, **like)
        self._values = torch.zeros(3, shape.stride, **like)
        self._statics = _statics(shape).to(device)
        num_rows, num_keys = (-(-n // _ROWS) * _ROWS for n in self.room.tokens)
        ints: dict[str, Any] = {"dtype": torch.int32, "device": device}
        self._rows = Rows(
            q_capacity,
            kv_capacity,
            bounds=torch.zeros(2 * self.room.intervals, num_rows, **ints),
            totals=torch.zeros(2, **like),
            errors=torch.zeros(1, **ints),
            key_is_read=torch.zeros(num_keys, **ints),
        )

    # ------------------------------------------------------------------------------- binding
    def bind_(self, **sizes: object) -> DevicePlan:
        """Bind lengths and other sizes in place; nothing is read back.

        sizes: as `Mask.bind` takes them, or lengths of regions as tensors of the plan's device:
        integers[instances], or [instances, instances] in nested groups, 0 where an instance is to
        be absent; or `CuSeqlens`.  What is not given keeps the value that the plan was made with.

        Lists are changed where they lie: bind after the backward of what was attended before.

        Raises `BindError` for what the host can know.  Whether lengths on the device fit is
        asked by `check`.
        """
        tensors = {n: v for n, v in sizes.items() if self._is_on_device(v)}
        given = {n: plain(v) for n, v in sizes.items() if n not in tensors}
        self._bind_table(given, {n: shape_of(v) for n, v in tensors.items()})
        for name, tensor in tensors.items():
            self._write_lengths(name, tensor)
        self._fill()
        return self

    def check(self) -> None:
        """Raise `CapacityError` if something did not fit since the last check; reads the device."""
        found = int(self._rows.errors.item())
        self._rows.errors.zero_()
        if found:
            reasons = "; ".join(text for bit, text in _ERRORS.items() if found & bit)
            raise CapacityError(f"`{self.form.name}` was bound to {reasons}")

    def _is_on_device(self, value: object) -> bool:
        if isinstance(value, CuSeqlens):
            return True
        return isinstance(value, Tensor) and value.device.type == torch.device(self.device).type

    def _bind_table(self, given: dict[str, object], shapes: dict[str, tuple[int, ...]]) -> None:
        """Copy what the host knows, if it is not there already."""
        is_cuda = self._on_device.is_cuda
        captures = is_cuda and torch.cuda.is_current_stream_capturing()
        key = (given, shapes)
        if key != self._key:
            self._key = None
            self._make_table(given, shapes)
            self._source = torch.from_numpy(self._known.array)
            self._source = self._source.pin_memory() if is_cuda else self._source
        elif not captures and not self._captured:
            return
        if captures:  # replays copy again, and others must not rely on what they find
            self._captured.append(self._source)
        self._on_device.copy_(self._source, non_blocking=True)
        self._key = key

    def _make_table(self, given: dict[str, object], shapes: dict[str, tuple[int, ...]]) -> None:
        self._check_tensors(shapes)
        known = {**self._fixed, **given}
        self._check_defaults(known, shapes)
        seq = known.pop("seq", None)
        if seq is not None and not isinstance(seq, int):
            raise BindError(f"`seq` must be a whole number, got {seq!r}")
        known |= {name: zeros(shape) for name, shape in shapes.items()}
        names = bind_names(self.form, seq=seq, given=known)
        self._table = make_table(self._shape, names, frozenset(shapes))

    @property
    def _known(self) -> Table:
        assert self._table is not None, "bound before"
        return self._table

    def _check_tensors(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Tensors must be lengths of regions, of a shape that the plan has room for."""
        lattices = self._shape.slots.lattices
        sized = {r.name for r in self._shape.slots.regions if r.size is None}
        for name, shape in shapes.items():
            if name not in sized:
                raise BindError(f"`{name}` must be a number: only lengths of regions are tensors")
            counts = lattices[name].counts
            if not len(counts) - 1 <= len(shape) <= len(counts) or any(
                n > most for n, most in zip(reversed(shape), reversed(counts), strict=False)
            ):
                raise BindError(
                    f"`{name}` must be integers of at most {list(counts)}, got {list(shape)}"
                )

    def _check_defaults(self, known: Mapping[str, object], shapes: Mapping[str, object]) -> None:
        """No value may follow from a length that the host does not know."""
        unknown = set(shapes)
        for name, default in (*self.form.params, *self.form.sizes):
            if name in known or name in unknown or default is None:
                continue
            if names_in(default) & unknown:
                unknown.add(name)
        follows = [n for n in bindable_names(self.form) if n in unknown and n not in shapes]
        if follows:
            raise BindError(f"`{follows[0]}` follows from lengths on the device: give it, too")

    def _write_lengths(self, name: str, lengths: object) -> None:
        """Copy the lengths of a region to its slots."""
        lattice = self._shape.slots.lattices[name]
        tensor = lengths.tensor if isinstance(lengths, CuSeqlens) else lengths
        assert isinstance(tensor, Tensor)
        shape = shape_of(lengths)
        counts = shape
        if len(shape) < len(lattice.counts):  # each outer instance has the same
            counts = (self._known.outermost.get(name, 0), *shape)
        slots = self._parts["length"].as_strided(
            counts, lattice.strides, self._parts["length"].storage_offset() + lattice.first
        )
        if isinstance(lengths, CuSeqlens):
            slots.copy_(tensor[1:])
            slots.sub_(tensor[:-1])
        else:
            slots.copy_(tensor.expand(counts))

    def _fill(self) -> None:
        """Everything else, from the table on the device."""
        rows, shape, parts = self._rows, self._shape, self._parts
        count, (q_capacity, kv_capacity) = shape.slots.count, self.room.tokens
        region, sides, steps, first, stop = _split(self._statics, len(shape.scopes))
        bind_segments[(1,)](
            parts["length"], parts["constant"], parts["terms"], sides, self._q_start,
            self._values, self._pos, rows.totals, rows.errors, count, shape.stride, q_capacity,
            kv_capacity, NUM_TERMS=MAX_TERMS, BLOCK=512, num_warps=4,
        )  # fmt: skip
        num_rows = rows.bounds.shape[1]
        bind_rows[(num_rows // _ROWS,)](
            self._q_start, self._values, self._pos, steps, region, parts["levels"], first, stop,
            parts["clauses"], parts["limits"], rows.totals, rows.bounds, rows.errors, count,
            shape.stride, len(self.form.clauses), q_capacity, kv_capacity, num_rows,
            count.bit_length(), NUM_INTERVALS=self.room.intervals, KEPT=_KEPT, ROWS=_ROWS,
            num_warps=4,
        )  # fmt: skip
        for i, descriptor in enumerate(self._descriptors.values()):
            descriptor.fill(marks_keys=i == 0)

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

    def device_descriptor(self, block_m: int, block_n: int) -> DeviceDescriptor:
        """The lists of one block shape; allocated and filled when first asked for."""
        key = (block_m, block_n)
        if key not in self._descriptors:
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
