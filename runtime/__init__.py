"""Serving's door: load an artifact, bind lengths, attend.

expressions.py   integer expressions of sizes
closed_form.py   a mask without sizes: layout and clauses
derive/          closed form + sizes -> row intervals, blocks, schedule, facts (numpy)
descriptor.py    the arrays that a kernel walks
schema.py        the artifact format and the rules for changing it
artifact.py      bytes -> checked artifact; ArtifactError
variants.py      rules for some heads: a mask as one for each set of heads
mask.py          load, Mask.bind
plan.py          Plan: a mask at fixed sizes on a device
by_head.py       what a call does where heads differ
attend.py        attention(q, k, v, plan): check, choose kernel and config, launch
decoding.py      decode(q, k_cache, v_cache, plan): caches that grow, paged, ragged
lasting.py       tensors that a plan keeps
kernels/         the kernels
on_device/       a plan allocated once, its lengths bound on the device
integrations/    cmask inside other libraries

Importing this package loads none of them: torch comes with the first use of `attention`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cmask.runtime.artifact import ArtifactError
    from cmask.runtime.attend import attention
    from cmask.runtime.decoding import decode
    from cmask.runtime.mask import Mask, Plan, load

__all__ = ["ArtifactError", "Mask", "Plan", "attention", "decode", "load"]

_HOMES = {
    "ArtifactError": "cmask.runtime.artifact",
    "Mask": "cmask.runtime.mask",
    "Plan": "cmask.runtime.mask",
    "attention": "cmask.runtime.attend",
    "decode": "cmask.runtime.decoding",
    "load": "cmask.runtime.mask",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
