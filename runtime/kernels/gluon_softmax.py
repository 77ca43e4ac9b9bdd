"""Masks and the online softmax on a wgmma accumulator, for the Hopper kernels.

A thread of a warpgroup owns two rows of a [64, columns] accumulator and, in each eight columns,
the two at 2 · (lane % 4): every function here works on what a thread has, without exchange, except
the maximum of a row, which four lanes share.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LAZY = gl.constexpr(8.0)  # how far a row's maximum may move before results are rescaled, in base 2


@gluon.constexpr_function
def _bounds_asm(intervals):
    """Keep $1 where $2 lies in one of the intervals [$3, $3 + $4), [$5, $5 + $6), ..."""
    asm = "{ .reg .pred p; .reg .b32 t; "
    for i in range(intervals):
        start, length = 3 + 2 * i, 4 + 2 * i
        joined = ("", "") if i == 0 else (".or", ", p")
        asm += f"sub.s32 t, $2, ${start}; setp.lt{joined[0]}.u32 p, t, ${length}{joined[1]}; "
    return asm + "selp.f32 $0, $1, 0fFF800000, p; }"


@gluon.constexpr_function
def _bounds_constraints(intervals):
    return "=f,f,r" + ",r,r" * intervals


@gluon.constexpr_function
def _rescale_asm(n):
    """Multiply $0 … by factors, unless every factor of the warp is one (a thread has two)."""
    first, second = 2 * n, 2 * n + 2
    asm = (
        "{ .reg .pred p; "
        f"setp.neu.f32 p, ${first}, 0f3F800000; setp.neu.or.f32 p, ${second}, 0f3F800000, p; "
        "vote.sync.any.pred p, p, 0xffffffff; @!p bra.uni SKIP; "
    )
    return asm + " ".join(f"mul.f32 ${i}, ${i}, ${2 * n + i};" for i in range(n)) + " SKIP: }"


@gluon.constexpr_function
def _rescale_constraints(n):
    return ",".join(["=f"] * n + [str(i) for i in range(n)] + ["f"] * n)


@gluon.jit
def _interval(BOUNDS, rows, num_rows, i: gl.constexpr):
    """(start, length) of the i-th interval of each row."""
    start = gl.load(BOUNDS + 2 * i * num_rows + rows)
    return start[:, None], (gl.load(BOUNDS + (2 * i + 1) * num_rows + rows) - start)[:, None]


@gluon.jit
def load_bounds(BOUNDS, rows, num_rows, INTERVALS: gl.constexpr):
    """The intervals of rows for `mask_by_bounds`; BOUNDS: int32[2 * INTERVALS, num_rows].

    Loaded well before scores are there, they come while those are made.
    """
    bounds = _interval(BOUNDS, rows, num_rows, 0)
    for i in gl.static_range(1, INTERVALS):
        bounds = bounds + _interval(BOUNDS, rows, num_rows, i)
    return bounds


@gluon.jit
def mask_by_bounds(scores, block, bounds, INTERVALS: gl.constexpr):
    """-inf outside of the row's intervals."""
    COLUMNS: gl.constexpr = scores.shape[1]
    keys = block * COLUMNS + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, scores.type.layout))
    keys = keys[None, :]
    if INTERVALS == 1:
        s0, n0 = bounds
        masked = _mask_by_one((scores, keys, s0, n0))
    elif INTERVALS == 2:
        s0, n0, s1, n1 = bounds
        masked = _mask_by_two((scores, keys, s0, n0), (s1, n1))
    else:
        s0, n0, s1, n1, s2, n2, s3, n3 = bounds
        masked = _mask_by_four((scores, keys, s0, n0), (s1, n1), (s2, n2, s3, n3))
    return masked


@gluon.jit
def mask_by_bounds_across(scores, keys, bounds, INTERVALS: gl.constexpr):
    """The same with keys down and queries across.

    bounds: int32[2 * INTERVALS, queries] in shared memory: start_0, stop_0, start_1, ...
    """
    LAYOUT: gl.constexpr = scores.type.layout
    s0 = bounds.slice(0, 1, dim=0).load(LAYOUT)
    n0 = bounds.slice(1, 1, dim=0).load(LAYOUT) - s0
    first = (scores, keys[:, None], s0, n0)
    if INTERVALS == 1:
        masked = _mask_by_one(first)
    else:
        s1 = bounds.slice(2, 1, dim=0).load(LAYOUT)
        n1 = bounds.slice(3, 1, dim=0).load(LAYOUT) - s1
        if INTERVALS == 2:
            masked = _mask_by_two(first, (s1, n1))
        else:
            s2 = bounds.slice(4, 1, dim=0).load(LAYOUT)
            n2 = bounds.slice(5, 1, dim=0).load(LAYOUT) - s2
            s3 = bounds.slice(6, 1, dim=0).load(LAYOUT)
            n3 = bounds.slice(7, 1, dim=0).load(LAYOUT) - s3
            masked = _mask_by_four(first, (s1, n1), (s2, n2, s3, n3))
    return masked


# One block of PTX an element: written as comparisons, ptxas packs them into bit masks and spills.


@gluon.jit
def _mask_by_one(first):
    ASM: gl.constexpr = _bounds_asm(1)
    CONSTRAINTS: gl.constexpr = _bounds_constraints(1)
    scores, keys, s0, n0 = first
    return gl.inline_asm_elementwise(
        ASM, CONSTRAINTS, [scores, keys, s0, n0], gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def _mask_by_two(first, second):
    ASM: gl.constexpr = _bounds_asm(2)
    CONSTRAINTS: gl.constexpr = _bounds_constraints(2)
    scores, keys, s0, n0 = first
    s1, n1 = second
    return gl.inline_asm_elementwise(
        ASM, CONSTRAINTS, [scores, keys, s0, n0, s1, n1], gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def _mask_by_four(first, second, others):
    ASM: gl.constexpr = _bounds_asm(4)
    CONSTRAINTS: gl.constexpr = _bounds_constraints(4)
    scores, keys, s0, n0 = first
    s1, n1 = second
    s2, n2, s3, n3 = others
    return gl.inline_asm_elementwise(
        ASM, CONSTRAINTS, [scores, keys, s0, n0, s1, n1, s2, n2, s3, n3],
        gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def load_words(words, index, COLUMNS: gl.constexpr):
    """A thread's words of a pattern, one for each of its rows ([64, 4] over the four lanes)."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    scores = gl.zeros([64, COLUMNS], gl.float32, layout=LAYOUT)
    BY_LANE: gl.constexpr = gl.reshape(scores, [64, COLUMNS // 8, 4, 2]).type.layout
    return words.index(index).load(gl.SliceLayout(1, gl.SliceLayout(3, BY_LANE)))


@gluon.jit
def mask_by_words(scores, words):
    """-inf where a bit is 0: column 8 i + 2 lane + j has bit 2 i + j of its lane's word."""
    ROWS: gl.constexpr = scores.shape[0]
    COLUMNS: gl.constexpr = scores.shape[1]
    LAYOUT: gl.constexpr = scores.type.layout
    x = gl.reshape(scores, [ROWS, COLUMNS // 8, 4, 2])
    BY_LANE: gl.constexpr = x.type.layout
    OCTETS: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, BY_LANE)))
    PARITY: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, BY_LANE)))
    i = gl.arange(0, COLUMNS // 8, layout=OCTETS)[None, :, None, None]
    j = gl.arange(0, 2, layout=PARITY)[None, None, None, :]
    y = gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; and.b32 t, $2, $3; setp.ne.b32 p, t, 0; "
        "selp.f32 $0, $1, 0fFF800000, p; }",
        "=f,f,r,r",
        [x, words[:, None, :, None], 1 << (2 * i + j)],
        gl.float32,
        is_pure=True,
        pack=1,
    )
    return gl.convert_layout(gl.reshape(y, [ROWS, COLUMNS]), LAYOUT, assert_trivial=True)


@gluon.jit
def row_sums(weights):
    """What a thread has of each row's sum ([rows, 4]): the four lanes meet once per item."""
    ROWS: gl.constexpr = weights.shape[0]
    COLUMNS: gl.constexpr = weights.shape[1]
    return gl.sum(gl.sum(gl.reshape(weights, [ROWS, COLUMNS // 8, 4, 2]), 3), 1)


@gluon.jit
def softmax_step(scores, row_max, row_sum, scale, FIRST: gl.constexpr, MASKED: gl.constexpr):
    """(weights, row_max, row_sum, rescale): one block into the running softmax, in base 2.

    A maximum moves only when it has grown by more than LAZY: weights may reach 2^8, which
    float32 sums and halves hold as precisely as 1, and most blocks need no rescaling at all.
    """
    new_max = gl.maximum(row_max, gl.max(scores, 1) * scale)
    if not FIRST:
        new_max = gl.where(new_max > row_max + LAZY, new_max, row_max)
    pivot = new_max
    if MASKED:  # a row that has seen nothing so far: -inf - -inf would be NaN
        pivot = gl.where(new_max == float("-inf"), 0.0, new_max)
    rescale = gl.exp2(row_max - pivot)
    weights = gl.exp2(scores * scale - pivot[:, None])
    sums = row_sums(weights)
    factor = gl.convert_layout(rescale, gl.SliceLayout(1, sums.type.layout), assert_trivial=True)
    return weights, new_max, row_sum * factor[:, None] + sums, rescale


@gluon.jit
def rescale_result(accumulator, factor):
    """The accumulator times factor[:, None]; skipped by a warp in which all factors are one.

    A thread has two rows: elements 0 and 2 of its accumulator lie in different ones.
    """
    COUNT: gl.constexpr = accumulator.shape[1] // 2
    ASM: gl.constexpr = _rescale_asm(COUNT)
    CONSTRAINTS: gl.constexpr = _rescale_constraints(COUNT)
    accumulator, factors = gl.broadcast(accumulator, factor[:, None])
    return gl.inline_asm_elementwise(
        ASM, CONSTRAINTS, [accumulator, factors], gl.float32, is_pure=False, pack=COUNT
    )


@gluon.jit
def pack_weights(weights, DTYPE: gl.constexpr):
    """Weights as pairs of halves in int32: a loop would carry single halves one a register."""
    ROWS: gl.constexpr = weights.shape[0]
    COLUMNS: gl.constexpr = weights.shape[1]
    NAME: gl.constexpr = "bf16x2" if DTYPE == gl.bfloat16 else "f16x2"
    even, odd = gl.split(gl.reshape(weights, [ROWS, COLUMNS // 2, 2]))
    return gl.inline_asm_elementwise(
        f"cvt.rn.{NAME}.f32 $0, $2, $1;",
        "=r,f,f",
        [even, odd],
        gl.int32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def unpack_weights(pairs, DTYPE: gl.constexpr, LAYOUT: gl.constexpr):
    """The inverse of `pack_weights`, as a matrix operand: no instruction is left of it."""
    ROWS: gl.constexpr = pairs.shape[0]
    COLUMNS: gl.constexpr = 2 * pairs.shape[1]
    even = pairs.to(gl.int16).to(DTYPE, bitcast=True)
    odd = (pairs >> 16).to(gl.int16).to(DTYPE, bitcast=True)
    return gl.convert_layout(gl.reshape(gl.join(even, odd), [ROWS, COLUMNS]), LAYOUT)
