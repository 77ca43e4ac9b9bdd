"""Lengths -> the key intervals of every row, on the device.

bind_segments   one program: tokens before each region instance, and its place in `pos`
bind_rows       a row a thread, a warp a program, so that nothing goes through shared memory: the
                row's region instance, then the clauses that it is a query of, each over those
                region instances of the rows' scopes that one of the program's rows may see

Within one region instance `pos` and `offset` go up by 1 a token or stay, and a level is constant:
each clause shows a row one interval of it, in closed form.  A row's intervals are united as they
come.  Tables and their columns: see `cmask.runtime.on_device.table`.
"""

import triton
import triton.language as tl

from cmask.runtime.kernels.triton_bind_keys import count_bits

TOO_MANY_QUERIES = 1
TOO_MANY_KEYS = 2
NEGATIVE_LENGTH = 4
TOO_MANY_INTERVALS = 8
_EMPTY = tl.constexpr(2**31 - 1)  # the start of an interval that is none
_FAR = tl.constexpr(2**40)  # beyond every coordinate, as on the host
_LIMIT = tl.constexpr(16)  # numbers of a limit
_CLAUSE = tl.constexpr(8)  # numbers of a clause


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
    # all loads together: one after another they would be most of the time
    kind, modulus, divisor = tl.load(END), tl.load(END + 1), tl.load(END + 2)
    scale, value = tl.load(END + 3), tl.zeros_like(pos) + tl.load(END + 4)
    if kind >= 0:
        x = tl.where(kind == 0, pos, offset)
        if kind >= 2:
            x = tl.load(LEVELS + (kind - 2) * stride + slot)
        if modulus > 0:
            x -= _floor_divide(x, modulus) * modulus
        if divisor > 1:  # rarely, and a division takes a hundred instructions
            x = _floor_divide(x, divisor)
        value += x * scale
    return value


@triton.jit
def _unite(starts, stops, lost, start, stop, seen, KEPT: tl.constexpr):
    """Each row's intervals and one more, where `seen`; those that it touches become one with it.

    starts, stops: KEPT of int32[ROWS], disjoint and not adjacent, in no order.
    """
    hull_start, hull_stop = start, stop
    touched = ()
    for i in tl.static_range(KEPT):
        touches = seen & (starts[i] <= stop) & (start <= stops[i])
        hull_start = tl.where(touches, tl.minimum(hull_start, starts[i]), hull_start)
        hull_stop = tl.where(touches, tl.maximum(hull_stop, stops[i]), hull_stop)
        touched = touched + (touches,)
    waits = seen  # for a free place
    new_starts = ()
    new_stops = ()
    for i in tl.static_range(KEPT):
        is_free = touched[i] | (starts[i] == _EMPTY)
        put = waits & is_free
        kept_start = tl.where(touched[i], _EMPTY, starts[i])
        kept_stop = tl.where(touched[i], -1, stops[i])
        new_starts = new_starts + (tl.where(put, hull_start, kept_start),)
        new_stops = new_stops + (tl.where(put, hull_stop, kept_stop),)
        waits = waits & (put == 0)
    return new_starts, new_stops, lost | waits.to(tl.int32)


@triton.jit
def _take_first(starts, stops, KEPT: tl.constexpr):
    """The first interval of each row, [0, 0) where there is none, and the others."""
    first = starts[0]
    for i in tl.static_range(1, KEPT):
        first = tl.minimum(first, starts[i])
    stop = tl.zeros_like(first)
    others = ()
    for i in tl.static_range(KEPT):
        is_first = starts[i] == first
        stop = tl.where(is_first, stops[i], stop)
        others = others + (tl.where(is_first, _EMPTY, starts[i]),)
    exists = first != _EMPTY
    return tl.where(exists, first, 0), tl.where(exists, stop, 0), others


@triton.jit
def _slots_of_rows(Q_START, row, first_row, num_slots, ROWS: tl.constexpr, SAMPLES: tl.constexpr):
    """The last region instance that begins at or before each row: it holds the row.

    Samples of all instances, loaded at once, tell between which the rows lie; of few instances
    they are all, and leave nothing to search but those that begin within the rows.
    """
    step = (num_slots + SAMPLES - 1) // SAMPLES
    at = tl.arange(0, SAMPLES) * step
    starts = tl.load(Q_START + at, mask=at < num_slots, other=0)
    before = tl.sum(((starts <= first_row) & (at < num_slots)).to(tl.int32))
    until = tl.sum(((starts < first_row + ROWS) & (at < num_slots)).to(tl.int32))
    begin = tl.maximum((before - 1) * step + 1, 0)
    end = tl.minimum(until * step, num_slots)
    low = tl.zeros([ROWS], tl.int32) + begin
    high = tl.zeros([ROWS], tl.int32) + end
    between = end - begin
    while between > 0:
        middle = (low + high) // 2
        searches = low < high
        goes_on = tl.load(Q_START + middle, mask=searches, other=0) <= row
        low = tl.where(searches & goes_on, middle + 1, low)
        high = tl.where(searches & (goes_on == 0), middle, high)
        between = between // 2
    return tl.maximum(low - 1, 0)


@triton.jit
def _candidates(
    VALUES, POS, REGIONS, LEVELS, LIMITS, stride, clause, rows, active, first_slot, reach
):
    """Which of 32 region instances some row may see, a bit for each: the others are passed over."""
    key_regions, first_level, stop_limit, to_slot = clause
    lowest, highest = reach  # of `pos`
    lane = tl.arange(0, 32)
    slot = first_slot + lane
    exists = slot < to_slot
    length = tl.load(VALUES + slot, mask=exists, other=0)
    region = tl.load(REGIONS + slot, mask=exists, other=0)
    pos = tl.load(POS + slot, mask=exists, other=0)
    seen = (length > 0) & (((key_regions >> region) & 1) != 0)
    seen &= (lowest < pos + length) & (pos < highest)
    for i in range(first_level, stop_limit):
        limit = LIMITS + i * _LIMIT
        level = tl.load(LEVELS + (tl.load(limit) - 2) * stride + slot, mask=exists, other=0)
        low = _end(limit + 1, rows, LEVELS, stride)
        high = _end(limit + 6, rows, LEVELS, stride)
        seen &= tl.min(tl.where(active, low, 2 * _FAR)) <= level
        seen &= level < tl.max(tl.where(active, high, -2 * _FAR))
    return tl.sum(seen.to(tl.uint32) << lane.to(tl.uint32)).to(tl.uint32)


@triton.jit(
    do_not_specialize=[
        "num_slots", "stride", "num_clauses", "q_capacity", "kv_capacity", "num_rows",
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
    NUM_INTERVALS: tl.constexpr,
    KEPT: tl.constexpr,  # intervals of a row while clauses are united
    ROWS: tl.constexpr,
):
    """The intervals of ROWS rows, ascending; [0, 0) where a row has fewer."""
    first_row = tl.program_id(0) * ROWS
    row = first_row + tl.arange(0, ROWS)
    is_row = row < tl.minimum(tl.load(TOTALS), q_capacity)
    slot = _slots_of_rows(Q_START, row, first_row, num_slots, ROWS, 128)
    offset = row - tl.load(Q_START + slot)
    whole_pos = tl.load(POS + slot) + tl.load(STEPS + slot) * offset
    region = tl.load(REGIONS + slot)
    BEFORE = VALUES + 2 * stride
    starts = ()
    stops = ()
    for _ in tl.static_range(KEPT):
        starts = starts + (tl.full([ROWS], _EMPTY, tl.int32),)
        stops = stops + (tl.full([ROWS], -1, tl.int32),)
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
        lowest = tl.min(tl.where(active, pos_low + base, 2 * _FAR))
        highest = tl.max(tl.where(active, pos_high + base, -2 * _FAR))
        for first_slot in range(from_slot, to_slot, 32):
            bits = _candidates(
                VALUES, POS, REGIONS, LEVELS, LIMITS, stride,
                (key_regions, first_level, stop_limit, to_slot), rows, active, first_slot,
                (lowest, highest),
            )  # fmt: skip
            while bits != 0:
                below = bits - 1
                key_slot = first_slot + count_bits(below & ~bits)
                bits &= below
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
    count = tl.zeros([ROWS], tl.int32)
    for i in tl.static_range(KEPT):
        count += (starts[i] != _EMPTY).to(tl.int32)
    error = tl.max(lost | (count > NUM_INTERVALS).to(tl.int32)) * 8
    if error != 0:  # thousands of programs at one address would wait for each other
        tl.atomic_or(ERRORS, error)
    for i in tl.static_range(NUM_INTERVALS):
        start, end, starts = _take_first(starts, stops, KEPT)
        tl.store(BOUNDS + 2 * i * num_rows + row, start)
        tl.store(BOUNDS + (2 * i + 1) * num_rows + row, end)
