"""The order of work items from the blocks of each owner, on the device: see `schedule.py`.

An owner's rank is how many cost more, or as much and come before it: a count for each pair of
owners, which are few (8,192 at a million tokens), and no sorting network.
"""

import triton
import triton.language as tl


@triton.jit
def _costs(COUNTS, owner, num_owners, PARTIAL_COST: tl.constexpr):
    """float64: of each owner in full blocks, -1 where there is none."""
    exists = owner < num_owners
    full = tl.load(COUNTS + owner, mask=exists, other=0)
    partial = tl.load(COUNTS + num_owners + owner, mask=exists, other=0)
    each = tl.full([1], PARTIAL_COST, tl.float64)
    cost = full.to(tl.float64) + each * partial.to(tl.float64)
    return tl.where(exists, cost, -1.0)


@triton.jit(do_not_specialize=["num_owners", "num_heads", "group", "processors"])
def order_items(
    COUNTS,  # int32[2, num_owners]: full and partial blocks
    ITEMS,  # int32[num_heads * num_owners, 2], written: (head, owner)
    num_owners,
    num_heads,
    group,  # heads that are worked on together
    processors,
    PARTIAL_COST: tl.constexpr,
    OWNERS: tl.constexpr,
    OTHERS: tl.constexpr,
    HEADS: tl.constexpr,
):
    """The items of OWNERS owners, each where it belongs in the order."""
    owner = tl.program_id(0) * OWNERS + tl.arange(0, OWNERS)
    cost = _costs(COUNTS, owner, num_owners, PARTIAL_COST)
    total = tl.sum(tl.zeros([1], tl.float64))
    for first in range(0, num_owners, OTHERS):
        other = first + tl.arange(0, OTHERS)
        total += tl.sum(tl.maximum(_costs(COUNTS, other, num_owners, PARTIAL_COST), 0.0))
    limit = total * group / tl.maximum(processors, 1) / 2
    rank = tl.zeros([OWNERS], tl.int32)
    num_long = 0  # owners that would leave a tail behind the last group
    for first in range(0, num_owners, OTHERS):
        other = first + tl.arange(0, OTHERS)
        costs = _costs(COUNTS, other, num_owners, PARTIAL_COST)
        num_long += tl.sum(((costs > limit) & (other < num_owners)).to(tl.int32))
        ahead = costs[None, :] > cost[:, None]
        ahead |= (costs[None, :] == cost[:, None]) & (other[None, :] < owner[:, None])
        rank += tl.sum((ahead & (other < num_owners)[None, :]).to(tl.int32), 1)
    num_long = tl.where(group >= num_heads, num_owners, num_long)
    is_long = rank < num_long
    # long owners come first, for all heads
    place = tl.where(is_long, rank, rank - num_long)
    size = tl.where(is_long, num_long, num_owners - num_long)
    base = tl.where(is_long, 0, num_heads * num_long)
    for first in range(0, num_heads, HEADS):
        head = first + tl.arange(0, HEADS)[None, :]
        first_head = head // group * group
        heads = tl.minimum(group, num_heads - first_head)
        at = base[:, None] + first_head * size[:, None] + place[:, None] * heads
        at += head - first_head
        inside = (owner < num_owners)[:, None] & (head < num_heads)
        tl.store(ITEMS + 2 * at, tl.broadcast_to(head, [OWNERS, HEADS]), mask=inside)
        tl.store(ITEMS + 2 * at + 1, tl.broadcast_to(owner[:, None], [OWNERS, HEADS]), mask=inside)
