"""How the warps of a persistent Hopper kernel meet: named barriers, rings, the queue of work.

Hardware named barriers carry what consumers tell the producer ("this stage is empty") and each
other ("the tensor cores are yours"), through inline PTX: Gluon's `mbarrier.arrive` would meet all
warps of a warpgroup first.  A number that is an immediate under a predicate stays where it is
written; in a register, ptxas moves the arrival to the end of the loop.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from cmask.runtime.kernels.gluon_names import aggregate

# Hardware has 16 named barriers.  Triton takes 0 to 4 for itself, one per partition: kernels number
# theirs from 5 on.


@gluon.jit
def _named(OPERATION: gl.constexpr, barrier, THREADS: gl.constexpr):
    gl.inline_asm_elementwise(
        f"{OPERATION} $1, {THREADS}; mov.u32 $0, 0;",
        "=r,r",
        [gl.to_tensor(barrier)],
        gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def sync_named(barrier, THREADS: gl.constexpr):
    """Wait until THREADS threads have come to a named barrier, this warp's included."""
    _named("bar.sync", barrier, THREADS)


@gluon.jit
def arrive_named(barrier, THREADS: gl.constexpr):
    """Come to a named barrier without waiting."""
    _named("bar.arrive", barrier, THREADS)


@gluon.jit
def sync_warp():
    """What lanes of this warp have stored comes before what any of them does next.

    An arrival releases what its own lane has stored: those of `expect` and TMA are one lane's.
    """
    gl.inline_asm_elementwise(
        "bar.warp.sync 0xffffffff; mov.u32 $0, $1;",
        "=r,r",
        [gl.to_tensor(0)],
        gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def release_stage(FIRST: gl.constexpr, stage, STAGES: gl.constexpr, THREADS: gl.constexpr):
    """Come to barrier FIRST + stage, each number an immediate."""
    B0: gl.constexpr = FIRST + 0
    B1: gl.constexpr = FIRST + 1
    B2: gl.constexpr = FIRST + 2
    if STAGES == 2:
        gl.inline_asm_elementwise(
            f"{{ .reg .pred p; setp.eq.s32 p, $1, 0; @p bar.arrive {B0}, {THREADS}; "
            f"@!p bar.arrive {B1}, {THREADS}; mov.u32 $0, 0; }}",
            "=r,r",
            [stage],
            gl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        gl.inline_asm_elementwise(
            f"{{ .reg .pred p, q, r; setp.eq.s32 p, $1, 0; setp.eq.s32 q, $1, 1; "
            f"setp.eq.s32 r, $1, 2; @p bar.arrive {B0}, {THREADS}; @q bar.arrive {B1}, {THREADS}; "
            f"@r bar.arrive {B2}, {THREADS}; mov.u32 $0, 0; }}",
            "=r,r",
            [stage],
            gl.int32,
            is_pure=False,
            pack=1,
        )


@gluon.jit
def opaque(x: gl.constexpr):
    """A number that the compiler takes for unknown: what depends on it stays in its loop."""
    return gl.inline_asm_elementwise(
        "mov.u32 $0, $1;", "=r,r", [gl.to_tensor(x)], gl.int32, is_pure=False, pack=1
    )


@aggregate
class Ring:
    """A place in a ring of stages: the stage, and the parity of the round."""

    stage: gl.tensor
    phase: gl.tensor

    @gluon.constexpr_function
    def __init__(self, stage, phase):
        self.stage = stage
        self.phase = phase

    @gluon.jit
    def next(self, STAGES: gl.constexpr):
        """The place behind this one."""
        stage = self.stage + 1
        wraps = stage == STAGES
        return Ring(gl.where(wraps, 0, stage), gl.where(wraps, self.phase ^ 1, self.phase))


@gluon.jit
def take_ticket(TICKETS):
    """Draw the next number, in lane 0; only `broadcast` waits for it."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; mov.u32 t, %laneid; setp.eq.u32 p, t, 0; mov.b32 $0, 0; "
        "@p atom.global.add.u32 $0, [$1], 1; }",
        "=r,l",
        [TICKETS.to(gl.int64)],
        gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def broadcast(x):
    """Lane 0's value in every lane."""
    return gl.inline_asm_elementwise(
        "shfl.sync.idx.b32 $0, $1, 0, 0x1f, 0xffffffff;",
        "=r,r",
        [x],
        gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def leave_queue(TICKETS, num_programs):
    """Count this program as done; the last one sets both counters back for the next launch."""
    gl.inline_asm_elementwise(
        "{ .reg .pred p, q; .reg .b32 t, z; mov.u32 t, %laneid; setp.eq.u32 p, t, 0; "
        "mov.b32 z, 0; mov.b32 t, 0; @p atom.global.add.u32 t, [$1+4], 1; add.u32 t, t, 1; "
        "setp.eq.and.u32 q, t, $2, p; @q st.global.b32 [$1+4], z; @q st.global.b32 [$1], z; "
        "mov.b32 $0, 0; }",
        "=r,l,r",
        [TICKETS.to(gl.int64), num_programs],
        gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def publish(records, record_full, n, f0, f1, f2, f3, f4, f5, f6, f7):
    """Hand the n-th item's eight fields to the consumers; the ring holds two."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    i = gl.arange(0, 8, layout=LAYOUT)
    x = gl.where(i == 0, f0, f1)
    x = gl.where(i == 2, f2, x)
    x = gl.where(i == 3, f3, x)
    x = gl.where(i == 4, f4, x)
    x = gl.where(i == 5, f5, x)
    x = gl.where(i == 6, f6, x)
    x = gl.where(i == 7, f7, x)
    records.index(n & 1).store(x)
    mbarrier.arrive(record_full.index(n & 1), count=1)


@gluon.jit
def field(words, n, FIELD: gl.constexpr, WARPS: gl.constexpr = 4):
    """One field of the n-th item, as every thread of so many warps reads it."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    return gl.max(words.index((n & 1) * 8 + FIELD).load(LAYOUT), 0)
