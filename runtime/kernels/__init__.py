"""The kernels by name, and which one runs where.

config.py            block shapes and launch parameters, chosen by a computed budget
budget.py            what a device gives one program
measured.py          what tuning found, as an artifact has it
prepare.py           kernel, configurations and launches of one kind of call
launch.py            what one launch takes of a descriptor
device.py            a descriptor's arrays on a device, and the launches made of them
schedule.py          the order in which programs take their work
parts.py             key blocks with much work, cut into parts
operator.py          the custom operator: fake, autograd, dispatch to a kernel
tensors.py           aligned tensors, and tensor descriptors for Triton
reference.py         plain PyTorch: any device
decode_operator.py   the custom operator of decoding
decode_rows.py       what it takes of a plan
decode_config.py     block shapes, and into how many shares keys are cut
decode_launch.py     host side of triton_decode
decode_reference.py  the same in plain PyTorch

triton_masking.py    device functions: what a partial block lets through
triton_blocks.py     device functions: blocks in and out of memory
triton_forward.py    Triton: any GPU it compiles for, and its interpreter
triton_backward.py
triton_decode.py     few queries over a long cache, contiguous or paged
triton_sums.py       gradients from what the Hopper backward has added up
triton_bind_rows.py  Triton: lengths -> row bounds, on the device
triton_bind_blocks.py   row bounds -> runs of key blocks of each query block
triton_bind_keys.py     these -> runs of query blocks of each key block; keys that are read
triton_bind_order.py    blocks -> the order of work

gluon_names.py       Gluon's names, whatever the version of Triton
gluon_sync.py        device functions: barriers, rings, the queue of work
gluon_lists.py       device functions: what an owner's lists hold
gluon_softmax.py     device functions: masks and softmax on a wgmma accumulator
gluon_forward_sm90.py   Hopper at full speed
gluon_backward_sm90.py  the same, head_dim 64 and 128
gluon_backward_dq_sm90.py   dQ by itself, where it is to be deterministic
gluon_forward_launch.py, gluon_backward_launch.py   their host side
gluon_descriptors.py tensors behind descriptors for them
tickets.py           the counters from which their programs draw work
cuda_launch.py       launching a compiled kernel again with other addresses
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from cmask.runtime.kernels.config import MAX_HEAD_DIM

_HOMES = {
    "reference": ("reference", "reference"),
    "triton": ("triton_forward", "triton_backward"),
    "gluon": ("gluon_forward_launch", "gluon_backward_launch"),
}
NAMES = (*_HOMES, "decode")  # decode: forward alone, see decode_operator.py
HALVES = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class _Serves:
    """What a kernel takes: device types, compute capabilities, dtypes, head dimensions.

    capabilities: the least one, and the first that it does not run on.
    """

    devices: tuple[str, ...]
    capabilities: tuple[tuple[int, int], tuple[int, int]]
    dtypes: tuple[str, ...]
    max_head_dim: int | None


# the first kernel that serves a call runs it
_ANY = (99, 0)
_TABLE = {
    "gluon": _Serves(("cuda",), ((9, 0), (9, 1)), HALVES, MAX_HEAD_DIM),
    "triton": _Serves(("cuda",), ((8, 0), _ANY), (*HALVES, "float32"), MAX_HEAD_DIM),
    "reference": _Serves(("cpu",), ((0, 0), _ANY), (*HALVES, "float32", "float64"), None),
}


def choose_kernel(
    device_type: str, capability: tuple[int, int], dtype: str, head_dim: int
) -> str | None:
    """The kernel that runs where the caller names none; None if none serves the call.

    head_dim: the larger one of q's and v's.
    """
    for name, serves in _TABLE.items():
        if (
            device_type in serves.devices
            and serves.capabilities[0] <= capability < serves.capabilities[1]
            and dtype in serves.dtypes
            and (serves.max_head_dim is None or head_dim <= serves.max_head_dim)
        ):
            return name
    return None


def forward_of(name: str) -> Callable[..., Any]:
    """The forward of a kernel, imported when first asked for."""
    forward: Callable[..., Any] = _module(_HOMES[name][0]).forward
    return forward


def backward_of(name: str) -> Callable[..., Any]:
    """The backward of a kernel, imported when first asked for."""
    backward: Callable[..., Any] = _module(_HOMES[name][1]).backward
    return backward


def _module(name: str) -> Any:
    return import_module(f"cmask.runtime.kernels.{name}")
