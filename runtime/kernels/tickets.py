"""The counters from which programs of a persistent kernel draw their work."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


class Tickets:
    """Counters of the queue of work: a pair for each stream, which orders its launches.

    A captured launch gets a pair of its own, since graphs may be replayed side by side.  Kernels
    leave zeros behind.
    """

    _PAIRS = 256
    _WORDS = 4  # a pair and its padding to 16 bytes

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._by_stream: dict[int, Tensor] = {}
        self._pool: list[Tensor] = []

    def take(self, stream: int) -> Tensor:
        """int32[4] of zeros, a pair and padding, for a launch on the current stream."""
        if torch.cuda.is_current_stream_capturing():
            # zeros made now would be zeros only when the graph runs: then for this launch alone
            return self._pool.pop() if self._pool else self._zeros(1)[0]
        pair = self._by_stream.get(stream)
        if pair is None:
            if not self._pool:
                self._pool = list(self._zeros(self._PAIRS).unbind(0))
            pair = self._by_stream[stream] = self._pool.pop()
        return pair

    def _zeros(self, pairs: int) -> Tensor:
        return torch.zeros(pairs, self._WORDS, dtype=torch.int32, device=self._device)


@cache
def tickets_of(device: torch.device) -> Tickets:
    """The tickets of a device."""
    return Tickets(device)


def current_tickets(device: torch.device) -> Tensor:
    """Tickets for one launch on the current stream of a device."""
    return tickets_of(device).take(torch._C._cuda_getCurrentRawStream(device.index))
