"""Binds of one kind: what is the same for all of them is checked and made for the first.

Of a kind are binds with the same numbers, and with tensors of the same names, shapes and dtypes:
the host's table is the same, and so is where lengths go on the device.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cmask.runtime.derive.sizes import BindError, bind_names, bindable_names
from cmask.runtime.expressions import names_in
from cmask.runtime.lasting import lasting
from cmask.runtime.on_device.lengths import CuSeqlens, frozen, plain, shape_of, zeros
from cmask.runtime.on_device.table import Table, TableShape, make_table

_KEPT = 4  # kinds: a model has few, and lists that change in every step are never met again
_EXACT = (torch.int32, torch.int64)  # no difference of lengths in range wraps around
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Kind:
    """What binds of one kind share.

    source  the host's table, pinned where it goes to a GPU
    slots   int64[counts] of each tensor: where its lengths go, in the table on the device
    """

    source: Tensor
    slots: tuple[Tensor, ...]

    def write(self, tensors: Sequence[Tensor | CuSeqlens]) -> None:
        """Copy the lengths of these tensors, in the order of `slots`."""
        for slots, lengths in zip(self.slots, tensors, strict=True):
            if not isinstance(lengths, CuSeqlens):
                slots.copy_(lengths)
            elif lengths.tensor.dtype in _EXACT and slots.ndim == 1:
                torch.sub(lengths.tensor[1:], lengths.tensor[:-1], out=slots)
            else:
                slots.copy_(lengths.tensor[1:])
                slots.sub_(lengths.tensor[:-1])


class Kinds:
    """The kinds of bind that a plan has met last."""

    def __init__(self, shape: TableShape, fixed: Mapping[str, object], table: Tensor) -> None:
        """fixed: values of names that are not given; table: int64, on the device."""
        self._shape, self._fixed, self._table = shape, dict(fixed), table
        self._device = table.device.type
        self._kept: dict[Hashable, Kind] = {}

    def __getstate__(self) -> dict[str, Any]:
        """For copies: kinds hold views of this plan's table, and memory that is pinned."""
        return {**self.__dict__, "_kept": {}}

    def find(self, sizes: Mapping[str, object]) -> tuple[Kind, list[Tensor | CuSeqlens]]:
        """The kind of these sizes, and those of them that are on the device.

        Raises `BindError` for what the host can know; then nothing has changed.
        """
        parts: list[Hashable] = []
        tensors: list[Tensor | CuSeqlens] = []
        for name, value in sizes.items():
            lengths = self._on_device(name, value)
            if lengths is None:
                parts += (name, frozen(plain(value)))
            else:
                tensor = lengths if isinstance(lengths, Tensor) else lengths.tensor
                parts += (name, type(lengths) is CuSeqlens, tensor.shape, tensor.dtype)
                tensors.append(lengths)
        key = tuple(parts)
        kind = self._kept.pop(key, None) or self._make(sizes)
        self._kept[key] = kind  # the last one is the one met last
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return kind, tensors

    def _on_device(self, name: str, value: object) -> Tensor | CuSeqlens | None:
        """The value, if it is on the device; None if the host knows it."""
        if isinstance(value, CuSeqlens):
            if value.tensor.device.type != self._device:
                raise BindError(
                    f"cu_seqlens of `{name}` must be on {self._device}, got {value.tensor.device}"
                )
            return value
        is_here = isinstance(value, Tensor) and value.device.type == self._device
        return value if is_here else None  # type: ignore[return-value]

    def _make(self, sizes: Mapping[str, object]) -> Kind:
        tensors = {n: v for n, v in sizes.items() if self._on_device(n, v) is not None}
        given = {n: plain(v) for n, v in sizes.items() if n not in tensors}
        shapes = {n: shape_of(v) for n, v in tensors.items()}
        table = self._table_of(given, shapes)
        with lasting():
            source = torch.from_numpy(table.array)
            source = source.pin_memory() if self._table.is_cuda else source
            slots = [self._slots(name, shape, table) for name, shape in shapes.items()]
        return Kind(source, tuple(slots))

    def _table_of(self, given: Mapping[str, Any], shapes: Shapes) -> Table:
        self._check_tensors(shapes)
        known = {**self._fixed, **given}
        self._check_defaults(known, shapes)
        seq = known.pop("seq", None)
        if seq is not None and not isinstance(seq, int):
            raise BindError(f"`seq` must be a whole number, got {seq!r}")
        known |= {name: zeros(shape) for name, shape in shapes.items()}
        names = bind_names(self._shape.form, seq=seq, given=known)
        return make_table(self._shape, names, frozenset(shapes))

    def _slots(self, name: str, shape: tuple[int, ...], table: Table) -> Tensor:
        """int64[counts]: where lengths of this shape go."""
        lattice = self._shape.slots.lattices[name]
        counts = shape
        if len(shape) < len(lattice.counts):  # each outer instance has the same
            counts = (table.outermost.get(name, 0), *shape)
        first, _ = self._shape.sections["length"]
        return self._table.as_strided(counts, lattice.strides, first + lattice.first)

    def _check_tensors(self, shapes: Shapes) -> None:
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

    def _check_defaults(self, known: Mapping[str, object], shapes: Shapes) -> None:
        """No value may follow from a length that the host does not know."""
        form, unknown = self._shape.form, set(shapes)
        for name, default in (*form.params, *form.sizes):
            if name in known or name in unknown or default is None:
                continue
            if names_in(default) & unknown:
                unknown.add(name)
        follows = [n for n in bindable_names(form) if n in unknown and n not in shapes]
        if follows:
            raise BindError(f"`{follows[0]}` follows from lengths on the device: give it, too")
