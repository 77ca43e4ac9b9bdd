"""Tensors that a plan keeps, whatever torch is doing when they are first asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def lasting() -> Iterator[None]:
    """Tensors made here serve later calls of any kind.

    Without it a first call by a plan inside `torch.export`, which only pretends to compute, would
    leave tensors that hold nothing, and one inside `torch.inference_mode` tensors that no backward
    can use.
    """
    with _disable_current_modes(), torch.inference_mode(False):
        yield
