"""Kernel configurations that ship with cmask: untuned, chosen by budget."""

from __future__ import annotations

from collections.abc import Sequence

from cmask.runtime.schema import StoredConfig


def shipped_configs(targets: Sequence[str]) -> tuple[StoredConfig, ...]:
    """One configuration per target, direction, dtype and head_dim."""
    return ()
