"""What tests ask of a GPU that a CPU cannot tell."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def waits_for_nothing() -> Iterator[None]:
    """Where the host waits for the device (a length read back, say), torch raises RuntimeError."""
    try:
        _set_mode("error")
        yield
    finally:
        _set_mode("default")


def _set_mode(mode: str) -> None:
    """torch warns once that it does not notice all waiting; here every warning is an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode", UserWarning)
        torch.cuda.set_sync_debug_mode(mode)
