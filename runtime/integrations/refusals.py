"""What models of transformers may ask for that a mask cannot give: refused in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cmask.runtime.integrations.calls import CallMask
from cmask.runtime.integrations.padding import Extent

# (sequence, head, query slot, key slot) -> whether the pair is visible, broadcast
MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# arguments of attention that change more than which pairs are visible
_OPTIONS = {
    "softcap": "a cap on scores",
    "position_bias": "a bias of scores",
    "s_aux": "sinks in the softmax",
    "sinks": "sinks in the softmax",
    "head_mask": "a mask of heads",
    "indices": "keys chosen by the model",
    "block_indices": "keys chosen by the model",
    "cu_seq_lens_q": "sequences packed by the caller",
    "output_attentions": "attention weights as an output",
}


@torch.compiler.disable  # type: ignore[untyped-decorator]
def check_function(
    name: str,
    function: MaskFunction | None,
    batch: int,
    extent: Extent,
    device: torch.device | str,
) -> None:
    """Refuse what a model asks for that is neither causal nor a window.

    function: says which pairs the model wants; None: it cannot be asked.  Neighbours are looked
    at: of packed sequences the last token of one is hidden from the first of the next, and what
    looks in both directions sees the token behind it.
    """
    if function is not None:
        first = torch.arange(extent.q_start, extent.q_stop - 1, device=device)[None]
        sequence = torch.arange(batch, device=device)[:, None]
        head = torch.zeros_like(sequence)
        sees_last = function(sequence, head, first + 1, first).all()
        sees_next = function(sequence, head, first, first + 1).any()
        if bool(sees_last & ~sees_next):
            return
    raise ValueError(
        f"{name}: the model or its position_ids ask for more than a causal mask (packed "
        "sequences, images that see themselves, both directions)"
    )


def check_options(name: str, dropout: float, options: Mapping[str, Any]) -> None:
    """Refuse what attention is asked for beside the mask."""
    if dropout:
        raise ValueError(f"{name}: dropout must be 0, got {dropout}")
    for option, what in _OPTIONS.items():
        if options.get(option) is not None and options[option] is not False:
            raise ValueError(f"{name}: {what} cannot be had (`{option}` was given)")


def check_layer(
    name: str, module: nn.Module, mask: object, window: int | None, lengths: tuple[int, int, int]
) -> CallMask:
    """The mask as what it is; refuse one that is not this layer's.

    window: the layer's, None where it names none.  lengths: sequences, queries and keys [slots].
    """
    layer = type(module).__name__
    if not isinstance(mask, CallMask):
        got = f"{mask.ndim} dimensions" if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(
            f"{name}: attention_mask must have 2 dimensions or be None, and {layer} must belong to "
            f"a decoder, got {got}; other parts of a model can have another attention: "
            f'attn_implementation={{"text_config": "{name}", "vision_config": "sdpa"}}'
        )
    if window is not None and window != mask.window:
        raise ValueError(
            f"{name}: {layer} has a window of {window} tokens, the mask that it was given is for "
            f"{'full attention' if mask.window is None else f'one of {mask.window}'}"
        )
    expected = (mask.batch, mask.extent.q_len, mask.extent.kv_len)
    if lengths != expected:
        raise ValueError(
            f"{name}: {layer} has {lengths} sequences, queries and keys, the mask that it was "
            f"given is for {expected}"
        )
    return mask


def check_config(name: str, config: Any, *, is_one_mask: bool) -> None:
    """Refuse models with layers that no mask here can serve.

    is_one_mask: whether one mask was registered for all types of layers.
    """
    kinds = set(getattr(config, "layer_types", None) or ())
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{name}: a model with an encoder and a decoder cannot be served")
    if "chunked_attention" in kinds or getattr(config, "attention_chunk_size", None):
        raise ValueError(f"{name}: layers that attend in chunks cannot be served")
    if is_one_mask and {"full_attention", "sliding_attention"} <= kinds:
        raise ValueError(
            f"{name}: the model has full and sliding layers: register a mask for each, "
            '{"full_attention": ..., "sliding_attention": ...}'
        )
