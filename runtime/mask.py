"""Load an artifact; bind its sizes to a plan that attention runs by."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cmask.runtime.artifact import ArtifactError, read_artifact
from cmask.runtime.closed_form import ClosedForm
from cmask.runtime.derive.bound import BoundMask, bind
from cmask.runtime.derive.boxes import GridRows
from cmask.runtime.derive.cost import cheapest
from cmask.runtime.derive.describe import restore
from cmask.runtime.derive.facts import Facts
from cmask.runtime.derive.sizes import BindError, bind_names
from cmask.runtime.descriptor import Descriptor
from cmask.runtime.expressions import Value
from cmask.runtime.schema import Body, StoredConfig

if TYPE_CHECKING:
    import torch

    from cmask.runtime.kernels.decode_rows import DecodeKind, Decoding
    from cmask.runtime.kernels.device import DeviceDescriptor
    from cmask.runtime.kernels.prepare import CallKind, Prepared
    from cmask.runtime.on_device.plan import DevicePlan
    from cmask.runtime.token_order import TokenOrder


def load(artifact: str | PathLike[str] | bytes) -> Mask:
    """The mask of an artifact, given its path or its bytes.

    Raises `ArtifactError` if the artifact is damaged, newer than this runtime, or none at all.
    """
    if isinstance(artifact, bytes):
        return Mask(read_artifact(artifact))
    try:
        data = Path(artifact).read_bytes()
    except OSError as error:
        raise ArtifactError(f"{artifact} cannot be read: {error.strerror}") from None
    return Mask(read_artifact(data))


@dataclass(frozen=True, eq=False)
class Mask:
    """A compiled mask; `bind` gives it sizes."""

    body: Body

    @property
    def name(self) -> str:
        """The name written behind `mask`."""
        return self.body.closed_form.name

    @property
    def form(self) -> ClosedForm:
        """The mask without sizes."""
        return self.body.closed_form

    @property
    def sizes(self) -> Mapping[str, Value]:
        """Sizes, parameters and tables that the compiler bound."""
        return dict(self.body.names)

    @property
    def facts(self) -> Facts | None:
        """Facts at the bound sizes; None if something was left unbound."""
        return self.body.facts

    def bind(
        self,
        *,
        rows: tuple[int, int] | None = None,
        device: str | torch.device = "cpu",
        **sizes: object,
    ) -> Plan:
        """A plan for these sizes; what is not given keeps the compiler's value.

        sizes: sizes, parameters and tables by name; lists (of lists) inside starred groups.
        `seq` evaluates the defaults of the mask's sizes block for another length.
        rows: serve only the queries [start, stop) of the whole mask: chunked prefill, decoding.

        Raises `BindError` (a ValueError) that names what is missing or does not fit.
        """
        names = self._names(sizes)
        bound = bind(self.form, names, rows)
        stored: dict[tuple[int, int], Descriptor] = {}
        shape = None
        if rows is None and names == self.body.names:
            shape = self._forward_shape()
            stored = {
                (s.block_m, s.block_n): restore(s, bound.split.intervals)
                for s in self.body.descriptors
                if (s.q_len, s.kv_len) == bound.slot_lengths
            }
        measured = tuple(c for c in self.body.configs if c.measured is not None)
        return Plan(bound, device, stored, measured=measured, _shape=shape)

    def plan(
        self,
        tokens: int | tuple[int, int],
        *,
        instances: Mapping[str, int] | None = None,
        intervals: int = 4,
        runs_per_block: int = 8,
        device: str | torch.device = "cpu",
        **sizes: object,
    ) -> DevicePlan:
        """A plan whose lengths are bound on its device, again and again: `plan.bind_(...)`.

        tokens: room for queries and keys, or for each.
        instances: starred region or group -> room for instances in one of what it lies in.
        intervals: most key intervals of a row (1, 2 or 4).
        runs_per_block: runs of full blocks, and of partial ones, that a block has on average.
        sizes: what `bind_` takes where it is given no other value.

        Raises `BindError` for masks that the device cannot bind, see `cmask.runtime.on_device`.
        """
        from cmask.runtime.on_device.plan import DevicePlan
        from cmask.runtime.on_device.room import Room

        both = (tokens, tokens) if isinstance(tokens, int) else tokens
        fixed = {name: self.body.names[name] for name in self.body.given}
        if "seq" in self.body.names:
            fixed["seq"] = self.body.names["seq"]
        return DevicePlan(
            self.form,
            {**fixed, **sizes},
            Room(both, dict(instances or {}), intervals, runs_per_block),
            device,
            forward_shape=self._forward_shape() or (128, 128),
            measured=tuple(c for c in self.body.configs if c.measured is not None),
        )

    def _forward_shape(self) -> tuple[int, int] | None:
        """What the compiler chose for the Hopper forward."""
        for config in self.body.configs:
            key = (config.target, config.kernel, config.direction, config.head_dim)
            if config.measured is None and key == ("sm_90", "gluon", "forward", 128):
                return config.block_m, config.block_n
        return None

    def _names(self, sizes: Mapping[str, object]) -> dict[str, Value]:
        """The compiler's values overridden; defaults that depend on what changed follow it."""
        given = {**{name: self.body.names[name] for name in self.body.given}, **sizes}
        seq = given.pop("seq", self.body.names.get("seq"))
        if seq is not None and not isinstance(seq, int):
            raise BindError(f"`seq` must be a whole number, got {seq!r}")
        return bind_names(self.form, seq=seq, given=given)

    def verify(self) -> int:
        """Check this runtime against the artifact's golden vectors; how many there are.

        Raises `ArtifactError` if a pair of tokens differs.
        """
        for golden in self.body.goldens:
            bound = bind(self.form, golden.sizes)
            expected = np.unpackbits(np.frombuffer(golden.bits, np.uint8))
            seen = bound.visible(np.arange(bound.q_len), np.arange(bound.kv_len)).reshape(-1)
            if (bound.q_len, bound.kv_len) != (golden.q_len, golden.kv_len) or not np.array_equal(
                seen, expected[: seen.size].astype(bool)
            ):
                raise ArtifactError(f"`{self.name}` differs from its golden vector")
        return len(self.body.goldens)


@dataclass(frozen=True, eq=False)
class Plan:
    """A mask at fixed sizes on a device: what `attention` takes.

    Kernels may work in another token order than the caller's (`order` in the mask).  `attention`
    permutes by itself; a model can do it once instead of once per layer:

        x = plan.permute(x); ...; attention(q, k, v, plan, permuted=True); ...; plan.unpermute(x)

    measured: the configurations that tuning found for the mask; calls on such a device take them.
    """

    bound: BoundMask
    device: str | torch.device
    _descriptors: dict[tuple[int, int], Descriptor] = field(default_factory=dict)
    _on_device: dict[tuple[int, int], DeviceDescriptor] = field(default_factory=dict)
    _orders: dict[tuple[str, torch.device], TokenOrder | None] = field(default_factory=dict)
    measured: tuple[StoredConfig, ...] = ()
    prepared: dict[CallKind, Prepared] = field(default_factory=dict)
    ready: dict[Hashable, Callable[..., Any]] = field(default_factory=dict)
    decoding: dict[DecodeKind, Decoding] = field(default_factory=dict)
    _shape: tuple[int, int] | None = None

    @property
    def q_len(self) -> int:
        """Queries in the caller's order [tokens]."""
        return self.bound.q_len

    @property
    def kv_len(self) -> int:
        """Keys in the caller's order [tokens]."""
        return self.bound.kv_len

    @property
    def is_permuted(self) -> bool:
        """Whether kernels work in another token order than the caller's."""
        return self.bound.is_permuted

    @property
    def num_q_slots(self) -> int:
        """Queries as kernels see them: tokens and padding."""
        return self.bound.slot_lengths[0]

    @property
    def num_kv_slots(self) -> int:
        """Keys as kernels see them: tokens and padding."""
        return self.bound.slot_lengths[1]

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

            slots = self.bound.q_slots if side == "query" else self.bound.k_slots
            self._orders[key] = None if slots is None else TokenOrder.of(slots, device)
        return self._orders[key]
