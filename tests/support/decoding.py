"""Sequences that are decoded: what their queries see, caches full of NaN, the right answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from support.attending import DEVICE
from support.budgets import Results, Upstream, check_budget, eager
from support.compiled import bound, dense

CAUSAL = "region text; text sees text: causal"
WINDOW = "region text; text sees text: window(20, 0)"
SINK = "region text; text sees text: (first(3) | window(20, 0)) & causal"
CHUNKS = "region text; text sees text: same(pos / 24) & causal"
MASKS = {"causal": CAUSAL, "window": WINDOW, "sink": SINK, "chunks": CHUNKS}
GARBAGE = 1 << 30  # a page that is not there


@dataclass(frozen=True)
class Sequences:
    """A batch: `lens` keys each, of which the last `rows` are the queries.

    visible: of each sequence bool[rows, its keys], by the mask at its own length.
    """

    q: Tensor
    keys: list[Tensor]  # [kv heads, its keys, dim]
    values: list[Tensor]
    visible: list[Tensor]

    @property
    def lens(self) -> list[int]:
        return [x.shape[1] for x in self.keys]


def sequences(
    body: str,
    lens: list[int],
    *,
    rows: int = 1,
    heads: tuple[int, int] = (4, 2),
    dims: tuple[int, int] = (32, 32),
    dtype: torch.dtype = torch.bfloat16,
) -> Sequences:
    """Random ones, the same each time.  heads: of q and k; dims: of k and v."""
    random = torch.Generator().manual_seed(sum(lens) * 100 + rows)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(DEVICE, dtype)

    return Sequences(
        draw(len(lens), heads[0], rows, dims[0]),
        [draw(heads[1], n, dims[0]) for n in lens],
        [draw(heads[1], n, dims[1]) for n in lens],
        [last_rows(body, n, rows) for n in lens],
    )


def last_rows(body: str, length: int, rows: int) -> Tensor:
    """bool[rows, length]: the last rows of the mask; rows before its first see nothing."""
    visible = torch.zeros(rows, length, dtype=torch.bool)
    if length:
        whole = torch.from_numpy(dense(bound(body, text=length)))
        there = min(rows, length)
        visible[rows - there :] = whole[length - there :]
    return visible.to(DEVICE)


def contiguous(
    batch: Sequences, capacity: int, starts: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    """k and v [batch, kv heads, capacity, dim]: NaN where no query sees a key."""
    found = []
    for parts in (batch.keys, batch.values):
        heads, _, dim = parts[0].shape
        cache = parts[0].new_full((len(parts), heads, capacity, dim), torch.nan)
        for b, (part, visible) in enumerate(zip(parts, batch.visible, strict=True)):
            seen = visible.any(0)
            start = starts[b] if starts else 0
            cache[b, :, start : start + part.shape[1]][:, seen] = part[:, seen]
        found.append(cache)
    return found[0], found[1]


def paged(batch: Sequences, page_size: int, max_pages: int) -> tuple[Tensor, Tensor, Tensor]:
    """k and v [pages, page_size, kv heads, dim] and the table: pages in any order.

    What no query sees holds NaN, and its page is one that is not there.
    """
    seen = [visible.any(0) for visible in batch.visible]
    used = [
        (b, i)
        for b, x in enumerate(seen)
        for i, page in enumerate(x.split(page_size))
        if page.any()
    ]
    order = torch.randperm(len(used) + 3, generator=torch.Generator().manual_seed(len(used)))
    table = torch.full((len(seen), max_pages), GARBAGE, dtype=torch.int32)
    caches = []
    for parts in (batch.keys, batch.values):
        heads, _, dim = parts[0].shape
        cache = parts[0].new_full((len(order), page_size, heads, dim), torch.nan)
        for (b, i), page in zip(used, order.tolist(), strict=False):
            table[b, i] = page
            here = slice(i * page_size, (i + 1) * page_size)
            where = seen[b][here].nonzero()[:, 0]
            cache[page, where] = parts[b][:, here][:, where].transpose(0, 1)
        caches.append(cache)
    return caches[0], caches[1], table.to(DEVICE)


def lengths(*numbers: int) -> Tensor:
    """int32 on the device."""
    return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)


def check_decoded(
    batch: Sequences, found: tuple[Tensor, Tensor], scale: float | None = None
) -> None:
    """Each sequence's output and log-sum-exp are right, within the numeric rule."""
    for b, visible in enumerate(batch.visible):
        out, lse = (x[b : b + 1] for x in found)
        blind = ~visible.any(1)
        assert (out[:, :, blind] == 0).all()
        assert (lse[:, :, blind] == -torch.inf).all()
        if blind.all():
            continue
        inputs = (batch.q[b : b + 1], batch.keys[b][None], batch.values[b][None], visible)
        nothing = Upstream(torch.zeros_like(out))
        exact, plain = (
            eager(*inputs, nothing, dtype=dtype, softmax_scale=scale)
            for dtype in (torch.float64, batch.q.dtype)
        )
        check_budget(Results(out, lse, out, out, out), plain, exact, ("out", "lse"))
