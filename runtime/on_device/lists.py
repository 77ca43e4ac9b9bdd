"""Block lists and work items of one block shape, at fixed addresses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cmask.runtime.derive.describe import PARTIAL_COST
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.descriptor import BlockLists, Descriptor
from cmask.runtime.kernels.device import DeviceDescriptor, Side, Walk
from cmask.runtime.kernels.parts import Lists
from cmask.runtime.kernels.triton_bind_blocks import runs_by_query
from cmask.runtime.kernels.triton_bind_keys import WORD, mark_blocks, mark_read_keys, runs_by_key
from cmask.runtime.kernels.triton_bind_order import order_items
from cmask.runtime.on_device.sides import KEYS, OneSide, Rows

_BLOCKS = 32  # key blocks that a program of `mark_blocks` looks at: one in a thread
_MOST_WORDS = 2**31  # of bits, which are counted by int32: those of 16 million tokens
_WORDS = 32  # of bits that a program of `runs_by_key` looks at together


@dataclass(frozen=True, eq=False)
class CapacityDescriptor(DeviceDescriptor):
    """A descriptor whose lists are filled again and again.

    `host` only tells the room for tokens.  Rows without keys and keys without queries are always
    expected: tokens that the plan has room for but that are not bound are such.

    Lists by key are made for who walks them, the backward: the forward binds without.
    """

    rows: Rows = field(kw_only=True)
    by_query: OneSide = field(kw_only=True)
    by_key: OneSide = field(kw_only=True)
    _bits: list[Tensor] = field(default_factory=list)  # of `mark_blocks`, once they are needed

    @staticmethod
    def at(rows: Rows, block_m: int, block_n: int, runs_per_block: int) -> CapacityDescriptor:
        """Empty lists of one block shape."""
        device = rows.bounds.device
        host = _nothing(rows, block_m, block_n)
        return CapacityDescriptor(
            host=host,
            num_intervals=rows.num_intervals,
            has_patterns=False,
            has_unread_keys=True,
            read=(0, rows.kv_capacity, True),
            has_empty_rows=True,
            bounds=rows.bounds,
            key_is_read=rows.key_is_read,
            rows=rows,
            by_query=OneSide.empty(
                host.num_q_blocks, runs_per_block * host.num_q_blocks, device
            ),
            by_key=OneSide.empty(host.num_kv_blocks, runs_per_block * host.num_kv_blocks, device),
        )  # fmt: skip

    def side(self, by_key: bool, is_gluon: bool) -> Side:
        """No patterns: partial blocks are masked by row bounds."""
        key = (False, 0)
        if key not in self._sides:
            patterns = torch.zeros(1, 1, 4, dtype=torch.int32, device=self.bounds.device)
            nothing = np.zeros((0, 2), np.int32)
            lists = Lists(nothing, nothing, nothing, np.zeros(0), nothing[:, 0])
            self._sides[key] = Side(lists, patterns)
        return self._sides[key]

    def _walk(self, by_key: bool, is_gluon: bool, num_heads: int, group: int) -> Walk:
        key = (by_key, False, num_heads, group)
        if key not in self._walks:
            if by_key and not self.has_lists_by_key:
                self.rows.check_not_captured("a backward")
                self.fill_by_key()
            self._walks[key] = _walk_of(self.by_key if by_key else self.by_query, num_heads)
            self._order(key)
        return self._walks[key]

    @property
    def has_lists_by_key(self) -> bool:
        """Whether lists by key are filled; they are from when they were first asked for."""
        return len(self._bits) > 0

    @property
    def launches(self) -> tuple[bool, int]:
        """What tells launches of `fill` apart: lists by key, and how many walks it puts in order.

        They only become more.
        """
        return self.has_lists_by_key, len(self._walks)

    def fill(self, *, marks_keys: bool) -> None:
        """Lists and work items from the row bounds.  marks_keys: which keys are read, too."""
        self._fill_by_query(marks_keys)
        if self.has_lists_by_key:
            self.fill_by_key()
        for walk in self._walks:
            self._order(walk)

    def _fill_by_query(self, marks_keys: bool) -> None:
        rows, block_m, block_n = self.rows, self.host.block_m, self.host.block_n
        shape = {"NUM_INTERVALS": rows.num_intervals, "BLOCK_M": block_m, "BLOCK_N": block_n}
        query, num_rows = self.by_query, rows.bounds.shape[1]
        for write in (False, True):
            if write:
                query.place()
            runs_by_query[(query.num_owners,)](
                rows.bounds, query.runs, query.places, query.counts, query.offsets, query.entries,
                rows.errors, rows.furthest, rows.furthest_of_block, query.num_owners,
                query.capacity, num_rows, rows.q_capacity, **shape, WRITE=write,
                PLACED=query.is_placed, MARKS=marks_keys and not write, KEYS=KEYS, num_warps=1,
            )  # fmt: skip
        if marks_keys:
            mark_read_keys[(len(rows.furthest_of_block),)](
                rows.furthest, rows.furthest_of_block, rows.key_is_read,
                BLOCK=1024, KEYS=KEYS, num_warps=4,
            )  # fmt: skip

    def fill_by_key(self) -> None:
        """Lists by key from those by query."""
        query, key = self.by_query, self.by_key
        num_words = -(-query.num_owners // WORD.value)
        if not self.has_lists_by_key:
            size = (2, key.num_owners, num_words)
            if math.prod(size) >= _MOST_WORDS:
                raise BindError(
                    "a plan with room for so many tokens has no backward: bind on the host"
                )
            like: dict[str, Any] = {"dtype": torch.int32, "device": self.bounds.device}
            self._bits.append(torch.zeros(*size, **like))
        mark_blocks[(num_words, -(-key.num_owners // _BLOCKS))](
            query.offsets, query.entries, self._bits[0], query.num_owners, key.num_owners,
            num_words, BLOCK=_BLOCKS, num_warps=1,
        )  # fmt: skip
        for write in (False, True):
            if write:
                key.place()
            runs_by_key[(key.num_owners,)](
                self._bits[0], key.runs, key.places, key.counts, key.offsets, key.entries,
                self.rows.errors, num_words, key.num_owners, key.capacity,
                WRITE=write, PLACED=key.is_placed, BLOCK=_WORDS, num_warps=1,
            )  # fmt: skip

    def _order(self, key: tuple[bool, bool, int, int]) -> None:
        """Put the work items of one walk in order."""
        by_key, _, num_heads, group = key
        side = self.by_key if by_key else self.by_query
        order_items[(-(-side.num_owners // 32),)](
            side.counts, self._walks[key].items, side.num_owners, num_heads, group,
            self._processors, PARTIAL_COST=PARTIAL_COST, OWNERS=32, OTHERS=128, HEADS=32,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip


def _walk_of(side: OneSide, num_heads: int) -> Walk:
    """Every owner in one part, its items not in order yet."""
    owners, device = side.num_owners, side.runs.device
    like: dict[str, Any] = {"dtype": torch.int32, "device": device}
    parts = torch.stack([torch.arange(owners, **like), torch.full((owners,), -1, **like)], 1)
    return Walk(
        offsets=side.offsets,
        counts=side.counts,
        entries=side.entries,
        items=torch.zeros(num_heads * owners, 2, **like),
        owners=parts,
        heavy=torch.zeros(0, 3, **like),
        num_slots=0,
    )


def _nothing(rows: Rows, block_m: int, block_n: int) -> Descriptor:
    """A descriptor that says how large the plan is, and nothing of any block."""
    none, pairs = np.zeros(0, np.int32), np.zeros((0, 2), np.int32)
    lists = BlockLists(none, pairs, none, pairs, none, pairs, none)
    patterns = np.zeros((0, 1, 4), np.int32)
    return Descriptor(
        block_m=block_m,
        block_n=block_n,
        q_len=rows.q_capacity,
        kv_len=rows.kv_capacity,
        by_query=lists,
        by_key=lists,
        patterns=patterns,
        key_patterns=patterns,
        bounds=pairs.T,
        key_is_read=none,
    )
