"""What a person may ask of the compiler."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class CompileOptions(BaseModel):
    """Sizes to bind, and which block shapes and targets the artifact carries.

    seq       tokens, for masks whose sizes follow from the length; None: not given
    sizes     sizes, parameters and tables by name; they override the defaults
    symbolic  leave the sizes unbound: no facts and no descriptors
    block_shapes  (block_m, block_n) of the descriptors; None: those of the common kernels
    targets   GPU architectures whose kernel configurations are carried
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seq: int | None = Field(default=None, ge=0, lt=2**31)
    sizes: dict[str, Any] = Field(default_factory=dict)
    symbolic: bool = False
    block_shapes: tuple[tuple[int, int], ...] | None = None
    targets: tuple[str, ...] = ("sm_80", "sm_90", "sm_100")
