"""Fine-tuning on packed documents: new lengths in every step, one plan that is bound in place.

Documents lie one behind the other in one sequence, each causal on its own (causal_documents).  On a
GPU the plan has room for so many words and documents, and `plan.bind_(text=lengths)` fills it where
the lengths are: nothing is read back, and a compiled model is compiled once.  What lies behind the
last document sees nothing.  On a CPU, or by `--bind host`, `mask.bind(text=...)` makes a plan for
each step, on the host.

The same model takes the same steps on each document alone, by PyTorch's causal attention and
without packing: losses agree to rounding.

The data: two words in turn.  What comes next stands two places back.

    python examples/packed_documents.py
    python examples/packed_documents.py --device cuda --dtype bfloat16 --tokens 8192 --compile
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cmask.runtime import attention
from training import BETAS, EPS, LEARNING_RATE, Model, mask_of, options_of
from transformer import WIDTH, Attend, Trunk, head, waves

WORDS = 12
NOT_TAKEN = -100  # a label that cross_entropy leaves out
Bind = Callable[[Tensor], Attend]  # lengths of a step -> how it attends


class Batch(NamedTuple):
    """Documents, one behind the other.

    words, positions  int64[tokens]; positions count from each document's start
    labels            int64[tokens]: the next word, NOT_TAKEN where nothing tells it
    lengths           int64[documents], with zeros
    """

    words: Tensor
    positions: Tensor
    labels: Tensor
    lengths: Tensor


class Writer(nn.Module):
    """Words at positions, int64[tokens] -> scores of what comes next, float[tokens, WORDS]."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.trunk = Trunk(checkpointed=checkpointed)
        self.head = head(WORDS)

    def forward(self, words: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Attention is over all words together."""
        x = self.embed(words) + waves(positions)
        scores: Tensor = self.head(self.trunk(x[None], attend)[0])
        return scores


@dataclass(frozen=True)
class Curves:
    """The loss of each step: of documents in one sequence, and of each alone."""

    packed: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)


def batch_of(tokens: int, documents: int, step: int, device: str) -> Batch:
    """Documents of random lengths, as many as there is room for; the rest are words of no document.

    Some documents are empty, some have one word.
    """
    random = torch.Generator().manual_seed(step)
    drawn = torch.randint(2 * tokens // documents, (documents,), generator=random)
    drawn[step % documents] = step % 2
    lengths = torch.where(drawn.cumsum(0) <= tokens, drawn, 0)
    pairs = torch.randint(WORDS, (documents + 1, 2), generator=random)
    owner = torch.arange(documents).repeat_interleave(lengths)
    positions = torch.arange(len(owner)) - (lengths.cumsum(0) - lengths)[owner]
    rest = (0, tokens - len(owner))
    # the second word follows from nothing, and nothing follows the last
    is_told = (positions > 0) & (positions < lengths[owner] - 1)
    labels = torch.where(is_told, pairs[owner, (positions + 1) % 2], NOT_TAKEN)
    words, positions = F.pad(pairs[owner, positions % 2], rest), F.pad(positions, rest)
    columns = (words, positions, F.pad(labels, rest, value=NOT_TAKEN), lengths)
    return Batch(*(column.to(device) for column in columns))


def on_host(tokens: int, device: str, kernel: str | None) -> Bind:
    """A plan for each step."""
    mask = mask_of("causal_documents")

    def bind(lengths: Tensor) -> Attend:
        rest = tokens - int(lengths.sum())  # one more document, whose loss is not taken
        plan = mask.bind(text=[*lengths.tolist(), rest], device=device)
        return Attend(partial(attention, plan=plan, kernel=kernel))

    return bind


def in_place(tokens: int, documents: int, device: str, kernel: str | None) -> Bind:
    """One plan, with room for the longest step."""
    plan = mask_of("causal_documents").plan(
        tokens, instances={"document": documents}, device=device
    )
    attend = Attend(partial(attention, plan=plan, kernel=kernel))

    def bind(lengths: Tensor) -> Attend:
        plan.bind_(text=lengths)
        return attend

    return bind


def packed(model: Model, batch: Batch, attend: Attend) -> Tensor:
    """Cross entropy, mean over the words that follow from others."""
    scores = model(batch.words, batch.positions, attend)
    return F.cross_entropy(scores.float(), batch.labels, ignore_index=NOT_TAKEN)


def alone(model: Model, batch: Batch) -> Tensor:
    """The same, one document after the other."""
    causal = Attend(partial(F.scaled_dot_product_attention, is_causal=True))
    total = torch.zeros((), device=batch.words.device)
    lengths = [length for length in batch.lengths.tolist() if length]
    columns = (torch.split(x[: sum(lengths)], lengths) for x in batch[:3])
    for words, positions, labels in zip(*columns, strict=True):
        scores = model(words, positions, causal)
        total = total + F.cross_entropy(scores.float(), labels, reduction="sum")
    return total / (batch.labels != NOT_TAKEN).sum()


def main(argv: list[str] | None = None) -> Curves:
    """Train packed and alone; the losses."""
    options = options_of(__doc__, argv, tokens=256, documents=8, bind="")
    device, dtype = options.device, getattr(torch, options.dtype)
    is_in_place = (options.bind or ("host" if device == "cpu" else "device")) == "device"
    bind = (
        in_place(options.tokens, options.documents, device, options.kernel)
        if is_in_place
        else on_host(options.tokens, device, options.kernel)
    )
    torch.manual_seed(0)
    first = Writer(checkpointed=options.checkpoint).to(device)
    second = deepcopy(first)
    model: Model = torch.compile(first, backend=options.compile) if options.compile else first
    optimizers = [
        torch.optim.AdamW(m.parameters(), LEARNING_RATE, BETAS, EPS) for m in (first, second)
    ]
    curves = Curves()
    for step in range(options.steps):
        batch = batch_of(options.tokens, options.documents, step, device)
        with torch.autocast(torch.device(device).type, dtype, enabled=dtype != torch.float32):
            attend = bind(batch.lengths)
            if options.compile and (step == 0 or not is_in_place):
                # a plan's first call prepares: not to be traced
                packed(first, batch, attend)
            losses = packed(model, batch, attend), alone(second, batch)
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        curves.packed.append(losses[0].item())
        curves.alone.append(losses[1].item())
        print(f"step {step:3}  packed {curves.packed[-1]:.6f}  alone {curves.alone[-1]:.6f}")
    return curves


if __name__ == "__main__":
    main()
