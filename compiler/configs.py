"""Kernel configurations of an artifact, chosen by budget and cost model, not measured per mask."""

from __future__ import annotations

from collections.abc import Sequence

from cmask.runtime.kernels.config import DIRECTIONS, choose_config
from cmask.runtime.schema import StoredConfig

# Shared memory that one program may have [bytes].  Source: CUDA C++ programming guide, table of
# compute capabilities.
SHARED_MEMORY = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10}
_HEAD_DIMS = (64, 96, 128, 192, 256)
_DTYPES = ("bfloat16", "float16", "float32")


def shipped_configs(targets: Sequence[str], shape: tuple[int, int]) -> tuple[StoredConfig, ...]:
    """One configuration per target, direction, dtype and head_dim; none is measured.

    shape: (block_m, block_n) that the Hopper forward should have where its budget allows.
    """
    return tuple(
        StoredConfig(**config.to_fields(target=target, dtype=dtype, head_dim=head_dim))
        for target in targets
        for direction in DIRECTIONS
        for dtype in _DTYPES
        for head_dim in _HEAD_DIMS
        for config in [
            choose_config(
                direction,
                dtype=dtype,
                head_dim=head_dim,
                v_head_dim=head_dim,
                shared_memory_limit=SHARED_MEMORY[target],
                architecture=int(target.removeprefix("sm_")),
                kernel="gluon" if target == "sm_90" and dtype != "float32" else "triton",
                shape=shape,
            )
        ]
    )
