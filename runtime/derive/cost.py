"""What the Hopper forward costs on a mask, by block shape: the model that chooses shape and order.

The unit is the time in which one multiprocessor of an H200 does a full block of 128 × 128 at
head_dim 128 (1.45 µs rested).  The numbers are a least-squares fit to the times of twelve masks
(tests/runtime/test_cost.py), which it meets within 3% for a shape, and within 8% between shapes:
blocks of 64 lose another 6% when the card is hot, so they are charged half of that.
"""

from __future__ import annotations

from dataclasses import dataclass

from cmask.runtime.descriptor import Descriptor


@dataclass(frozen=True, slots=True)
class BlockCosts:
    """Of one block shape: a block of each kind, and what an item costs beside its blocks."""

    full: float
    pattern: float
    bounds: float
    item: float


# block_m, block_n: the shapes that the Hopper forward has for head dimensions up to 128
COSTS = {
    (128, 128): BlockCosts(full=1.0, pattern=1.09, bounds=1.25, item=1.4),
    (64, 64): BlockCosts(full=0.313, pattern=0.343, bounds=0.39, item=0.69),
}
USUAL_SHAPE = (128, 128)


def cost_of(descriptor: Descriptor) -> float:
    """The cost of all items of one head."""
    costs = COSTS[descriptor.block_m, descriptor.block_n]
    lists = descriptor.by_query
    full = int((lists.full_runs[:, 1] - lists.full_runs[:, 0]).sum())
    bounds = int((lists.bounds_runs[:, 1] - lists.bounds_runs[:, 0]).sum())
    return (
        costs.full * full
        + costs.bounds * bounds
        + costs.pattern * len(lists.pattern_blocks)
        + costs.item * descriptor.num_q_blocks
    )


def least_cost(usual: Descriptor, shape: tuple[int, int]) -> float:
    """A bound from below on the cost of another shape, from the usual one's descriptor.

    A full block is as many full blocks of the smaller shape; a partial one is at least one.
    """
    costs = COSTS[shape]
    pieces = usual.block_m * usual.block_n // (shape[0] * shape[1])
    lists = usual.by_query
    full = int((lists.full_runs[:, 1] - lists.full_runs[:, 0]).sum())
    partial = int((lists.bounds_runs[:, 1] - lists.bounds_runs[:, 0]).sum())
    partial += len(lists.pattern_blocks)
    items = usual.num_q_blocks * usual.block_m // shape[0]
    return costs.full * pieces * full + costs.pattern * partial + costs.item * items
