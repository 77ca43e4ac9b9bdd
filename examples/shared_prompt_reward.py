"""A reward model on packed groups: a prompt and several answers that share it, in one sequence.

Each prompt is computed once, whatever the number of its answers, and no answer sees another (mask
shared_prompt_packed).  A reward is read at the last token of each answer; the loss is
Bradley-Terry's over all pairs of answers to one prompt.

The data: a prompt has a topic, and the better of two answers has more words of that topic.

    python examples/shared_prompt_reward.py --tokens 512
    python examples/shared_prompt_reward.py --device cuda --dtype bfloat16 --tokens 4096 --compile
"""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from cmask.runtime import Plan
from training import Curves, Model, Task, compare, mask_of, options_of
from transformer import WIDTH, Attend, Trunk, head, waves

TOPICS, WORDS = 3, 4  # words of each topic; a word's topic is word // WORDS
LAYOUTS = 2  # sets of lengths that batches are drawn from


class Group(NamedTuple):
    """Lengths of a prompt and of its answers [tokens]."""

    prompt: int
    answers: list[int]


class Batch(NamedTuple):
    """words, positions: int64[1, tokens].  ends: int64[answers], each answer's last token.

    better, worse: int64[pairs], answers of one prompt.
    """

    words: Tensor
    positions: Tensor
    ends: Tensor
    better: Tensor
    worse: Tensor


class RewardModel(nn.Module):
    """Words -> a reward for each answer."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOPICS * WORDS, WIDTH)
        self.trunk = Trunk(checkpointed=checkpointed)
        self.head = head(1)

    def forward(self, batch: Batch, attend: Attend) -> Tensor:
        """float[answers]."""
        x = self.embed(batch.words) + waves(batch.positions)
        rewards: Tensor = self.head(self.trunk(x, attend)[0, batch.ends])[:, 0]
        return rewards


def loss(model: Model, batch: Batch, attend: Attend) -> Tensor:
    """-log P(better beats worse), P = sigmoid of the difference of rewards; mean over pairs."""
    rewards = model(batch, attend).float()
    return -F.logsigmoid(rewards[batch.better] - rewards[batch.worse]).mean()


def lengths_of(tokens: int, seed: int) -> list[Group]:
    """Random lengths that fill `tokens`: the last answer takes what is left."""
    random = np.random.default_rng(seed)
    unit = max(4, tokens // 128)  # some 20 groups
    if tokens < 10 * unit:
        raise SystemExit(f"--tokens must be at least {10 * unit}, got {tokens}")
    groups: list[Group] = []
    left = tokens
    while left >= 10 * unit:  # the longest group
        answers = random.integers(unit, 2 * unit, random.integers(2, 5), endpoint=True).tolist()
        groups.append(Group(int(random.integers(unit, 2 * unit)), answers))
        left -= groups[-1].prompt + sum(answers)
    groups[-1].answers[-1] += left
    return groups


def batch_of(groups: list[Group], step: int, device: str) -> Batch:
    """Prompts with their answers, and which of two answers is better."""
    random = np.random.default_rng(step)
    words, positions, pairs = [], [], []
    lengths, is_answer = [], []
    num_answers = 0
    for group in groups:
        qualities = random.permutation(np.linspace(0, 1, len(group.answers)))
        words += write(group, qualities, random)
        positions.append(np.arange(group.prompt))
        # every answer stands right behind its prompt, whatever lies between
        positions += [np.arange(length) + group.prompt for length in group.answers]
        lengths += [group.prompt, *group.answers]
        is_answer += [False] + [True] * len(qualities)
        of_group = permutations(range(len(qualities)), 2)
        pairs += [
            (num_answers + a, num_answers + b) for a, b in of_group if qualities[a] > qualities[b]
        ]
        num_answers += len(qualities)
    ends = (np.cumsum(lengths) - 1)[is_answer]
    better, worse = np.array(pairs).T
    arrays = (np.concatenate(words)[None], np.concatenate(positions)[None], ends, better, worse)
    return Batch(*(torch.as_tensor(array, device=device) for array in arrays))


def write(
    group: Group, qualities: NDArray[np.float64], random: np.random.Generator
) -> list[NDArray[np.int64]]:
    """The words of a prompt and of its answers.

    qualities: float64[answers], the share of an answer's words that are on the prompt's topic; of
    the other words some are so by chance.
    """
    topic = random.integers(TOPICS)
    written = []
    for length, share in zip((group.prompt, *group.answers), (0.8, *qualities), strict=True):
        topics = random.integers(TOPICS, size=length)
        topics[random.random(length) < share] = topic
        written.append(topics * WORDS + random.integers(WORDS, size=length))
    return written


def main(argv: list[str] | None = None) -> Curves:
    """Train by both attentions; the losses."""
    options = options_of(__doc__, argv, tokens=512)
    mask = mask_of("shared_prompt_packed")
    layouts = []
    for seed in range(LAYOUTS):
        groups = lengths_of(options.tokens, seed)
        prompts, answers = zip(*groups, strict=True)
        layouts.append((groups, mask.bind(prompt=prompts, answer=answers, device=options.device)))

    def draw(step: int) -> tuple[Plan, Batch]:
        groups, plan = layouts[step % LAYOUTS]
        return plan, batch_of(groups, step, options.device)

    torch.manual_seed(0)
    model = RewardModel(checkpointed=options.checkpoint)
    return compare(Task(model, draw, loss), options)


if __name__ == "__main__":
    main()
