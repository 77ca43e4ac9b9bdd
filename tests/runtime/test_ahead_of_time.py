"""The kernels compile for GPUs that are not here, within their registers and shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "compile_ahead.py"
# A thread may keep some of its operands in local memory and be fast: dkdv in blocks of 64 × 64 is
# the fastest on an H200 with up to 372 bytes.  Where registers run out, spills are thousands.
MOST_SPILLED = 512  # [bytes] a thread


def compiled(which: str, target: int) -> list[dict[str, Any]]:
    """What a process without the interpreter compiled for a target."""
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(SCRIPT), which, str(target)]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("target", [80, 90, 100])
def test_the_common_kernels_compile_within_their_budget(target: int) -> None:
    found = compiled("few", target)
    assert len(found) == 7
    for kernel in found:
        assert kernel["shared"] <= kernel["budget"], kernel
        assert kernel["shared"] <= kernel["limit"], kernel
        assert kernel["spill_bytes"] <= MOST_SPILLED, kernel
        assert not kernel["serialized"], kernel


@pytest.mark.slow
@pytest.mark.parametrize("target", [80, 86, 90, 100, 120])
def test_every_kernel_compiles_and_fits_shared_memory(target: int) -> None:
    for kernel in compiled("all", target):
        assert kernel["shared"] <= kernel["limit"], kernel
