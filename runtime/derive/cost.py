"""What the Hopper forward costs on a mask, by block shape: the model that chooses shape and order.

The unit is the time in which one multiprocessor of an H200 does a full block of 128 × 128 at
head_dim 128 (1.45 µs rested).  The numbers are a least-squares fit to the times of twelve masks
(tests/runtime/test_cost.py), which it meets within 3% for a shape, and within 8% between shapes:
blocks of 64 lose another 6% when the card is hot, so they are charged half of that.
"""

from __future__ import annotations

from dataclasses import dataclass

from cmask.runtime.derive.bound import BoundMask
from cmask.runtime.descriptor import BlockLists, Descriptor


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
_WORTH_IT = 0.97  # of the usual shape's cost; the model is not better than that


def cheapest(bound: BoundMask) -> tuple[tuple[int, int], float]:
    """((block_m, block_n), cost) of the Hopper forward for head dimensions up to 128.

    Another than the usual shape is described only where it could be cheaper.
    """
    usual = bound.descriptor(*USUAL_SHAPE)
    best, least = USUAL_SHAPE, cost_of(usual)
    limit = least * _WORTH_IT
    for shape in COSTS:
        if shape != USUAL_SHAPE and _least_cost(usual, shape) < limit:
            cost = cost_of(bound.descriptor(*shape))
            if cost < limit:
                best, least, limit = shape, cost, cost
    return best, least


def cost_of(descriptor: Descriptor) -> float:
    """The cost of all items of one head."""
    costs = COSTS[descriptor.block_m, descriptor.block_n]
    full, bounds, pattern = _blocks_of(descriptor.by_query)
    return (
        costs.full * full
        + costs.bounds * bounds
        + costs.pattern * pattern
        + costs.item * descriptor.num_q_blocks
    )


def _least_cost(usual: Descriptor, shape: tuple[int, int]) -> float:
    """A bound from below on the cost of another shape, from the usual one's descriptor.

    A full block is as many full blocks of the smaller shape; a partial one is at least one.
    """
    costs = COSTS[shape]
    pieces = usual.block_m * usual.block_n // (shape[0] * shape[1])
    full, bounds, pattern = _blocks_of(usual.by_query)
    items = usual.num_q_blocks * usual.block_m // shape[0]
    return costs.full * pieces * full + costs.pattern * (bounds + pattern) + costs.item * items


def _blocks_of(lists: BlockLists) -> tuple[int, int, int]:
    """How many blocks are full, masked by bounds, masked by a pattern."""
    full, bounds = (
        int((runs[:, 1] - runs[:, 0]).sum()) for runs in (lists.full_runs, lists.bounds_runs)
    )
    return full, bounds, len(lists.pattern_blocks)
