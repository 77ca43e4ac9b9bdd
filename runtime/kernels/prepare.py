"""Kernel, configurations and launches of one kind of call, made once per plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from cmask.runtime.checks import listed
from cmask.runtime.derive.bound import BoundMask
from cmask.runtime.derive.boxes import GridRows
from cmask.runtime.kernels import HALVES, NAMES, choose_kernel
from cmask.runtime.kernels.budget import ITEMSIZE, SMALLEST_SHARED_MEMORY, Budget, lack_of_memory
from cmask.runtime.kernels.config import (
    DIRECTIONS,
    GLUON_BACKWARD_DQ,
    MAX_HEAD_DIM,
    Direction,
    KernelConfig,
    choose_config,
)
from cmask.runtime.kernels.config_checks import check_config
from cmask.runtime.kernels.decode_rows import DecodeKind, Decoding, decoding_of, why_not_rows
from cmask.runtime.kernels.device import DeviceDescriptor
from cmask.runtime.kernels.launch import Launch
from cmask.runtime.kernels.measured import Measured, kernel_of, measured_configs, of_kernel
from cmask.runtime.lasting import lasting
from cmask.runtime.schema import StoredConfig

# the reference walks query blocks of this shape, backward too
REFERENCE_CONFIG = KernelConfig(
    direction="forward", block_m=128, block_n=128, num_warps=1, num_stages=1, kernel="reference"
)
# queries that the decode kernel takes by itself, if there are four times as many keys
MAX_DECODED_ROWS = 64


class CallKind(NamedTuple):
    """What decides how a call by a plan runs."""

    batch: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: torch.dtype
    device: torch.device
    needs_grad: bool
    kernel: str | None
    configs: tuple[KernelConfig, ...] | None
    reorders: bool  # tensors are in the caller's order, which is not the plan's
    is_deterministic: bool  # gradients must be the same in every run


@dataclass(frozen=True, eq=False)
class Prepared:
    """Kernel and launches of one kind of call.

    tensors, integers  the launches as the operator takes them
    reorders           whether the caller's order must be permuted to the plan's first
    decoding           instead of launches, for kernel="decode"
    """

    kernel: str
    launches: tuple[Launch, ...]
    reorders: bool
    decoding: Decoding | None = None

    @cached_property
    def tensors(self) -> list[Tensor]:
        """Of all launches, one behind the other."""
        return [tensor for launch in self.launches for tensor in launch.tensors()]

    @cached_property
    def integers(self) -> list[int]:
        """The same of the integers."""
        return [integer for launch in self.launches for integer in launch.integers()]


class PreparesCalls(Protocol):
    """What is asked of a plan here."""

    @property
    def device(self) -> str | torch.device:
        """Where the plan's tensors are."""

    @property
    def forward_shape(self) -> tuple[int, int]:
        """(block_m, block_n) of the Hopper forward by the cost model."""

    @property
    def measured(self) -> tuple[StoredConfig, ...]:
        """What tuning measured for the mask, on whichever device."""

    @property
    def grid_rows(self) -> GridRows | None:
        """How kernels find slots in the caller's order; None where they cannot."""

    def device_descriptor(self, block_m: int, block_n: int) -> DeviceDescriptor:
        """The blocks of one shape on the plan's device."""

    def read_tokens(self, block_m: int, block_n: int) -> Tensor:
        """int32[kv_len] on the host: 1 where some query sees the key, by token."""

    def slot_tokens(self) -> Tensor:
        """int32[slots] on the host: the token of each slot of a grid and a line, -1 without."""


def prepare(plan: PreparesCalls, kind: CallKind) -> Prepared:
    """Choose kernel and configurations, and put the block lists on the device.

    Raises ValueError if no kernel serves the call, or not the one that it names.
    """
    with lasting():
        return _prepare(plan, kind)


def _prepare(plan: PreparesCalls, kind: CallKind) -> Prepared:
    check_device(plan.device, kind.device)
    decoding = _decoding(plan, kind)
    if decoding is not None:
        return Prepared("decode", (), reorders=False, decoding=decoding)
    measured = _measured(kind, plan.measured)
    kernel = _kernel(kind, measured)
    group = kind.num_q_heads // kind.num_kv_heads
    launches = []
    for config in _configs(kind, kernel, plan, measured):
        descriptor = plan.device_descriptor(config.block_m, config.block_n)
        by_key = config.direction == "dkdv"
        tokens = descriptor.host.q_len * group if by_key else descriptor.host.kv_len
        row_bytes = (kind.head_dim + kind.v_head_dim) * kind.dtype.itemsize
        launches.append(
            descriptor.launch(
                config,
                num_heads=kind.batch * (kind.num_kv_heads if by_key else kind.num_q_heads),
                heads_per_walk=1 if by_key else group,
                bytes_per_walk=tokens * row_bytes,
            )
        )
    if kind.reorders and _read_boxes(launches, plan.grid_rows):
        launches = [_in_callers_order(launch, plan) for launch in launches]
        return Prepared(kernel, tuple(launches), reorders=False)
    return Prepared(kernel, tuple(launches), reorders=kind.reorders)


def _decoding(plan: PreparesCalls, kind: CallKind) -> Decoding | None:
    """How the decode kernel takes the call; None where another kernel does.

    Raises ValueError if the call names it and it cannot.
    """
    is_named = kind.kernel == "decode"
    if not is_named and (kind.kernel is not None or kind.configs is not None):
        return None
    fault = _why_not_decoded(plan, kind, is_named)
    if fault and is_named:
        raise ValueError(f'kernel="decode" cannot serve the call: {fault}')
    if fault:
        return None
    largest = max(kind.head_dim, kind.v_head_dim)
    check_kernel("decode", _name(kind.dtype), largest, kind.device)
    bound: BoundMask = plan.bound  # type: ignore[attr-defined]
    decoded = DecodeKind(
        *(kind.batch, kind.num_q_heads, kind.num_kv_heads, bound.q_len),
        *(kind.head_dim, kind.v_head_dim, kind.dtype, kind.device),
        capacity=bound.kv_len,
        page_size=0,
        is_ragged=False,
    )
    return decoding_of(plan, decoded, "triton")  # type: ignore[arg-type]


def _why_not_decoded(plan: PreparesCalls, kind: CallKind, is_named: bool) -> str:
    """Why the decode kernel does not take a call, in words; empty if it does."""
    bound = getattr(plan, "bound", None)
    if not isinstance(bound, BoundMask):
        return "the plan has no rows on the host"
    if kind.needs_grad:
        return "it gives no gradients"
    if bound.is_permuted and not kind.reorders:
        return "its tensors are in the plan's order"
    if not is_named:
        if kind.device.type != "cuda" or _name(kind.dtype) not in ITEMSIZE:
            return "it runs on GPUs"
        if max(kind.head_dim, kind.v_head_dim) > MAX_HEAD_DIM:
            return "heads are too wide"
        if not 0 < bound.q_len <= min(MAX_DECODED_ROWS, bound.kv_len // 4):
            return "queries are many"
    return why_not_rows(bound)


def _read_boxes(launches: list[Launch], grid: GridRows | None) -> bool:
    """Whether all kernels of a call find slots in tensors in the caller's order."""
    if grid is None or launches[0].block_n > grid.volume:
        return False
    return all(launch.is_gluon for launch in launches)


def _in_callers_order(launch: Launch, plan: PreparesCalls) -> Launch:
    """The same launch on tensors in the caller's order."""
    read = plan.read_tokens(launch.block_m, launch.block_n)
    has_unread_keys = int(not bool(read.all()))
    return replace(
        launch,
        key_is_read=read.to(launch.items.device),
        has_unread_keys=has_unread_keys,
        first_key=0,
        stop_key=len(read),
        has_holes=has_unread_keys,
        tokens=plan.slot_tokens().to(launch.items.device),
        grid=plan.grid_rows,
    )


def _measured(kind: CallKind, stored: tuple[StoredConfig, ...]) -> Measured:
    """What was measured on such a device for such a call; nothing where the caller chooses."""
    if not stored or kind.configs is not None or kind.device.type != "cuda":
        return {}
    if _name(kind.dtype) not in ITEMSIZE:
        return {}
    return measured_configs(stored, _budget(kind))


def _kernel(kind: CallKind, measured: Measured) -> str:
    dtype, largest = _name(kind.dtype), max(kind.head_dim, kind.v_head_dim)
    device, kernel = kind.device, kind.kernel
    given = [config.kernel for config in kind.configs or () if config.direction == "forward"]
    if kernel is None and given:
        kernel = given[0]
    if kernel is None:
        kernel = kernel_of(measured, needs_grad=kind.needs_grad)
    if kernel is None:
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
        chosen = choose_kernel(device.type, capability, dtype, largest)
        if chosen is None:
            raise ValueError(
                f"no kernel serves {dtype} with head_dim {largest} on {device} (compute "
                f'capability {capability[0]}.{capability[1]}); kernel="reference" runs anywhere'
            )
        return chosen
    if kernel not in NAMES:
        raise ValueError(f"kernel must be one of {listed(NAMES)}, got {kernel!r}")
    if kernel != "reference":
        check_kernel(kernel, dtype, largest, device)
    return kernel


def check_kernel(kernel: str, dtype: str, head_dim: int, device: torch.device) -> None:
    """Refuse what the kernel that the caller names does not serve."""
    dtypes = HALVES if kernel == "gluon" else tuple(ITEMSIZE)
    if dtype not in dtypes:
        raise ValueError(f'q must be one of {listed(dtypes)} for kernel="{kernel}", got {dtype}')
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(
            f'head_dim must be at most {MAX_HEAD_DIM} for kernel="{kernel}", got {head_dim}'
        )
    is_cuda = device.type == "cuda"
    if kernel == "gluon" and not (is_cuda and torch.cuda.get_device_capability(device)[0] == 9):
        raise ValueError(f'q must be on a Hopper GPU (sm_90) for kernel="gluon", got {device}')
    if kernel in ("triton", "decode") and not is_cuda and not _is_interpreted():
        raise ValueError(f'q must be on a CUDA device for kernel="{kernel}", got {device}')


def _configs(
    kind: CallKind, kernel: str, plan: PreparesCalls, measured: Measured
) -> list[KernelConfig]:
    """One per direction; the forward's alone where no gradient will be asked for.

    The caller's, or what was measured for the mask, or the shipped choice.
    None for dQ where it comes with dK and dV: sums in no fixed order.
    """
    if kernel == "reference":
        return [REFERENCE_CONFIG]
    budget = _budget(kind)
    given = of_kernel(measured, kernel)
    given |= {config.direction: config for config in kind.configs or ()}
    for config in given.values():
        check_config(config, kernel, kind.head_dim, kind.v_head_dim)
        if config.kernel == "gluon" and (lack := lack_of_memory(config, budget)):
            raise ValueError(f'{config.direction} by "gluon" with these blocks {lack}')

    def chosen(direction: Direction) -> KernelConfig:
        return given.get(direction) or choose_config(
            direction,
            dtype=_name(kind.dtype),
            head_dim=kind.head_dim,
            v_head_dim=kind.v_head_dim,
            shared_memory_limit=budget.shared_memory_limit,
            architecture=budget.architecture,
            kernel=kernel,
            shape=plan.forward_shape if kernel == "gluon" else None,
        )

    configs = [chosen(direction) for direction in DIRECTIONS[: 2 if kind.needs_grad else 1]]
    if not kind.needs_grad:
        return configs
    by_hopper = configs[1].kernel == "gluon"
    if by_hopper and not kind.is_deterministic:
        return configs
    dq = given.get("dq") or (GLUON_BACKWARD_DQ if by_hopper else chosen("dq"))
    configs.append(dq)
    if dq.kernel == "gluon" and not by_hopper:
        raise ValueError(f'dq by "gluon" needs dkdv by "gluon", got "{configs[1].kernel}"')
    return configs


def _budget(kind: CallKind) -> Budget:
    limit, architecture = _resources(kind.device)
    return Budget(
        dtype=_name(kind.dtype),
        head_dim=kind.head_dim,
        v_head_dim=kind.v_head_dim,
        shared_memory_limit=limit,
        architecture=architecture,
    )


def _resources(device: torch.device) -> tuple[int, int]:
    """Shared memory that one program may have [bytes], and the architecture (90 for sm_90)."""
    if device.type != "cuda":
        return SMALLEST_SHARED_MEMORY, 80
    properties: Any = torch.cuda.get_device_properties(device)
    architecture = 10 * properties.major + properties.minor
    return properties.shared_memory_per_block_optin, architecture


def _is_interpreted() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)


def check_device(expected: str | torch.device, device: torch.device) -> None:
    """Refuse tensors that are not on a plan's device."""
    if _full(expected) != device:
        raise ValueError(f"q must be on the plan's device {expected}, got {device}")


def _full(device: str | torch.device) -> torch.device:
    """The device with its index."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
