"""In which order programs take their work: (head, block) pairs.

Order alone decides between 494 and 646 TFLOP/s on causal at 32k (one H200): the heads in flight
must fit in L2 with their keys and values, and nothing long may start last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cmask.runtime.descriptor import Int32Array
from cmask.runtime.kernels.config import L2_MIB


def heads_in_flight(
    num_heads: int, heads_per_walk: int, bytes_per_walk: int, l2_mib: int = L2_MIB
) -> int:
    """How many heads to work on together: as many as fit in the budget, at least one walk.

    heads_per_walk: heads that read the same tensors (query heads that share a key head)
    bytes_per_walk: bytes of these tensors
    l2_mib: the budget [MiB]
    """
    walks = max(1, (l2_mib << 20) // max(1, bytes_per_walk))
    return max(1, min(num_heads, walks * heads_per_walk))


def work_items(
    costs: NDArray[np.float64], order: Int32Array, num_heads: int, group: int, processors: int
) -> Int32Array:
    """int32[num_heads * blocks, 2]: (head, block), `group` heads after the other.

    Within a group the most expensive block comes first, for each of its heads.  Blocks that take
    more than half of what a processor does for a whole group would leave a tail behind the last
    group: they go first, for all heads.

    costs: of each block [key blocks]; order: the blocks, most expensive first.
    """
    share = group * costs.sum() / max(1, processors)
    is_long = costs[order] > share / 2
    if group >= num_heads:
        return _of_groups(order, num_heads, group)
    return np.concatenate(
        [
            _of_groups(order[is_long], num_heads, group),
            _of_groups(order[~is_long], num_heads, group),
        ]
    )


def _of_groups(blocks: Int32Array, num_heads: int, group: int) -> Int32Array:
    """For each group of heads: the blocks, and for each of them the heads."""
    items = np.empty((num_heads * len(blocks), 2), np.int32)
    at = 0
    for first in range(0, num_heads, group):
        heads = np.arange(first, min(num_heads, first + group), dtype=np.int32)
        stop = at + len(blocks) * len(heads)
        items[at:stop, 0] = np.tile(heads, len(blocks))
        items[at:stop, 1] = np.repeat(blocks, len(heads))
        at = stop
    return items
