"""The machine: versions, and what a GPU that is limited by power is at right now."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata


def describe() -> dict[str, str]:
    """Device, driver and versions; every figure depends on all of them."""
    import torch

    has_gpu = torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name() if has_gpu else "none",
        "driver": (_nvidia_smi("driver_version") if has_gpu else "") or "unknown",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "triton": _version("triton"),
        "flash-attn-4": _version("flash-attn-4"),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "python": sys.version.split()[0],
        "cmask": _version("cmask"),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def state_of_gpu() -> str:
    """SM clock, power and temperature [°C] now."""
    query = "clocks.sm,power.draw,temperature.gpu"
    return _nvidia_smi(query) or "nvidia-smi gave nothing"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def _nvidia_smi(query: str) -> str:
    """Of the current device, whatever CUDA_VISIBLE_DEVICES makes its number."""
    import torch

    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return _first_line([*command, f"--id=GPU-{uuid}"]) or _first_line(command)


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout.strip().splitlines() or [""])[0]
