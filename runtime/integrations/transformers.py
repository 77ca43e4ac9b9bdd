"""Models of Hugging Face transformers by a mask: `attn_implementation="cmask:NAME"`.

    register("causal", "causal.cmaskc")
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="cmask:causal")

transformers asks twice.  Once per forward and kind of layer its mask registry is asked for a mask:
`_Implementation.mask` answers with a `CallMask`, which knows the tokens that the call has.
Then each layer asks the attention registry: `_Implementation.attend` runs cmask's attention by
the plans of those tokens.

Padding.  The mask is bound to the tokens of each sequence: its first token is the first that is
no padding.  Padding is seen by nothing; rows of padding give 0 (by eager attention they give
something that nobody reads).  Sequences with the same padding are one call of attention; each
further padding is another call, and copies its sequences' q, k and v unless they are neighbours.

Source: transformers 5.24, masking_utils.py (the mask registry's arguments) and
integrations/sdpa_attention.py (the attention registry's).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from cmask.runtime.derive.sizes import BindError, bindable_names
from cmask.runtime.integrations.calls import CallMask, attend, call_mask
from cmask.runtime.integrations.padding import Extent
from cmask.runtime.integrations.plans import Plans
from cmask.runtime.integrations.refusals import (
    MaskFunction,
    check_config,
    check_function,
    check_layer,
    check_options,
)
from cmask.runtime.mask import Mask, load
from cmask.runtime.variants import has_heads

FULL, SLIDING = "full_attention", "sliding_attention"
Artifact = str | PathLike[str] | bytes | Mask


def register(name: str, artifact: Artifact | Mapping[str, Artifact], **sizes: object) -> str:
    """Let models attend by a mask: returns "cmask:NAME", a value for `attn_implementation`.

    artifact  a compiled mask (a path, its bytes, or what `load` gave); for models whose layers
              differ, such as Gemma 3, one per type of layer: {"full_attention": ...,
              "sliding_attention": ...}
    sizes     sizes, parameters and tables of the masks that are the same in every call; the
              number of tokens is the mask's `seq`

    A mask for sliding layers must be the window of the model's config.  Masks that generate with a
    cache may only grow at their end.  Whatever else does not fit is refused by a ValueError in
    words, when the model is called.  A second registration of a name takes the place of the first.

    Raises ImportError without transformers, `ArtifactError` for a damaged artifact, ValueError for
    a name or a type of layer that cannot be and for rules of some heads, `BindError` for a size
    that no mask has.
    """
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError as error:
        raise ImportError(f"{error}; pip install 'cmask[transformers]'") from error
    key = f"cmask:{name}"
    if not name or any(word in name for word in ("/", "flash", "sdpa", "flex_attention")):
        raise ValueError(
            f"name must not be empty nor hold '/', 'flash', 'sdpa' or 'flex_attention', by which "
            f"transformers knows its own, got {name!r}"
        )
    if isinstance(artifact, Mapping) and not {*artifact} <= {FULL, SLIDING}:
        raise ValueError(f'artifact must be for "{FULL}" or "{SLIDING}", got {[*artifact]}')
    artifacts = artifact if isinstance(artifact, Mapping) else {"": artifact}
    masks = {kind: m if isinstance(m, Mask) else load(m) for kind, m in artifacts.items()}
    for mask in masks.values():
        if has_heads(mask.form):
            raise ValueError(
                f"artifact must be of a mask that is the same for all heads: `{mask.name}` has "
                "rules for some heads"
            )
    implementation = _Implementation(key, _plans(masks, sizes))
    # torch.compile is to see nothing of plans, or it would compile again for every length
    disable: Callable[[Any], Any] = torch.compiler.disable
    AttentionInterface.register(key, disable(implementation.attend))
    AttentionMaskInterface.register(key, implementation.mask)
    return key


def _plans(masks: Mapping[str, Mask], sizes: Mapping[str, object]) -> dict[str, Plans]:
    """By type of layer; each mask takes the sizes that it has."""
    names = {kind: bindable_names(mask.form) for kind, mask in masks.items()}
    unknown = [name for name in sizes if not any(name in has for has in names.values())]
    if unknown:
        known = sorted({name for has in names.values() for name in has})
        raise BindError(f"no mask has the size, parameter or table {unknown}; there are {known}")
    return {
        kind: Plans(mask, {n: v for n, v in sizes.items() if n in names[kind]})
        for kind, mask in masks.items()
    }


@dataclass(frozen=True, eq=False)
class _Implementation:
    """One registered name.

    plans: by type of layer, or under "" for all layers.
    """

    key: str
    plans: Mapping[str, Plans]

    def mask(
        self,
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: int | Tensor = 0,
        kv_offset: int = 0,
        mask_function: MaskFunction | None = None,
        attention_mask: Tensor | CallMask | None = None,
        local_size: int | None = None,
        allow_is_causal_skip: bool = True,
        use_vmap: bool = False,
        config: Any = None,
        device: torch.device | str = "cpu",
        **_: object,
    ) -> CallMask:
        """What transformers' mask registry calls."""
        if isinstance(attention_mask, CallMask):
            return attention_mask  # `generate` made it before it called a compiled model
        plans = self._plans_for(config, local_size)
        extent = Extent(
            q_start=int(q_offset), q_len=q_length, kv_start=int(kv_offset), kv_len=kv_length
        )
        if use_vmap or not (allow_is_causal_skip or q_length == 1):  # it may be more than causal
            function = None if use_vmap else mask_function
            check_function(self.key, function, batch_size, extent, device)
        mask: CallMask = call_mask(plans, local_size, batch_size, extent, attention_mask)
        return mask

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: object,
        dropout: float = 0.0,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """What transformers' attention registry calls: out [batch, q_len, heads, head_dim]."""
        check_options(self.key, dropout, options)
        lengths = query.shape[0], query.shape[2], key.shape[2]
        window = options.get("sliding_window")
        mask = check_layer(self.key, module, attention_mask, window, lengths)
        return attend(mask, query, key, value, scaling), None

    def _plans_for(self, config: Any, window: int | None) -> Plans:
        """The plans of the layers that a mask is asked for."""
        check_config(self.key, config, is_one_mask="" in self.plans)
        kind = FULL if window is None else SLIDING
        for key in ("", kind):
            if key in self.plans:
                return self.plans[key]
        raise ValueError(f'{self.key}: no mask is registered for "{kind}" layers')
