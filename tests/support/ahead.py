"""What ptxas makes of a kernel for a GPU that is not here: registers, spills, its warnings.

For processes of their own, in which triton is no interpreter.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend

SHARED_MEMORY = {80: 163, 86: 99, 90: 227, 100: 227, 120: 99}  # [KiB] CUDA programming guide, 20.2


def compile_measured(compile_kernel: Callable[[], Any], target: int) -> tuple[Any, dict[str, Any]]:
    """The kernel, its shared memory and registers, what it spills and what ptxas warns of."""
    kernel, log = _compile_logged(compile_kernel, target)
    stores, loads = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)[0]
    return kernel, {
        "target": target,
        "limit": SHARED_MEMORY[target] * 1024,
        "shared": kernel.metadata.shared,
        "registers": int(re.findall(r"Used (\d+) registers", log)[0]),
        "spill_bytes": int(stores) + int(loads),
        # ptxas: wgmma could not stay asynchronous
        "serialized": " ".join(re.findall(r"C75\d\d[^\n]*", log)),
    }


def report(result: dict[str, Any]) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def _compile_logged(compile_kernel: Callable[[], Any], target: int) -> tuple[Any, str]:
    """The kernel, and what ptxas said: the one that Triton ran, with the options that it gave."""
    log = io.StringIO()
    with knobs.nvidia.scope(), redirect_stdout(log):
        knobs.nvidia.dump_ptxas_log = True
        kernel = compile_kernel()
        if not log.getvalue():  # Triton had it in its cache: the last step once more
            backend = make_backend(GPUTarget("cuda", target, 32))
            backend.make_cubin(kernel.asm["ptx"], {}, kernel.metadata, target)
    return kernel, log.getvalue()
