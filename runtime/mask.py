"""Load an artifact; bind its sizes to a plan that attention runs by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cmask.runtime.artifact import ArtifactError, read_artifact
from cmask.runtime.closed_form import ClosedForm
from cmask.runtime.derive.bound import BoundMask, bind
from cmask.runtime.derive.describe import restore
from cmask.runtime.derive.facts import Facts
from cmask.runtime.derive.sizes import BindError, bind_names
from cmask.runtime.derive.tokens import Array
from cmask.runtime.descriptor import Descriptor
from cmask.runtime.expressions import Value
from cmask.runtime.schema import Body

if TYPE_CHECKING:
    import torch

    from cmask.runtime.kernels.device import DeviceDescriptor
    from cmask.runtime.kernels.prepare import CallKind, Prepared


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
        if rows is None and names == self.body.names:
            stored = {
                (s.block_m, s.block_n): restore(s, bound.split.intervals)
                for s in self.body.descriptors
                if (s.q_len, s.kv_len) == bound.slot_lengths
            }
        return Plan(bound, device, stored)

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
    """

    bound: BoundMask
    device: str | torch.device
    _descriptors: dict[tuple[int, int], Descriptor] = field(default_factory=dict)
    _on_device: dict[tuple[int, int], DeviceDescriptor] = field(default_factory=dict)
    _indices: dict[str, Any] = field(default_factory=dict)
    prepared: dict[CallKind, Prepared] = field(default_factory=dict)

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
        import torch

        slots = self.bound.q_slots if side == "query" else self.bound.k_slots
        count = self.q_len if side == "query" else self.kv_len
        if x.shape[dim] != count:
            raise ValueError(f"x must hold {count} tokens in dimension {dim}, got {x.shape[dim]}")
        if slots is None:
            return x
        index = self._index(f"{side} slots", np.maximum(slots, 0), x.device)
        permuted = x.index_select(dim, index)
        if (slots >= 0).all():
            return permuted
        padding = self._index(f"{side} padding", slots < 0, x.device)
        shape = [1] * x.ndim
        shape[dim] = len(slots)
        return torch.where(
            padding.view(shape), torch.zeros((), dtype=x.dtype, device=x.device), permuted
        )

    def unpermute(self, x: torch.Tensor, side: str = "query", *, dim: int = -2) -> torch.Tensor:
        """The inverse of `permute`: tokens in the caller's order, padding dropped."""
        slots = self.bound.q_slots if side == "query" else self.bound.k_slots
        if slots is None:
            return x
        if x.shape[dim] != len(slots):
            raise ValueError(
                f"x must hold {len(slots)} slots in dimension {dim}, got {x.shape[dim]}"
            )
        return x.index_select(dim, self._index(f"{side} tokens", _inverse(slots), x.device))

    def _index(self, name: str, array: Any, device: torch.device) -> torch.Tensor:
        import torch

        key = f"{name} {device}"
        if key not in self._indices:
            self._indices[key] = torch.from_numpy(np.ascontiguousarray(array)).to(device)
        tensor: torch.Tensor = self._indices[key]
        return tensor


def _inverse(slots: Array) -> Array:
    """The slot of each token."""
    real = np.flatnonzero(slots >= 0)
    inverse = np.empty(len(real), np.int64)
    inverse[slots[real]] = real
    return inverse
