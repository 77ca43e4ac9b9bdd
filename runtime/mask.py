"""Load an artifact; bind its sizes to a plan that attention runs by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cmask.runtime.artifact import ArtifactError, read_artifact
from cmask.runtime.closed_form import ClosedForm
from cmask.runtime.derive.bound import BoundMask, bind, bind_all
from cmask.runtime.derive.describe import restore
from cmask.runtime.derive.facts import Facts
from cmask.runtime.derive.sizes import BindError, bind_names
from cmask.runtime.descriptor import Descriptor
from cmask.runtime.expressions import Value
from cmask.runtime.plan import Plan as Plan
from cmask.runtime.plan import PlanVariant
from cmask.runtime.schema import Body, StoredBlocks, StoredVariant
from cmask.runtime.variants import Variant, form_of_head, variants_of

if TYPE_CHECKING:
    import torch

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

    def __repr__(self) -> str:
        return f"Mask({self.name})"

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
        """Facts at the bound sizes; None if something was left unbound, or if heads differ."""
        return self.body.facts

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The mask of each set of heads; one for all where no rule is for some heads."""
        return variants_of(self.form)

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
        is_compiled = rows is None and names == self.body.names
        variants = self.variants
        bound = bind_all([variant.form for variant in variants], names, rows)
        if len(variants) > 1:
            stored = self.body.variants if is_compiled else ()
            return _plan_of_heads(variants, bound, device, stored)
        return Plan(
            bound[0],
            device,
            _restored(bound[0], self.body.descriptors if is_compiled else ()),
            measured=tuple(c for c in self.body.configs if c.measured is not None),
            _shape=self._forward_shape() if is_compiled else None,
        )

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
            bound = bind(form_of_head(self.form, golden.head), golden.sizes)
            expected = np.unpackbits(np.frombuffer(golden.bits, np.uint8))
            seen = bound.visible(np.arange(bound.q_len), np.arange(bound.kv_len)).reshape(-1)
            if (bound.q_len, bound.kv_len) != (golden.q_len, golden.kv_len) or not np.array_equal(
                seen, expected[: seen.size].astype(bool)
            ):
                raise ArtifactError(f"`{self.name}` differs from its golden vector")
        return len(self.body.goldens)


def _plan_of_heads(
    variants: Sequence[Variant],
    bound: Sequence[BoundMask],
    device: str | torch.device,
    stored: Sequence[StoredVariant],
) -> Plan:
    """A plan for each variant in one; stored: what the artifact has for these sizes, or nothing."""
    orders: dict[tuple[str, torch.device], TokenOrder | None] = {}  # the same for all heads
    blocks = [each.descriptors for each in stored] or [()] * len(variants)
    plans = [
        Plan(b, device, _restored(b, s), _orders=orders) for b, s in zip(bound, blocks, strict=True)
    ]
    each = tuple(PlanVariant(v.heads, plan) for v, plan in zip(variants, plans, strict=True))
    return Plan(bound[0], device, _orders=orders, variants=each)


def _restored(
    bound: BoundMask, stored: Sequence[StoredBlocks]
) -> dict[tuple[int, int], Descriptor]:
    return {
        (s.block_m, s.block_n): restore(s, bound.split)
        for s in stored
        if (s.q_len, s.kv_len) == bound.slot_lengths
    }
