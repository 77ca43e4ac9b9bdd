"""What block lists are made of and consist of, at fixed addresses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cmask.runtime.derive.sizes import BindError
from cmask.runtime.kernels.triton_bind_blocks import place_runs

KEYS = 128  # of a program that looks which are read
_FEW = 1024  # owners that each add up the runs of those before


@dataclass(frozen=True, eq=False)
class Rows:
    """What all block shapes share.

    bounds  int32[2 * num_intervals, rows]
    totals  int64[2]: queries and keys
    errors  int32[1]

    furthest           int32[keys], furthest_of_block int32[keys / KEYS]: see `mark_read_keys`
    captured           tables on the host that a caller's CUDA graphs copy from
    """

    q_capacity: int
    kv_capacity: int
    bounds: Tensor
    totals: Tensor
    errors: Tensor
    key_is_read: Tensor
    furthest: Tensor
    furthest_of_block: Tensor
    captured: list[Tensor] = field(default_factory=list)

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which no graph binds."""
        return {**self.__dict__, "captured": []}

    def check_not_captured(self, what: str) -> None:
        """Raise `BindError` if a graph binds the plan that would not fill these lists, too."""
        captures = self.bounds.is_cuda and torch.cuda.is_current_stream_capturing()
        if self.captured and not captures:
            raise BindError(
                f"a CUDA graph was captured with `bind_` of this plan, which fills no lists of "
                f"{what}: attend once like this, before the capture"
            )

    @property
    def num_intervals(self) -> int:
        """Intervals that a row has room for."""
        return len(self.bounds) // 2


@dataclass(frozen=True, eq=False)
class OneSide:
    """The lists of one direction.

    runs      int32[2, owners]: full and partial runs of each
    places    int32[2, owners + 1]: those of the owners before, and of all, where owners are many
    counts    int32[2, owners]: blocks in them
    offsets   int32[3, owners + 1]: as in `Launch`; there are no patterns
    entries   int32[2 * capacity, 2]: full runs, and from `capacity` on partial ones
    """

    capacity: int
    runs: Tensor
    places: Tensor
    counts: Tensor
    offsets: Tensor
    entries: Tensor

    @staticmethod
    def empty(owners: int, capacity: int, device: torch.device) -> OneSide:
        """Lists without runs, with room for so many of each kind."""
        runs = torch.zeros(2, owners, dtype=torch.int32, device=device)
        offsets = torch.tensor([[0], [capacity], [2 * capacity]], dtype=torch.int32)
        return OneSide(
            capacity,
            runs,
            torch.zeros(2, owners + 1, dtype=torch.int32, device=device),
            torch.zeros_like(runs),
            offsets.repeat(1, owners + 1).to(device),
            torch.zeros(2 * capacity, 2, dtype=torch.int32, device=device),
        )

    @property
    def num_owners(self) -> int:
        """Blocks that have lists."""
        return self.runs.shape[1]

    @property
    def is_placed(self) -> bool:
        """Whether `place_runs` adds up runs, not each owner for itself."""
        return self.num_owners > _FEW

    def place(self) -> None:
        """Between counting runs and writing them."""
        if self.is_placed:
            place_runs[(1,)](self.runs, self.places, self.num_owners, BLOCK=4096, num_warps=8)
