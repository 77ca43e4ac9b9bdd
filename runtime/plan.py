"""A mask at fixed sizes on a device: what attention runs by."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cmask.runtime.derive.bound import BoundMask
from cmask.runtime.derive.boxes import GridRows
from cmask.runtime.derive.cost import cheapest
from cmask.runtime.descriptor import Descriptor
from cmask.runtime.schema import StoredConfig
from cmask.runtime.variants import HeadRange

if TYPE_CHECKING:
    import torch

    from cmask.runtime.kernels.decode_rows import DecodeKind, Decoding
    from cmask.runtime.kernels.device import DeviceDescriptor
    from cmask.runtime.kernels.prepare import CallKind, Prepared
    from cmask.runtime.token_order import TokenOrder


@dataclass(frozen=True, eq=False)
class PlanVariant:
    """The plan of some query heads."""

    heads: tuple[HeadRange, ...]
    plan: Plan


@dataclass(frozen=True, eq=False)
class Plan:
    """A mask at fixed sizes on a device: what `attention` takes.

    Kernels may work in another token order than the caller's (`order` in the mask).  `attention`
    permutes by itself; a model can do it once instead of once per layer:

        x = plan.permute(x); ...; attention(q, k, v, plan, permuted=True); ...; plan.unpermute(x)

    measured: the configurations that tuning found for the mask; calls on such a device take them.
    variants: where rules are for some heads, a plan for each set of heads that sees the same; the
        plan of them all knows tokens and their order, which are the same for all.
    """

    _bound: BoundMask
    device: str | torch.device
    _descriptors: dict[tuple[int, int], Descriptor] = field(default_factory=dict)
    _on_device: dict[tuple[int, int], DeviceDescriptor] = field(default_factory=dict)
    _orders: dict[tuple[str, torch.device], TokenOrder | None] = field(default_factory=dict)
    measured: tuple[StoredConfig, ...] = ()
    prepared: dict[CallKind, Prepared] = field(default_factory=dict)
    ready: dict[Hashable, Callable[..., Any]] = field(default_factory=dict)
    decoding: dict[DecodeKind, Decoding] = field(default_factory=dict)
    _shape: tuple[int, int] | None = None
    variants: tuple[PlanVariant, ...] = ()

    def __repr__(self) -> str:
        name, lengths = self._bound.form.name, f"{self.q_len} × {self.kv_len}"
        return f"Plan({name}: {lengths} queries × keys, {self.device})"

    def __getstate__(self) -> dict[str, object]:
        """For copies, which find the short way of their calls anew: it is of kernels and locks."""
        return {**self.__dict__, "ready": {}}

    @property
    def bound(self) -> BoundMask:
        """The mask at its sizes; raises ValueError where heads differ."""
        if self.variants:
            name = self._bound.form.name
            raise ValueError(
                f"mask `{name}` has rules for some heads: only `attention` takes its plan as a "
                "whole; each of `plan.variants` has a plan of its own"
            )
        return self._bound

    @property
    def q_len(self) -> int:
        """Queries in the caller's order [tokens]."""
        return self._bound.q_len

    @property
    def kv_len(self) -> int:
        """Keys in the caller's order [tokens]."""
        return self._bound.kv_len

    @property
    def is_permuted(self) -> bool:
        """Whether kernels work in another token order than the caller's."""
        return self._bound.is_permuted

    @property
    def num_q_slots(self) -> int:
        """Queries as kernels see them: tokens and padding."""
        return self._bound.slot_lengths[0]

    @property
    def num_kv_slots(self) -> int:
        """Keys as kernels see them: tokens and padding."""
        return self._bound.slot_lengths[1]

    def descriptor(self, block_m: int, block_n: int) -> Descriptor:
        """The blocks of one shape, made once."""
        key = (block_m, block_n)
        if key not in self._descriptors:
            self._descriptors[key] = self.bound.descriptor(block_m, block_n)
        return self._descriptors[key]

    def device_descriptor(self, block_m: int, block_n: int) -> DeviceDescriptor:
        """The same as tensors on the plan's device, made once."""
        key = (block_m, block_n)
        if key not in self._on_device:
            from cmask.runtime.kernels.device import DeviceDescriptor

            self._on_device[key] = DeviceDescriptor.from_host(
                self.descriptor(block_m, block_n), self.device
            )
        return self._on_device[key]

    def permute(self, x: torch.Tensor, side: str = "query", *, dim: int = -2) -> torch.Tensor:
        """`x` with its tokens (dimension `dim`) in the kernels' order, zeros in the padding.

        side: "query" or "key"; they differ only where a mask has query or key regions.
        """
        count = self.q_len if side == "query" else self.kv_len
        if x.shape[dim] != count:
            raise ValueError(f"x must hold {count} tokens in dimension {dim}, got {x.shape[dim]}")
        order = self._order(side, x.device)
        return x if order is None else order.permute(x, dim)

    def unpermute(self, x: torch.Tensor, side: str = "query", *, dim: int = -2) -> torch.Tensor:
        """The inverse of `permute`: tokens in the caller's order, padding dropped."""
        count = self.num_q_slots if side == "query" else self.num_kv_slots
        if x.shape[dim] != count:
            raise ValueError(f"x must hold {count} slots in dimension {dim}, got {x.shape[dim]}")
        order = self._order(side, x.device)
        return x if order is None else order.unpermute(x, dim)

    @cached_property
    def forward_shape(self) -> tuple[int, int]:
        """(block_m, block_n) of the Hopper forward: the artifact's, or by the cost model."""
        return self._shape or cheapest(self.bound)[0]

    @cached_property
    def grid_rows(self) -> GridRows | None:
        """Where kernels can read slots in the caller's order; None where they cannot."""
        return self.bound.grid_rows

    def read_tokens(self, block_m: int, block_n: int) -> torch.Tensor:
        """int32[kv_len] on the host: 1 where some query sees the key, by token."""
        import torch

        read = self.descriptor(block_m, block_n).key_is_read[: self.num_kv_slots]
        slots = self.bound.k_slots
        if slots is not None:
            by_token = np.zeros(self.kv_len, np.int32)
            by_token[slots[slots >= 0]] = read[slots >= 0]
            read = by_token
        return torch.from_numpy(read)

    def slot_tokens(self) -> torch.Tensor:
        """int32[slots] on the host: the token of each query's slot, -1 where there is none."""
        import torch

        slots = self.bound.q_slots
        assert slots is not None, "only a grid has slots of its own"
        return torch.from_numpy(slots.astype(np.int32))

    def _order(self, side: str, device: torch.device) -> TokenOrder | None:
        """None where slots are tokens."""
        key = (side, device)
        if key not in self._orders:
            from cmask.runtime.token_order import TokenOrder

            slots = self._bound.q_slots if side == "query" else self._bound.k_slots
            self._orders[key] = None if slots is None else TokenOrder.of(slots, device)
        return self._orders[key]
