"""HSTU-like ranking: candidates are scored by a user's history and do not see each other.

Users are packed into one sequence: context (the user's segment), history (items that were clicked),
targets (candidates, each scored as if it came right behind the history; mask hstu).  The loss is
the cross entropy of a click on each target.  HSTU proper weighs by SiLU; here it is softmax.

The data: a user likes one category of items; history and clicks follow it most of the time, in
segment 1 less often than in segment 0.

    python examples/hstu_ranking.py --tokens 512
    python examples/hstu_ranking.py --device cuda --dtype bfloat16 --tokens 4096 --compile
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from cmask.runtime import Plan
from training import Curves, Model, Task, compare, mask_of, options_of
from transformer import WIDTH, Attend, Trunk, head, waves

CATEGORIES, ITEMS = 4, 4  # items of each category; an item's category is item // ITEMS
LOYALTY = (0.95, 0.75)  # of each segment: how often what is liked is clicked
SEGMENT = CATEGORIES * ITEMS  # the first segment's token, behind those of the items
CONTEXT = 1  # [tokens]
LAYOUTS = 2  # sets of lengths that batches are drawn from


class User(NamedTuple):
    """Lengths [tokens]."""

    history: int
    target: int


class Batch(NamedTuple):
    """tokens, positions: int64[1, tokens].  targets: int64[targets], where they lie.

    clicked: float32[targets], 0 or 1.
    """

    tokens: Tensor
    positions: Tensor
    targets: Tensor
    clicked: Tensor


class Ranker(nn.Module):
    """Context, history and targets -> the log-odds of a click on each target."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(SEGMENT + len(LOYALTY), WIDTH)
        self.trunk = Trunk(checkpointed=checkpointed)
        self.head = head(1)

    def forward(self, batch: Batch, attend: Attend) -> Tensor:
        """float[targets]."""
        x = self.embed(batch.tokens) + waves(batch.positions)
        scores: Tensor = self.head(self.trunk(x, attend)[0, batch.targets])[:, 0]
        return scores


def loss(model: Model, batch: Batch, attend: Attend) -> Tensor:
    """Cross entropy of clicks, mean over targets."""
    return F.binary_cross_entropy_with_logits(model(batch, attend).float(), batch.clicked)


def lengths_of(tokens: int, seed: int) -> list[User]:
    """Random lengths that fill `tokens`: the last history takes what is left."""
    random = np.random.default_rng(seed)
    unit = max(4, tokens // 128)
    if tokens < CONTEXT + 8 * unit:
        raise SystemExit(f"--tokens must be at least {CONTEXT + 8 * unit}, got {tokens}")
    users: list[User] = []
    left = tokens
    while left >= CONTEXT + 8 * unit:  # the longest user
        history, target = random.integers(2 * unit, 4 * unit, 2, endpoint=True)
        users.append(User(int(history), int(target)))
        left -= CONTEXT + sum(users[-1])
    users[-1] = User(users[-1].history + left, users[-1].target)
    return users


def batch_of(users: list[User], step: int, device: str) -> Batch:
    """Items that users clicked, candidates, and what becomes of them."""
    random = np.random.default_rng(step)
    tokens, positions, is_target, clicked = [], [], [], []
    for user in users:
        segment, liked = map(int, random.integers((len(LOYALTY), CATEGORIES)))
        history = items_of(liked, LOYALTY[segment], user.history, random)
        targets = items_of(liked, 0.5, user.target, random)
        tokens += [np.array([SEGMENT + segment]), history, targets]
        # each target stands right behind the history; the mask says so, too
        before = CONTEXT + user.history
        positions += [np.arange(before), np.full(user.target, before)]
        is_target += [False] * before + [True] * user.target
        odds = np.where(targets // ITEMS == liked, LOYALTY[segment], 1 - LOYALTY[0])
        clicked.append(random.random(user.target) < odds)
    return Batch(
        torch.from_numpy(np.concatenate(tokens)[None]).to(device),
        torch.from_numpy(np.concatenate(positions)[None]).to(device),
        torch.from_numpy(np.flatnonzero(is_target)).to(device),
        torch.from_numpy(np.concatenate(clicked)).float().to(device),
    )


def items_of(
    liked: int, share: float, count: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """So many items: this share of the liked category, the others of any."""
    categories = random.integers(CATEGORIES, size=count)
    categories[random.random(count) < share] = liked
    return categories * ITEMS + random.integers(ITEMS, size=count)


def main(argv: list[str] | None = None) -> Curves:
    """Train by both attentions; the losses."""
    options = options_of(__doc__, argv, tokens=512)
    mask = mask_of("hstu")
    layouts = []
    for seed in range(LAYOUTS):
        users = lengths_of(options.tokens, seed)
        history, target = zip(*users, strict=True)
        context = [CONTEXT] * len(users)
        plan = mask.bind(context=context, history=history, target=target, device=options.device)
        layouts.append((users, plan))

    def draw(step: int) -> tuple[Plan, Batch]:
        users, plan = layouts[step % LAYOUTS]
        return plan, batch_of(users, step, options.device)

    torch.manual_seed(0)
    model = Ranker(checkpointed=options.checkpoint)
    return compare(Task(model, draw, loss), options)


if __name__ == "__main__":
    main()
