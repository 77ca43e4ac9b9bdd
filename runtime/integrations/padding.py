"""Which tokens of a padded batch, and of a cache, one call of a model attends by.

A model's tensors have **slots**, numbered from the first of the whole sequence; a cache may hold
only the last of them.  The tokens of one sequence of the batch are a run of slots: what lies
before it and behind it is padding.  A mask knows nothing of padding: it is bound to the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The slots that a call brings.

    Queries are slots [q_start, q_start + q_len), keys are slots [kv_start, kv_start + kv_len).
    Keys behind the last query's slot are not written yet: a static cache has room for them.
    """

    q_start: int
    q_len: int
    kv_start: int
    kv_len: int

    @property
    def q_stop(self) -> int:
        """One past the last slot that holds anything."""
        return self.q_start + self.q_len


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Sequences of the batch whose tokens are the same slots: one plan serves them.

    sequences   their numbers in the batch, ascending
    num_tokens  of the mask
    rows        [start, stop): the queries of the mask that this call asks for
    queries     [start, stop) of q's dimension of tokens; what lies outside is padding
    keys        [start, stop) of k's and v's
    """

    sequences: tuple[int, ...]
    num_tokens: int
    rows: tuple[int, int]
    queries: tuple[int, int]
    keys: tuple[int, int]


def parts_of(runs: Sequence[tuple[int, int]], extent: Extent, window: int | None) -> list[Part]:
    """The parts of a batch, those left out that have no query in this call.

    runs: the slots [start, stop) of each sequence's tokens.
    window: keys that each row of the mask sees, if it is a plain window; then the mask is the
    same wherever one starts to count, and keys that the cache has dropped need no place in it.

    Raises ValueError if the cache has dropped keys of another mask.
    """
    together: dict[tuple[int, int], list[int]] = {}
    for sequence, run in enumerate(runs):
        together.setdefault(run, []).append(sequence)
    parts = []
    for (start, stop), sequences in together.items():
        if start < extent.kv_start and window is None:
            raise ValueError(
                f"the cache holds keys from slot {extent.kv_start} on, but this layer's mask is no "
                f"sliding window: it needs them from slot {start} on"
            )
        first = max(start, extent.kv_start)
        queries = max(first, extent.q_start), min(stop, extent.q_stop)
        if queries[0] >= queries[1]:
            continue
        parts.append(
            Part(
                sequences=tuple(sequences),
                num_tokens=stop - first,
                rows=(queries[0] - first, queries[1] - first),
                queries=(queries[0] - extent.q_start, queries[1] - extent.q_start),
                keys=(first - extent.kv_start, stop - extent.kv_start),
            )
        )
    return parts


def token_runs(
    attention_mask: Tensor | None, *, batch: int, num_slots: int
) -> list[tuple[int, int]]:
    """The slots [start, stop) of each sequence's tokens; start == stop where there are none.

    attention_mask: bool or int[batch, slots], true where a slot holds a token; None: all do.  It
    may be longer than the `num_slots` that hold anything.  On a GPU it is read back once.

    Raises ValueError if it has another batch, too few slots, or a hole between tokens.
    """
    if attention_mask is None:
        return [(0, num_slots)] * batch
    shape = tuple(attention_mask.shape)
    if len(shape) != 2 or shape[0] != batch or shape[1] < num_slots:
        raise ValueError(
            f"attention_mask must be [{batch}, {num_slots} or more]: an entry for each slot, those "
            f"in the cache included; got {list(shape)}"
        )
    is_token = attention_mask[:, :num_slots].bool()
    slots = torch.arange(num_slots, device=is_token.device)
    first = torch.where(is_token, slots, num_slots).amin(1)
    last = torch.where(is_token, slots, -1).amax(1)
    runs = []
    ends = torch.stack([first, last + 1, is_token.sum(1)], 1).tolist()
    for sequence, (start, stop, count) in enumerate(ends):
        if count and stop - start != count:
            raise ValueError(
                f"attention_mask must have padding before or behind the tokens of a sequence, "
                f"sequence {sequence} has {stop - start - count} holes between them"
            )
        runs.append((start, stop) if count else (0, 0))
    return runs
