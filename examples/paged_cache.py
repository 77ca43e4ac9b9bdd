"""Keys and values in pages that sequences of different lengths share, and attention to them."""

from __future__ import annotations

import torch
from torch import Tensor

from cmask.runtime import Plan, attention, decode
from transformer import HEAD_DIM, HEADS, LAYERS, Attend

NOBODYS = 0  # the page of sequences that are not there


class Cache:
    """Keys and values, float32[LAYERS, pages, page_size, HEADS, HEAD_DIM] each."""

    def __init__(self, pages: int, page_size: int, device: str) -> None:
        shape = (2, LAYERS, pages, page_size, HEADS, HEAD_DIM)
        self.keys, self.values = torch.zeros(shape, device=device)
        self.page_size, self.device = page_size, device
        self.free = [page for page in range(pages) if page != NOBODYS]

    def attend(self, positions: Tensor, table: Tensor, plan: Plan, lens: Tensor | None) -> Attend:
        """How a pass through the model attends: each layer writes its rows' keys, then reads.

        positions  int64[batch, rows] of the rows
        table      int32[batch, pages of each]
        lens       int32[batch] for `decode`; None for one sequence and a plan of its rows
        """
        at = (table.long().gather(1, positions // self.page_size), positions % self.page_size)
        layers = iter(zip(self.keys, self.values, strict=True))

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = next(layers)
            keys[at], values[at] = k.transpose(1, 2), v.transpose(1, 2)
            if lens is not None:
                return decode(q, keys, values, plan, kv_lens=lens, page_table=table)
            k, v = (x[table[0]].flatten(0, 1)[None, : plan.kv_len] for x in (keys, values))
            return attention(q, k.transpose(1, 2), v.transpose(1, 2), plan)

        return Attend(attend)
