"""A small Llama of Hugging Face transformers whose attention is a mask: it trains and generates.

The same weights are trained twice on the same batches, by `attn_implementation="cmask:causal"` and
by transformers' eager attention; then both go on with prompts of different lengths, padded on
their left.  Losses agree to rounding, and in float32 the words that they say are the same.
In bfloat16 the weights stay in float32, where small steps of the optimizer count.

The data: two words in turn.  What comes next stands two places back.

    python examples/transformers_llama.py
    python examples/transformers_llama.py --device cuda --dtype bfloat16
"""

from __future__ import annotations

import argparse
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from cmask.runtime.integrations.transformers import register
from training import mask_of

WORDS, PAD = 24, 0  # words are 1, 2, ...
LENGTHS = (8, 12, 16)  # of the sequences of a batch [tokens]
BATCH, NEW = 12, 16


@dataclass(frozen=True)
class Run:
    """One model: the loss of each step, then what it says, int64[prompts, NEW]."""

    losses: list[float] = field(default_factory=list)
    words: Tensor = field(default_factory=lambda: torch.empty(0, NEW, dtype=torch.int64))


def batch_of(step: int, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Sequences padded on their left, and 1 where a word stands: int64[sequences, longest]."""
    random = torch.Generator().manual_seed(step)
    pairs = 1 + torch.randint(WORDS - 1, (len(lengths), 2), generator=random)
    slots = torch.arange(int(lengths.max()))
    is_word = slots >= lengths.max() - lengths[:, None]
    return pairs[:, slots % 2] * is_word, is_word.long()


def train(model: LlamaForCausalLM, steps: int, dtype: torch.dtype) -> list[float]:
    """The loss of each step, before it.  dtype: of the layers' products."""
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    lengths = torch.tensor(LENGTHS).repeat(BATCH // len(LENGTHS))
    losses = []
    for step in range(steps):
        words, is_word = (x.to(model.device) for x in batch_of(step, lengths))
        # a sequence's first two words follow from nothing: they are not to be learned
        known = is_word.cumsum(1) > 2
        labels = torch.where(known, words, -100)
        with products_in(dtype, model.device):
            loss = model(words, attention_mask=is_word, labels=labels, use_cache=False).loss
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def products_in(dtype: torch.dtype, device: torch.device) -> torch.autocast:
    """Where float32 weights are multiplied in another type."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


def main(argv: list[str] | None = None) -> dict[str, Run]:
    """Train and generate by both attentions; what each did."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args(argv)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    weights = LlamaForCausalLM(config).to(options.device)
    dtype = getattr(torch, options.dtype)
    runs = {}
    for attention in (register("causal", mask_of("causal")), "eager"):
        model = deepcopy(weights)
        model.set_attn_implementation(attention)
        losses = train(model.train(), options.steps, dtype)
        prompts = (x.to(options.device) for x in batch_of(-1, torch.tensor([3, 8, 5])))
        words, is_word = prompts
        with products_in(dtype, model.device):
            said = model.eval().generate(words, attention_mask=is_word, max_new_tokens=NEW)
        runs[attention] = Run(losses, said[:, words.shape[1] :].cpu())
        print(f"{attention:13} loss {losses[0]:.4f} -> {losses[-1]:.6f}")
        for prompt, line in zip(words.tolist(), runs[attention].words.tolist(), strict=True):
            print(f"    {[word for word in prompt if word != PAD]} then {line}")
    return runs


if __name__ == "__main__":
    main()
