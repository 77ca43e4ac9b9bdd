"""A mask at fixed sizes: what its closed form means for every token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cmask.runtime.closed_form import Clause, ClosedForm
from cmask.runtime.derive.boxes import GridRows, grid_rows
from cmask.runtime.derive.clauses import BoundClause, bind_clauses, visible
from cmask.runtime.derive.describe import Split, View, describe, split
from cmask.runtime.derive.layout import Layout, lay_out
from cmask.runtime.derive.order import slots_of
from cmask.runtime.derive.places import place_all
from cmask.runtime.derive.rows import RowIntervals
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.derive.tokens import Array, Tokens
from cmask.runtime.descriptor import Descriptor
from cmask.runtime.expressions import Value
from cmask.runtime.variants import has_heads


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """Where one region instance lies [tokens]; start == stop on a side that it has not."""

    region: str
    label: str
    q_start: int
    q_stop: int
    k_start: int
    k_stop: int


@dataclass(frozen=True, eq=False)
class BoundMask:
    """A mask with its sizes, and the rows asked for.

    rows: the queries [start, stop) of the whole mask that this plan serves; query i here is
    query rows[0] + i of the whole.
    """

    form: ClosedForm
    names: Mapping[str, Value]
    tokens: Tokens
    clauses: Sequence[BoundClause]
    rows: tuple[int, int]
    _descriptors: dict[tuple[int, int, str], Descriptor] = field(default_factory=dict)

    @property
    def q_len(self) -> int:
        """Queries [tokens]."""
        return self.rows[1] - self.rows[0]

    @property
    def kv_len(self) -> int:
        """Keys [tokens]."""
        return self.tokens.length("k")

    @property
    def layout(self) -> Layout:
        """The region instances of the whole mask."""
        return self.tokens.layout

    @cached_property
    def q_slots(self) -> Array | None:
        """int64[slots]: the query of each slot that kernels work in, or -1; None: the same."""
        slots = slots_of(self.layout, self.names, "q")
        if slots is None:
            return None
        start, stop = self.rows
        if (start, stop) != (0, self.tokens.length("q")):
            slots = slots[(slots >= start) & (slots < stop)]
        return np.where(slots < 0, -1, slots - start)

    @cached_property
    def k_slots(self) -> Array | None:
        """int64[slots]: the key of each slot, or -1; None: the same."""
        return slots_of(self.layout, self.names, "k")

    @cached_property
    def grid_rows(self) -> GridRows | None:
        """How slots lie in tensors in the caller's order, if they are one grid and a line."""
        if self.rows != (0, self.tokens.length("q")):
            return None
        queries, keys = (grid_rows(self.layout, self.names, side) for side in ("q", "k"))
        return queries if queries == keys else None

    @property
    def segments(self) -> tuple[SegmentSpan, ...]:
        """The region instances, in token order."""
        return tuple(_span(s.region.name, s.indices, s) for s in self.layout.segments)

    def visible(self, rows: Array, keys: Array) -> NDArray[np.bool_]:
        """bool[len(rows), len(keys)]: which of these queries see which of these keys."""
        return visible(
            self.clauses, np.asarray(rows) + self.rows[0], np.asarray(keys, dtype=np.int64)
        )

    def row_intervals(self) -> RowIntervals | None:
        """Each query's key intervals in the caller's order; None if some rule is no intervals."""
        return None if self._natural.others else self._natural.intervals

    def descriptor(self, block_m: int, block_n: int, masking: str = "auto") -> Descriptor:
        """The blocks of one shape, in slots; made once."""
        key = (block_m, block_n, masking)
        if key not in self._descriptors:
            self._descriptors[key] = describe(self._view, self.split, block_m, block_n, masking)
        return self._descriptors[key]

    @cached_property
    def _natural(self) -> Split:
        if not self.is_permuted:
            return self.split
        return split(self._view_of(None, None))

    @property
    def is_permuted(self) -> bool:
        """Whether kernels work in another token order than the caller's."""
        return self.q_slots is not None

    @cached_property
    def _view(self) -> View:
        return self._view_of(self.q_slots, self.k_slots)

    @cached_property
    def split(self) -> Split:
        """The clauses in slots: row intervals, and those that are none."""
        return split(self._view)

    @property
    def slot_lengths(self) -> tuple[int, int]:
        """Query and key slots."""
        return self._view.q_len, self._view.kv_len

    def _view_of(self, q_slots: Array | None, k_slots: Array | None) -> View:
        start, stop = self.rows
        whole = q_slots is None and (start, stop) == (0, self.tokens.length("q"))
        queries = np.arange(start, stop) if q_slots is None else q_slots + start
        queries = queries if q_slots is None else np.where(q_slots < 0, -1, queries)
        return View(
            self.clauses,
            self.q_len if q_slots is None else len(q_slots),
            self.kv_len if k_slots is None else len(k_slots),
            None if whole else queries,
            k_slots,
        )


def bind(
    form: ClosedForm, names: Mapping[str, Value], rows: tuple[int, int] | None = None
) -> BoundMask:
    """A closed form at sizes; `rows` [start, stop) binds only those queries.

    Raises `BindError` when a size, parameter or table is missing or does not fit, and for rules of
    some heads: each variant of such a mask is bound as a form of its own.
    """
    return bind_all([form], names, rows)[0]


def bind_all(
    forms: Sequence[ClosedForm], names: Mapping[str, Value], rows: tuple[int, int] | None = None
) -> tuple[BoundMask, ...]:
    """Forms that differ in their clauses alone, such as the variants of a mask; see `bind`.

    Tokens are laid out once for all, and a clause of several forms is bound once.
    """
    form = forms[0]
    if any(map(has_heads, forms)):
        raise BindError(f"`{form.name}` has rules for some heads: it is another mask for each")
    layout = lay_out(form, names)
    place_all(layout, names)
    tokens = Tokens(layout, names, {table.name: table for table in form.tables})
    start, stop = (0, layout.q_len) if rows is None else rows
    if not 0 <= start <= stop <= layout.q_len:
        raise BindError(f"rows ({start}, {stop}) are not within the {layout.q_len} queries")
    bound: dict[Clause, list[BoundClause]] = {}
    for clause in (clause for form in forms for clause in form.clauses):
        if clause not in bound:
            bound[clause] = bind_clauses([clause], tokens)
    tokens.forget()
    return tuple(
        BoundMask(form, names, tokens, [b for c in form.clauses for b in bound[c]], (start, stop))
        for form in forms
    )


def _span(region: str, indices: tuple[int, ...], segment: object) -> SegmentSpan:
    label = region + "".join(f"[{i}]" for i in indices)
    q, k, n = segment.q_start, segment.k_start, segment.length  # type: ignore[attr-defined]
    return SegmentSpan(
        region,
        label,
        max(q, 0),
        max(q, 0) + (n if q >= 0 else 0),
        max(k, 0),
        max(k, 0) + (n if k >= 0 else 0),
    )
