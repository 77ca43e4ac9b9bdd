"""What one kernel launch takes of a descriptor, flat enough for a custom operator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from cmask.runtime.derive.boxes import GridRows


@dataclass(frozen=True, eq=False)
class Launch:
    """What one kernel walks and how: tensors and integers only, as the custom operator needs.

    offsets      int32[3, owners + 1]: where an owner's full, bounds and pattern entries begin
    counts       int32[2, owners]: how many blocks its full and its bounds runs hold
    entries      int32[entries, 2]: (first, stop) of a run, or (block, pattern)
    patterns     int32[num_patterns, rows, 4]: rows are the owner's, see `pack_pattern`
    bounds       int32[2 * max(1, num_intervals), num_rows]
    key_is_read  int32[num_kv_blocks * block_n]
    items        int32[items, 2]: (batch * heads + head, owner) in the order of work
    owners       int32[owners, 2]: (block, slot of partial sums or -1); an owner may be a part of
                 a block's work, see `parts`
    heavy        int32[blocks in parts, 3]: (block, first slot, stop slot)
    tokens       int32[slots]: the token of each slot, -1 where there is none; read with `grid`
    is_gluon     whether the kernel is a Hopper one
    first_key, stop_key  between them lie all keys that some query sees
    has_holes    whether a block that is walked has unread keys between them, too
    grid         how the kernel finds slots in tensors in the caller's order; None: it is given
                 slots
    """

    offsets: Tensor
    counts: Tensor
    entries: Tensor
    patterns: Tensor
    bounds: Tensor
    key_is_read: Tensor
    items: Tensor
    owners: Tensor
    heavy: Tensor
    tokens: Tensor
    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    num_intervals: int
    has_patterns: int
    has_unread_keys: int
    has_empty_rows: int
    is_gluon: int
    num_slots: int
    first_key: int
    stop_key: int
    has_holes: int
    grid: GridRows | None = None

    NUM_TENSORS = 10
    NUM_INTEGERS = 13 + GridRows.NUM_INTEGERS

    @cached_property
    def key(self) -> tuple[int, ...]:
        """What decides how the kernel is compiled and launched, but for pointers."""
        lengths = (len(self.items), self.counts.shape[1], self.bounds.shape[1], len(self.patterns))
        return (*self.integers(), *lengths)

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """Of patterns, items, offsets, counts, entries, bounds."""
        lists = (self.patterns, self.items, self.offsets, self.counts, self.entries, self.bounds)
        return tuple(x.data_ptr() for x in lists)

    def __getstate__(self) -> dict[str, object]:
        """For copies, whose tensors lie elsewhere."""
        return {name: value for name, value in self.__dict__.items() if name != "addresses"}

    def tensors(self) -> list[Tensor]:
        """The tensors, in the order of the fields."""
        return [
            self.offsets,
            self.counts,
            self.entries,
            self.patterns,
            self.bounds,
            self.key_is_read,
            self.items,
            self.owners,
            self.heavy,
            self.tokens,
        ]

    def integers(self) -> list[int]:
        """The integers, in the order of the fields."""
        return [
            self.block_m,
            self.block_n,
            self.num_warps,
            self.num_stages,
            self.num_intervals,
            self.has_patterns,
            self.has_unread_keys,
            self.has_empty_rows,
            self.is_gluon,
            self.num_slots,
            self.first_key,
            self.stop_key,
            self.has_holes,
            *GridRows.integers(self.grid),
        ]

    @staticmethod
    def nth(index: int, tensors: list[Tensor], integers: list[int]) -> Launch:
        """The inverse of `tensors` and `integers`, from several launches one behind the other."""
        t, i = index * Launch.NUM_TENSORS, index * Launch.NUM_INTEGERS
        grid = GridRows.from_integers(integers[i + 13 : i + Launch.NUM_INTEGERS])
        fields = (*tensors[t : t + Launch.NUM_TENSORS], *integers[i : i + 13], grid)
        return Launch(*fields)  # type: ignore[arg-type]
