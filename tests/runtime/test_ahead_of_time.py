"""The kernels compile for GPUs that are not here, within their registers and shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.sass import Loop, product_loops

TESTS = Path(__file__).parents[1]
# A thread may keep some of its operands in local memory and be fast: dkdv in blocks of 64 × 64 is
# the fastest on an H200 with up to 372 bytes.  Where registers run out, spills are thousands.
MOST_SPILLED = 512  # [bytes] a thread
MOST_EXPOSED = 4  # exponentials beside no product, of 66 in a thread: those of the two rescalings


OLDEST_TRITON = Path(sys.prefix) / "oldest-triton"  # .ci/setup puts it there


def compiled(script: str, *arguments: str, path: Path | None = None) -> list[dict[str, Any]]:
    """What a process without the interpreter compiled; path: of another Triton."""
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if path is not None:
        clean["PYTHONPATH"] = str(path)
    command = [sys.executable, "-m", f"support.{script}", *arguments]
    done = subprocess.run(
        command, cwd=TESTS, env=clean, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("target", [80, 90, 100])
def test_the_common_kernels_compile_within_their_budget(target: int) -> None:
    found = compiled("compile_ahead", "few", str(target))
    assert len(found) == 7
    for kernel in found:
        assert kernel["shared"] <= kernel["budget"], kernel
        assert kernel["shared"] <= kernel["limit"], kernel
        assert kernel["spill_bytes"] <= MOST_SPILLED, kernel
        assert not kernel["serialized"], kernel


@pytest.mark.slow
@pytest.mark.parametrize("target", [80, 86, 90, 100, 120])
def test_every_kernel_compiles_and_fits_shared_memory(target: int) -> None:
    for kernel in compiled("compile_ahead", "all", str(target)):
        assert kernel["shared"] <= kernel["limit"], kernel


def check_decode(found: list[dict[str, Any]], count: int, most_spilled: int = 0) -> None:
    """Next to nothing spills but for wide float32 and for rows between multiples of 16 bytes."""
    assert len(found) == count
    for kernel in found:
        assert kernel["shared"] <= kernel["budget"] <= kernel["limit"], json.dumps(kernel)
        if kernel["is_common"]:
            assert kernel["spill_bytes"] <= most_spilled, json.dumps(kernel)
        assert not kernel["serialized"], kernel


@pytest.mark.parametrize("target", ["80", "90"])
def test_the_common_decode_kernels_compile_without_spills(target: str) -> None:
    check_decode(compiled("compile_ahead_decode", "few", target), 6)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["80", "86", "90", "100", "120"])
def test_every_decode_kernel_compiles(target: str) -> None:
    check_decode(compiled("compile_ahead_decode", "all", target), 21, most_spilled=16)


def test_the_oldest_triton_compiles_the_decode_kernels() -> None:
    if not OLDEST_TRITON.exists():
        pytest.skip(f"no {OLDEST_TRITON}: .ci/setup test installs it")
    check_decode(compiled("compile_ahead_decode", "few", "90", path=OLDEST_TRITON), 6)


def check_hopper(kernel: dict[str, Any]) -> None:
    """Nothing in the loops of the Hopper kernel makes its tensor cores wait."""
    found = json.dumps(kernel)
    assert kernel["shared"] <= kernel["budget"] <= kernel["limit"], found
    assert not kernel["serialized"], found
    assert len(kernel["loops"]) == kernel["num_loops"], found
    for loop in kernel["loops"]:
        assert loop["spills"] == 0, found
        assert loop["exponentials"] >= kernel["scores"], found
        assert loop["exposed"] <= MOST_EXPOSED, found


def check_hopper_backward(kernel: dict[str, Any]) -> None:
    """Next to no spills in its loops, and all products stay asynchronous.

    Triton 3.6 leaves none; by 3.9 a masked loop keeps one register in local memory, on a grid two.
    """
    assert kernel["shared"] <= kernel["budget"] <= kernel["limit"], kernel
    assert not kernel["serialized"], kernel
    assert len(kernel["loops"]) == kernel["num_loops"], kernel
    assert all(loop["spills"] <= 4 for loop in kernel["loops"]), kernel


def check_all_hopper(found: list[dict[str, Any]]) -> None:
    for kernel in found:
        check = check_hopper_backward if "backward" in kernel["name"] else check_hopper
        check(kernel)


@pytest.mark.parametrize(
    ("which", "count"), [("few", 10), pytest.param("all", 34, marks=pytest.mark.slow)]
)
def test_nothing_makes_the_tensor_cores_of_hopper_wait(which: str, count: int) -> None:
    found = compiled("compile_ahead_gluon", which)
    assert len(found) == count
    check_all_hopper(found)


@pytest.mark.parametrize(
    ("which", "count"), [("few", 10), pytest.param("all", 34, marks=pytest.mark.slow)]
)
def test_nor_does_the_oldest_triton_that_is_supported(which: str, count: int) -> None:
    if not OLDEST_TRITON.exists():
        pytest.skip(f"no {OLDEST_TRITON}: .ci/setup test installs it")
    found = compiled("compile_ahead_gluon", which, path=OLDEST_TRITON)
    assert len(found) == count
    check_all_hopper(found)


# ------------------------------------------------------------------------------ the reader of SASS

BEGIN = """
        BSSY B0, `(.L_x_9)
    .L_x_1:                              // items
        MUFU.EX2 R0, R0
    .L_x_2:                              // blocks
        HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT, gsb0
        HGMMA.64x128x16.F32.BF16 R88, R180, gdesc[UR8].tnspB, R88, gsb0
"""
END = """
        @P0 BRA `(.L_x_2)
        STL [R1+0x8], R0
        @!P1 BRA `(.L_x_1)
        BSYNC B0
    .L_x_9:
        EXIT
    .L_x_8:                              // a wait spins behind the code
        SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR11], R17
        @!P0 BRA `(.L_x_8)
        BRA `(.L_x_3)
"""
SPIN = """
        SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR11], R17
        @!P0 BRA `(.L_x_8)
    .L_x_3:
"""
FIRST = "WARPGROUP.DEPBAR.LE gsb0, 0x1\n"
LAST = "WARPGROUP.DEPBAR.LE gsb0, 0x0\n"
EXPONENTIALS = "MUFU.EX2 R25, R25\n FADD R9, R9, R25\n @P2 MUFU.EX2 R26, R26\n MUFU.RCP R3, R3\n"


def loops(*pieces: str) -> list[Loop]:
    """Of a kernel with these pieces in its inner loop, printed as nvdisasm does."""
    lines = [line.strip() for line in "".join([BEGIN, *pieces, END]).splitlines() if line.strip()]
    printed = (
        line if line.startswith(".L") else f"        /*{16 * i:04x}*/    {line} ;"
        for i, line in enumerate(lines)
    )
    return product_loops("\n".join(printed))


def test_exponentials_between_the_waits_are_not_exposed() -> None:
    (loop,) = loops(FIRST, EXPONENTIALS, SPIN, LAST)
    spinning = 5  # three of them behind the code
    assert loop == Loop(instructions=9 + spinning, products=2, exponentials=2, exposed=0, spills=0)


@pytest.mark.parametrize(
    "pieces",
    [
        (FIRST, SPIN, LAST, EXPONENTIALS),
        (FIRST, LAST, EXPONENTIALS, SPIN),
        (LAST, EXPONENTIALS, SPIN, LAST),
        (EXPONENTIALS, SPIN, FIRST, LAST),
        (EXPONENTIALS, SPIN),
    ],
    ids=["below", "hoisted wait", "waits for all", "above", "no waits"],
)
def test_exponentials_elsewhere_are_exposed(pieces: tuple[str, ...]) -> None:
    (loop,) = loops(*pieces)
    assert loop.exposed == 2


def test_a_loop_may_begin_amid_its_exponentials() -> None:
    (loop,) = loops(EXPONENTIALS, SPIN, LAST, FIRST, EXPONENTIALS)
    assert (loop.exponentials, loop.exposed) == (4, 0)


def test_spills_count_in_the_inner_loop_alone() -> None:
    (loop,) = loops(FIRST, "LDL.LU R3, [R1+0x4]\n @P0 STL [R1], R3\n", SPIN, LAST)
    assert loop.spills == 2


def test_a_way_around_a_wait_is_found() -> None:
    jump = "@P3 BRA `(.L_x_4)\n"
    (loop,) = loops(FIRST, LAST, jump, FIRST, ".L_x_4:\n", EXPONENTIALS, SPIN)
    assert loop.exposed == 2
