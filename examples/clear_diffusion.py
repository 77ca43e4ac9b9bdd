"""A small diffusion transformer: text tokens in front of an image grid, local attention (CLEAR).

Text sees everything, an image token sees the text and a disc around itself (mask clear_r8).  The
mask's order works on tiles of the image: tokens are permuted once per model.  Batches come in
several image sizes ("buckets"), each bound to a plan of its own.

The model learns a rectified flow: from x = (1 - t) image + t noise it predicts noise - image.

The data: the first text token names one of a few waves with a colour; noise at t >= 0.2.

    python examples/clear_diffusion.py --sizes 12x12,8x20
    python examples/clear_diffusion.py --device cuda --dtype bfloat16 --sizes 64x64 --compile
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cmask.runtime import Plan
from training import Curves, Model, Task, compare, mask_of, options_of
from transformer import WIDTH, Attend, Trunk, head, waves

NAMES, FILLERS = 4, 8  # text tokens that name an image, and others
TEXT = 4  # [tokens]
CHANNELS = 4  # of an image token
BATCH = 2  # images
LEAST_NOISE = 0.2


class Batch(NamedTuple):
    """text: int64[BATCH, TEXT].  t: float32[BATCH].  height, width of the image [tokens].

    noisy, wanted: float32[BATCH, height * width, CHANNELS].
    """

    text: Tensor
    t: Tensor
    noisy: Tensor
    wanted: Tensor
    height: int
    width: int


class Denoiser(nn.Module):
    """Text, time and a noisy image -> the flow."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(NAMES + FILLERS, WIDTH)
        self.pixels = nn.Linear(CHANNELS, WIDTH)
        self.time = nn.Linear(WIDTH, WIDTH)
        self.trunk = Trunk(checkpointed=checkpointed)
        self.head = head(CHANNELS)

    def forward(self, batch: Batch, attend: Attend) -> Tensor:
        """float[BATCH, height * width, CHANNELS]."""
        device = batch.noisy.device
        rows = waves(torch.arange(batch.height, device=device), WIDTH // 2)
        columns = waves(torch.arange(batch.width, device=device), WIDTH // 2)
        grid = (batch.height, batch.width, WIDTH // 2)
        places = torch.cat((rows[:, None].expand(grid), columns.expand(grid)), -1).flatten(0, 1)
        text = self.embed(batch.text) + waves(torch.arange(TEXT, device=device))
        image = self.pixels(batch.noisy) + places
        time = self.time(waves(1000 * batch.t))[:, None]
        x = self.trunk(torch.cat((text, image), 1) + time, attend)
        flow: Tensor = self.head(x[:, TEXT:])
        return flow


def loss(model: Model, batch: Batch, attend: Attend) -> Tensor:
    """Mean squared error of the flow."""
    return F.mse_loss(model(batch, attend).float(), batch.wanted)


def images_of(names: Tensor, height: int, width: int) -> Tensor:
    """float32[len(names), height * width, CHANNELS]: a wave whose phase differs by channel."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    turn = names[:, None, None] * torch.pi / NAMES  # the wave's direction
    phase = 0.5 * (x * turn.cos() + y * turn.sin())
    shifts = torch.arange(CHANNELS) * torch.pi / CHANNELS
    return (phase.flatten(1)[..., None] + shifts).cos() * 2**0.5


def batch_of(height: int, width: int, step: int, device: str) -> Batch:
    """Images of random names at random times."""
    random = torch.Generator().manual_seed(step)
    names = torch.randint(NAMES, (BATCH, 1), generator=random)
    fillers = NAMES + torch.randint(FILLERS, (BATCH, TEXT - 1), generator=random)
    image = images_of(names[:, 0], height, width)
    noise = torch.randn(image.shape, generator=random)
    t = LEAST_NOISE + (1 - LEAST_NOISE) * torch.rand(BATCH, generator=random)
    noisy = (1 - t[:, None, None]) * image + t[:, None, None] * noise
    tensors = (torch.cat((names, fillers), 1), t, noisy, noise - image)
    text, t, noisy, wanted = (tensor.to(device) for tensor in tensors)
    return Batch(text, t, noisy, wanted, height, width)


def main(argv: list[str] | None = None) -> Curves:
    """Train by both attentions; the losses."""
    options = options_of(__doc__, argv, sizes="12x12,8x20")
    mask = mask_of("clear_r8")
    buckets = []
    for size in options.sizes.split(","):
        height, width = map(int, size.split("x"))
        plan = mask.bind(text=TEXT, height=height, width=width, device=options.device)
        buckets.append((height, width, plan))

    def draw(step: int) -> tuple[Plan, Batch]:
        height, width, plan = buckets[step % len(buckets)]
        return plan, batch_of(height, width, step, options.device)

    torch.manual_seed(0)
    model = Denoiser(checkpointed=options.checkpoint)
    return compare(Task(model, draw, loss), options)


if __name__ == "__main__":
    main()
