"""Coordinates of every token, as arrays.

Arrays are in the caller's token order, one per side: queries (`"q"`) and keys (`"k"`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cmask.runtime.closed_form import Table
from cmask.runtime.derive.layout import Layout, Segment
from cmask.runtime.derive.sizes import BindError, UnboundError
from cmask.runtime.expressions import Value

Array = NDArray[np.integer[Any]]  # int64 unless said
Side = Literal["q", "k"]
WHOLE = ""  # the scope of a rule outside all groups


@dataclass(eq=False)
class Tokens:
    """Per-token views of a layout; coordinates are made when first asked for.

    Entries of tokens that lack a coordinate are meaningless: ask `is_in` first.
    """

    layout: Layout
    names: Mapping[str, Value]
    tables: Mapping[str, Table]
    _cache: dict[tuple[str, ...], Array] = field(default_factory=dict)

    def forget(self) -> None:
        """Drop the arrays made so far: at a million tokens they are worth their megabytes."""
        self._cache.clear()

    def length(self, side: Side) -> int:
        """Tokens on one side."""
        return self.layout.q_len if side == "q" else self.layout.kv_len

    def segment(self, side: Side) -> Array:
        """The segment index of each token."""
        return self._cached(("segment", side), lambda: self._segments(side))

    def offset(self, side: Side) -> Array:
        """The index of each token within its region instance."""

        def make() -> Array:
            starts = self._per_segment(lambda s: s.q_start if side == "q" else s.k_start)
            index = np.arange(self.length(side), dtype=np.int64)
            return index - starts[self.segment(side)]

        return self._cached(("offset", side), make)

    def is_in(self, side: Side, regions: Sequence[str]) -> NDArray[np.bool_]:
        """Which tokens lie in one of the regions."""
        names = set(regions)
        per_segment = np.array([s.region.name in names for s in self.layout.segments], bool)
        return per_segment[self.segment(side)]

    def scope(self, side: Side, scope: str) -> Array:
        """Which instance of the scope each token lies in; -1 outside of all."""

        def make() -> Array:
            return self._per_segment(lambda s: s.groups.get(scope, -1))[self.segment(side)]

        return self._cached(("scope", side, scope), make)

    def coordinate(self, side: Side, name: str, scope: str) -> Array:
        """A coordinate of each token.

        name: "pos", "offset", an axis, or a level.
        """
        if name == "offset":
            return self.offset(side)
        key = ("coordinate", name, side, scope)  # a person chose the name: no key of our own
        return self._cached(key, lambda: self._coordinate(side, name, scope))

    def key_index(self, scope: str) -> Array:
        """The index of each key along its scope, wherever its region is placed."""

        def make() -> Array:
            before = self._per_segment(lambda s: s.key_before) - self._key_base(scope)
            return before[self.segment("k")] + self.offset("k")

        return self._cached(("key_index", scope), make)

    def axis_size(self, side: Side, axis: str) -> Array:
        """The size of an axis in the region instance of each token."""
        sizes = self._per_segment(lambda s: _axis(s, axis)[0])
        return sizes[self.segment(side)]

    def row_entry(self, table: str) -> Array:
        """The table entry of each query of the table's users, by running number; else 0."""
        return self._cached(("entry", table), lambda: self._row_entry(table))

    def _row_entry(self, table: str) -> Array:
        users = self.tables[table].users
        used = self.is_in("q", users)
        values = self._table(table, 1)
        count = int(used.sum())
        if values.shape != (count,):
            raise BindError(
                f"table `{table}` needs {count} entries, one per query of "
                f"{', '.join(f'`{u}`' for u in users)}; got {list(values.shape)}"
            )
        entries = np.zeros(self.length("q"), np.int64)
        entries[used] = values
        return entries

    def row_intervals(self, table: str) -> Array:
        """int64[2 * m + 1, q_len]: the columns of a `rows` table, for each query."""
        used = self.is_in("q", self.tables[table].users)
        values = self._table(table, 2)
        count = int(used.sum())
        if values.shape[1] != count or values.shape[0] % 2 == 0:
            raise BindError(
                f"table `{table}` needs shape [an odd number, {count}], got {list(values.shape)}"
            )
        columns = np.zeros((values.shape[0], self.length("q")), np.int64)
        columns[:, used] = values
        return columns

    def entry(self, table: str) -> Array:
        """The table entry of each query, by its row or by its instance of the table's level."""
        index = self.tables[table].index
        return self.row_entry(table) if index == "row" else self.level_entry(table, index)

    def level_entry(self, table: str, level: str) -> Array:
        """The table entry of the level instance of each query."""
        values = self._table(table, 1)
        total = self.layout.levels.get(level, 0)
        numbers = self._per_segment(
            lambda s: s.numbers[s.levels[level]] if level in s.levels else 0
        )
        if values.shape != (total,):
            raise BindError(
                f"table `{table}` needs {total} entries, one per `{level}`; "
                f"got {list(values.shape)}"
            )
        if total == 0:
            return np.zeros(self.length("q"), np.int64)
        return values[numbers[self.segment("q")]]

    def _table(self, table: str, dimensions: int) -> Array:
        if table not in self.names:
            raise UnboundError(f"table `{table}` has no value: bind({table}=[...])")
        values = np.asarray(self.names[table], dtype=np.int64)
        if values.size == 0:
            values = values.reshape((1, 0) if dimensions == 2 else (0,))
        if values.ndim != dimensions:
            raise BindError(f"table `{table}` must have {dimensions} dimensions, got {values.ndim}")
        return values

    def _segments(self, side: Side) -> Array:
        lengths = self._per_segment(
            lambda s: s.length if (s.q_start if side == "q" else s.k_start) >= 0 else 0
        )
        return np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)

    def _coordinate(self, side: Side, name: str, scope: str) -> Array:
        segment, offset = self.segment(side), self.offset(side)
        if name == "pos":
            start = self._per_segment(lambda s: s.pos_start) - self._key_base(scope)
            step = self._per_segment(lambda s: s.pos_step)
            return start[segment] + step[segment] * offset + self._pos_tables(side)
        if any(name in s.levels for s in self.layout.segments):
            return self._per_segment(lambda s: self._level_number(s, name, scope))[segment]
        size = self._per_segment(lambda s: _axis(s, name)[0])
        stride = self._per_segment(lambda s: _axis(s, name)[1])
        return offset // stride[segment] % size[segment]

    def _key_base(self, scope: str) -> Array:
        """The keys before the scope instance of each segment; 0 outside of all."""
        instances = self.layout.instances[scope]
        return self._per_segment(
            lambda s: instances[s.groups[scope]].key_start if scope in s.groups else 0
        )

    def _pos_tables(self, side: Side) -> Array:
        """What row tables add to `pos`: the entry of the token as a query."""
        added = np.zeros(self.length(side), np.int64)
        for s in self.layout.segments:
            start = s.q_start if side == "q" else s.k_start
            if s.pos_table is not None and start >= 0:
                entries = self.row_entry(s.pos_table)
                added[start : start + s.length] = entries[s.q_start : s.q_start + s.length]
        return added

    def _level_number(self, segment: Segment, level: str, scope: str) -> int:
        if level not in segment.levels:
            return 0
        counter = segment.levels[level]
        instance = self.layout.instances[scope][segment.groups.get(scope, 0)]
        return segment.numbers[counter] - instance.counts.get(counter, 0)

    def _per_segment(self, of: Callable[[Segment], int]) -> Array:
        return np.array([of(s) for s in self.layout.segments], dtype=np.int64)

    def _cached(self, key: tuple[str, ...], make: Callable[[], Array]) -> Array:
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]


def _axis(segment: Segment, axis: str) -> tuple[int, int]:
    """Size and stride of an axis in a region instance; (1, 1) if it has no such axis."""
    if not segment.region.axes:
        return 1, 1
    stride = 1
    for declared, size in zip(reversed(segment.region.axes), reversed(segment.sizes), strict=True):
        if declared.name == axis:
            return max(size, 1), stride
        stride *= max(size, 1)
    return 1, 1
