"""One call of a model: which tokens it has, and attention by the plans of those tokens.

A `CallMask` is made once per forward and kind of layer; every layer of that kind attends by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cmask.runtime.attend import attention
from cmask.runtime.autocast import autocasted
from cmask.runtime.integrations.padding import Extent, Part, parts_of, token_runs
from cmask.runtime.integrations.plans import Plans


@dataclass(frozen=True, eq=False)
class CallMask:
    """Stands where models expect a mask.

    window: keys that each token sees, where the layers are sliding ones.
    """

    plans: Plans
    window: int | None
    batch: int
    extent: Extent
    parts: tuple[Part, ...]

    # models ask these of a mask: they are to take this one for one that is ready
    ndim: ClassVar[int] = 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the dense mask that it stands for."""
        return (self.batch, 1, self.extent.q_len, self.extent.kv_len)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def call_mask(
    plans: Plans, window: int | None, batch: int, extent: Extent, attention_mask: Tensor | None
) -> CallMask:
    """The mask of one call.

    attention_mask: true where a slot holds a token, [batch, slots]; None: all do.

    Raises ValueError if padding or cache do not fit the mask.
    """
    if window is not None:
        plans.check_window(window)
    runs = token_runs(attention_mask, batch=batch, num_slots=extent.q_stop)
    parts = tuple(parts_of(runs, extent, window))
    if window is None:
        for part in parts:
            if part.rows[0] > 0:
                plans.check_growth(part.rows[0], part.num_tokens)
    return CallMask(plans, window, batch, extent, parts)


def attend(mask: CallMask, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
    """Attention of one layer: [batch, q_len, heads, head_dim], 0 in rows of padding.

    q: [batch, heads, q_len, head_dim].  k, v: [batch, kv heads, kv_len, head_dim].
    """
    q, k, v = autocasted(q, k, v)  # rotary embeddings may leave q and k in float32
    if len(mask.parts) == 1 and mask.parts[0].rows[1] - mask.parts[0].rows[0] == q.shape[2]:
        (part,) = mask.parts
        if len(part.sequences) == mask.batch:
            return _attend_part(mask, part, q, k, v, scale).transpose(1, 2)
    out = q.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[-1])
    for part in mask.parts:
        pick = _pick(part.sequences, q.device)
        found = _attend_part(mask, part, q[pick], k[pick], v[pick], scale)
        out[pick, slice(*part.queries)] = found.transpose(1, 2)
    return out


def _attend_part(
    mask: CallMask, part: Part, q: Tensor, k: Tensor, v: Tensor, scale: float | None
) -> Tensor:
    """[sequences, heads, rows, head_dim] of the sequences of one part, which q, k and v hold."""
    plan = mask.plans.plan(part.num_tokens, part.rows, q.device, mask.window)
    queries, keys = slice(*part.queries), slice(*part.keys)
    q, k, v = q[:, :, queries], k[:, :, keys], v[:, :, keys]
    return attention(q, k, v, plan, softmax_scale=scale)


def _pick(sequences: tuple[int, ...], device: torch.device) -> slice | Tensor:
    """An index of these sequences: a view where they are neighbours, else a copy."""
    first, last = sequences[0], sequences[-1]
    if last - first + 1 == len(sequences):
        return slice(first, last + 1)
    return torch.tensor(sequences, device=device)
