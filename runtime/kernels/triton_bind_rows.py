"""Lengths -> the key intervals of every row, on the device.

bind_segments   one program: tokens before each region instance, and its place in `pos`
bind_rows       a row a thread: its region instance by binary search, then the clauses that it is
                a query of, each over the region instances of the row's scope

Within one region instance `pos` and `offset` go up by 1 a token or stay, and a level is constant:
each clause shows a row one interval of it, in closed form.  A row's intervals are united as they
come.  Tables and their columns: see `cmask.runtime.on_device.table`.
"""

import triton
import triton.language as tl

TOO_MANY_QUERIES = 1
TOO_MANY_KEYS = 2
NEGATIVE_LENGTH = 4
TOO_MANY_INTERVALS = 8
_EMPTY = tl.constexpr(2**31 - 1)  # the start of an interval that is none
_FAR = tl.constexpr(2**40)  # beyond every coordinate, as on the host
_LIMIT = tl.constexpr(16)  # numbers of a limit
_CLAUSE = tl.constexpr(8)  # numbers of a clause
_SLOTS = tl.constexpr(32)  # region instances that are looked at together


@triton.jit(do_not_specialize=["num_slots", "stride", "q_capacity", "kv_capacity", "num_blocks"])
def bind_segments(
    LENGTH,  # int64[stride]: tokens of each region instance
    CONSTANT,  # int64[stride]: where it stands in `pos`, but for the terms
    TERMS,  # int64[2 * NUM_TERMS, stride]: index in VALUES and coefficient of each term
    SIDES,  # int64[stride]: 1 queries, 2 keys, 3 both
    Q_START,  # int64[stride], written: queries before it
    VALUES,  # int64[3, stride], written: its length, min(1, length), and the keys before it
    POS,  # int64[stride], written: `pos` of its first token along the whole sequence
    TOTALS,  # int64[2], written: queries and keys
    ERRORS,  # int32[1]
    FURTHEST_OF_BLOCK,  # int32[num_blocks], set to 0
    num_slots,
    stride,
    q_capacity,
    kv_capacity,
    num_blocks,
    NUM_TERMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Where every region instance lies; columns beyond `num_slots` get the totals."""
    for first in range(0, num_blocks, BLOCK):
        block = first + tl.arange(0, BLOCK)
        tl.store(FURTHEST_OF_BLOCK + block, tl.zeros([BLOCK], tl.int32), mask=block < num_blocks)
    queries = tl.cast(0, tl.int64)
    keys = tl.cast(0, tl.int64)
    negative = 0
    for first in range(0, stride, BLOCK):
        slot = first + tl.arange(0, BLOCK)
        inside = slot < num_slots
        length = tl.load(LENGTH + slot, mask=inside, other=0)
        negative = tl.maximum(negative, tl.max((length < 0).to(tl.int32)))
        length = tl.minimum(tl.maximum(length, 0), 2**31 - 1)
        sides = tl.load(SIDES + slot, mask=inside, other=0)
        q = tl.where((sides & 1) != 0, length, 0)
        k = tl.where((sides & 2) != 0, length, 0)
        exists = slot < stride
        tl.store(Q_START + slot, queries + tl.cumsum(q, 0) - q, mask=exists)
        tl.store(VALUES + slot, length, mask=exists)
        tl.store(VALUES + stride + slot, tl.minimum(length, 1), mask=exists)
        tl.store(VALUES + 2 * stride + slot, keys + tl.cumsum(k, 0) - k, mask=exists)
        queries += tl.sum(q)
        keys += tl.sum(k)
    tl.store(TOTALS, queries)
    tl.store(TOTALS + 1, keys)
    error = negative * 4
    error += tl.where(queries > q_capacity, 1, 0) + tl.where(keys > kv_capacity, 2, 0)
    tl.atomic_or(ERRORS, error)
    tl.debug_barrier()  # what the program's other threads have stored is seen below
    for first in range(0, num_slots, BLOCK):
        slot = first + tl.arange(0, BLOCK)
        inside = slot < num_slots
        pos = tl.load(CONSTANT + slot, mask=inside, other=0)
        for term in tl.static_range(NUM_TERMS):
            index = tl.load(TERMS + 2 * term * stride + slot, mask=inside, other=0)
            factor = tl.load(TERMS + (2 * term + 1) * stride + slot, mask=inside, other=0)
            pos += factor * tl.load(VALUES + index, mask=inside, other=0)
        tl.store(POS + slot, pos, mask=inside)


@triton.jit
def _floor_divide(x, divisor):
    """Rounded down, also of negative numbers; divisor >= 1."""
    quotient = x // divisor
    return tl.where(x - quotient * divisor < 0, quotient - 1, quotient)


@triton.jit
def _end(END, rows, LEVELS, stride):
    """One end of a limit for each row: see `End` of the closed form."""
    slot, pos, offset = rows
    kind = tl.load(END)
    x = tl.where(kind == 0, pos, tl.where(kind == 1, offset, 0))
    if kind >= 2:
        x = tl.load(LEVELS + (kind - 2) * stride + slot)
    modulus = tl.load(END + 1)
    if modulus > 0:
        x -= _floor_divide(x, modulus) * modulus
    value = _floor_divide(x, tl.load(END + 2)) * tl.load(END + 3)
    return tl.where(kind < 0, 0, value) + tl.load(END + 4)


@triton.jit
def _unite(starts, stops, lost, start, stop, seen, KEPT: tl.constexpr):
    """Each row's intervals and one more, where `seen`; those that it touches become one with it.

    starts, stops: int32[ROWS, KEPT], disjoint and not adjacent, in no order.
    """
    index = tl.arange(0, KEPT)[None, :]
    touches = (starts <= stop[:, None]) & (start[:, None] <= stops) & seen[:, None]
    start = tl.minimum(start, tl.min(tl.where(touches, starts, _EMPTY), 1))
    stop = tl.maximum(stop, tl.max(tl.where(touches, stops, -1), 1))
    starts = tl.where(touches, _EMPTY, starts)
    stops = tl.where(touches, -1, stops)
    free = tl.min(tl.where(starts == _EMPTY, index, KEPT), 1)
    put = (index == free[:, None]) & seen[:, None]
    starts = tl.where(put, start[:, None], starts)
    stops = tl.where(put, stop[:, None], stops)
    return starts, stops, lost | (seen & (free == KEPT)).to(tl.int32)


@triton.jit
def _members(VALUES, REGIONS, regions, first_slot, stop_slot):
    """A bit for each of 32 region instances: of one of `regions`, and not empty; int64."""
    bit = tl.arange(0, _SLOTS)
    slot = first_slot + bit
    inside = slot < stop_slot
    length = tl.load(VALUES + slot, mask=inside, other=0)
    region = tl.load(REGIONS + slot, mask=inside, other=0)
    is_member = inside & (((regions >> region) & 1) != 0) & (length > 0)
    return tl.sum(is_member.to(tl.int64) << bit.to(tl.int64))


@triton.jit
def _log2(power):
    """Of a power of two below 2^32."""
    found = ((power & 0xFFFF0000) != 0).to(tl.int32) * 16
    found += ((power & 0xFF00FF00) != 0).to(tl.int32) * 8
    found += ((power & 0xF0F0F0F0) != 0).to(tl.int32) * 4
    found += ((power & 0xCCCCCCCC) != 0).to(tl.int32) * 2
    return found + ((power & 0xAAAAAAAA) != 0).to(tl.int32)


@triton.jit
def _slots_of_rows(Q_START, row, num_slots, search_steps, ROWS: tl.constexpr):
    """The last region instance that begins at or before each row: it holds the row."""
    low = tl.zeros([ROWS], tl.int32)
    high = tl.zeros([ROWS], tl.int32) + num_slots
    for _ in range(search_steps):
        middle = (low + high) // 2
        searches = low < high
        before = tl.load(Q_START + middle, mask=searches, other=0) <= row
        low = tl.where(searches & before, middle + 1, low)
        high = tl.where(searches & (before == 0), middle, high)
    return tl.maximum(low - 1, 0)


@triton.jit(
    do_not_specialize=[
        "num_slots", "stride", "num_clauses", "q_capacity", "kv_capacity", "num_rows",
        "search_steps",
    ]
)  # fmt: skip
def bind_rows(
    Q_START,  # int64[stride] of region instances, as `bind_segments` writes them
    VALUES,  # int64[3, stride]
    POS,  # int64[stride]
    STEPS,  # int64[stride]: 0 if all its tokens stand at one `pos`, else 1
    REGIONS,  # int64[stride]: the number of its region
    LEVELS,  # int64[levels, stride]: its running number
    FIRST,  # int64[scopes, stride]: the first region instance of the scope that it lies in
    STOP,  # int64[scopes, stride]: the one behind the last
    CLAUSES,  # int64[num_clauses, 8]
    LIMITS,  # int64[limits, 16]
    TOTALS,  # int64[2]
    BOUNDS,  # int32[2 * NUM_INTERVALS, num_rows], written
    ERRORS,  # int32[1]
    num_slots,
    stride,
    num_clauses,
    q_capacity,
    kv_capacity,
    num_rows,  # a multiple of ROWS
    search_steps,
    NUM_INTERVALS: tl.constexpr,
    KEPT: tl.constexpr,  # intervals of a row while clauses are united
    ROWS: tl.constexpr,
):
    """The intervals of ROWS rows, ascending; [0, 0) where a row has fewer."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < tl.minimum(tl.load(TOTALS), q_capacity)
    slot = _slots_of_rows(Q_START, row, num_slots, search_steps, ROWS)
    offset = row - tl.load(Q_START + slot)
    whole_pos = tl.load(POS + slot) + tl.load(STEPS + slot) * offset
    region = tl.load(REGIONS + slot)
    BEFORE = VALUES + 2 * stride
    starts = tl.full([ROWS, KEPT], _EMPTY, tl.int32)
    stops = tl.full([ROWS, KEPT], -1, tl.int32)
    lost = tl.zeros([ROWS], tl.int32)
    for c in range(num_clauses):
        clause = CLAUSES + c * _CLAUSE
        scope = tl.load(clause) * stride
        active = is_row & (((tl.load(clause + 1) >> region) & 1) != 0)
        key_regions = tl.load(clause + 2)
        first_limit, first_level = tl.load(clause + 3), tl.load(clause + 4)
        stop_limit = tl.load(clause + 5)
        first = tl.load(FIRST + scope + slot, mask=active, other=0)
        stop = tl.load(STOP + scope + slot, mask=active, other=0)
        base = tl.load(BEFORE + first)
        rows = (slot, whole_pos - base, offset)
        pos_low = tl.zeros([ROWS], tl.int64) - _FAR
        offset_low = pos_low
        pos_high = tl.zeros([ROWS], tl.int64) + _FAR
        offset_high = pos_high
        for i in range(first_limit, first_level):
            limit = LIMITS + i * _LIMIT
            kind = tl.load(limit)
            low = _end(limit + 1, rows, LEVELS, stride)
            high = _end(limit + 6, rows, LEVELS, stride)
            pos_low = tl.where(kind == 0, tl.maximum(pos_low, low), pos_low)
            pos_high = tl.where(kind == 0, tl.minimum(pos_high, high), pos_high)
            offset_low = tl.where(kind == 1, tl.maximum(offset_low, low), offset_low)
            offset_high = tl.where(kind == 1, tl.minimum(offset_high, high), offset_high)
        from_slot = tl.min(tl.where(active, first, num_slots)).to(tl.int32)
        to_slot = tl.max(stop).to(tl.int32)
        for first_slot in range(from_slot, to_slot, _SLOTS):
            members = _members(VALUES, REGIONS, key_regions, first_slot, to_slot)
            while members != 0:
                lowest = members & -members
                members ^= lowest
                key_slot = first_slot + _log2(lowest)
                # all loads together: one after another they would be most of the time
                length = tl.load(VALUES + key_slot)
                step = tl.load(STEPS + key_slot)
                at = tl.load(POS + key_slot) - base  # `pos` of its first key in the row's scope
                before = tl.load(BEFORE + key_slot)
                seen = active & (first <= key_slot) & (key_slot < stop)
                seen &= (step != 0) | ((pos_low <= at) & (at < pos_high))
                begin = tl.where(step != 0, pos_low - at, 0)
                end = tl.where(step != 0, pos_high - at, length)
                begin = tl.maximum(tl.maximum(begin, offset_low), 0)
                end = tl.minimum(tl.minimum(end, offset_high), length)
                for i in range(first_level, stop_limit):
                    limit = LIMITS + i * _LIMIT
                    level = tl.load(LEVELS + (tl.load(limit) - 2) * stride + key_slot)
                    seen &= _end(limit + 1, rows, LEVELS, stride) <= level
                    seen &= level < _end(limit + 6, rows, LEVELS, stride)
                seen &= begin < end
                begin = tl.minimum(before + begin, kv_capacity)
                end = tl.minimum(before + end, kv_capacity)
                seen &= begin < end
                starts, stops, lost = _unite(
                    starts, stops, lost, begin.to(tl.int32), end.to(tl.int32), seen, KEPT
                )
    count = tl.sum((starts != _EMPTY).to(tl.int32), 1)
    tl.atomic_or(ERRORS, tl.max(lost | (count > NUM_INTERVALS).to(tl.int32)) * 8)
    rank = tl.sum((starts[:, :, None] > starts[:, None, :]).to(tl.int32), 2)
    target = BOUNDS + row[:, None]
    keeps = (starts != _EMPTY) & (rank < NUM_INTERVALS)
    tl.store(target + 2 * rank * num_rows, starts, mask=keeps)
    tl.store(target + (2 * rank + 1) * num_rows, stops, mask=keeps)
    index = tl.arange(0, KEPT)[None, :]
    unused = (index >= count[:, None]) & (index < NUM_INTERVALS)
    nothing = tl.zeros([ROWS, KEPT], tl.int32)
    tl.store(target + 2 * index * num_rows, nothing, mask=unused)
    tl.store(target + (2 * index + 1) * num_rows, nothing, mask=unused)
