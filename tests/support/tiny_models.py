"""Small random models of transformers; importing this needs it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from support.attending import DEVICE

VOCABULARY, WINDOW = 61, 6
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,  # so that generation never stops early
    "tie_word_embeddings": False,  # else Gemma 3 repeats the last word
    "initializer_range": 0.4,  # large: what is said depends on what is seen
}


def llama() -> Any:
    """All layers full."""
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def mistral() -> Any:
    """All layers sliding."""
    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW))


def gemma3(**changes: Any) -> Any:
    """A sliding layer, then a full one; its scale of scores is not that of its head_dim."""
    settings = {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 24,
    }
    return Gemma3ForCausalLM(Gemma3TextConfig(**{**SIZES, **settings, **changes}))


FAMILIES: dict[str, Callable[[], Any]] = {"llama": llama, "mistral": mistral, "gemma3": gemma3}


@cache
def model_of(family: str, implementation: str) -> Any:
    """The same weights whatever the implementation."""
    torch.manual_seed(0)
    model = FAMILIES[family]().to(DEVICE).eval()
    model.set_attn_implementation(implementation)
    return model


def batch_of(paddings: list[int], length: int, *, right: bool = False) -> tuple[Tensor, Tensor]:
    """Random words and their attention_mask, int64[sequences, length]."""
    generator = torch.Generator().manual_seed(length)
    words = torch.randint(2, VOCABULARY, (len(paddings), length), generator=generator)
    slots = torch.arange(length)
    before = torch.tensor(paddings)[:, None]
    is_token = slots < length - before if right else slots >= before
    return (words * is_token).to(DEVICE), is_token.long().to(DEVICE)
