"""Moving tensors between the caller's token order and the one that kernels work in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cmask.runtime.derive.tokens import Array
from cmask.runtime.lasting import lasting


@dataclass(frozen=True, eq=False)
class TokenOrder:
    """One side's permutation on a device, made ahead so that torch.compile can trace its use.

    sources     int64[slots]: the token of each slot; any token where there is none
    is_padding  bool[slots], or None if every slot has a token
    slots       int64[tokens]: the slot of each token
    """

    sources: Tensor
    is_padding: Tensor | None
    slots: Tensor

    @staticmethod
    def of(tokens: Array, device: torch.device) -> TokenOrder:
        """The order given by the token of each slot, -1 where there is none."""
        real = np.flatnonzero(tokens >= 0)
        slots = np.empty(len(real), np.int64)
        slots[tokens[real]] = real
        sources = np.maximum(tokens, 0)
        with lasting():
            padding = None if len(real) == len(tokens) else torch.from_numpy(tokens < 0).to(device)
            return TokenOrder(
                torch.from_numpy(sources).to(device), padding, torch.from_numpy(slots).to(device)
            )

    def permute(self, x: Tensor, dim: int) -> Tensor:
        """Tokens -> slots, zeros in the padding."""
        permuted = x.index_select(dim, self.sources)
        if self.is_padding is None:
            return permuted
        shape = [1] * x.ndim
        shape[dim] = len(self.is_padding)
        return permuted.masked_fill(self.is_padding.view(shape), 0)

    def unpermute(self, x: Tensor, dim: int) -> Tensor:
        """Slots -> tokens; what stands in the padding is dropped."""
        return x.index_select(dim, self.slots)
