"""`gluon`, `gl` and their modules as the kernels import them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor as Array

from support.hopper import copies, products, ptx
from support.hopper.machine import machine
from support.hopper.shared import Shared, fence
from support.hopper.values import Int, Pointer, Tensor, sizes_of, value_of, values_of, whole


def _itself(x: Any) -> Any:
    return x


def _jit(function: Any = None, **_options: Any) -> Any:
    return _itself if function is None else function


def _layout(*_arguments: Any, **_options: Any) -> None:
    """Layouts are the compiler's affair."""


# ------------------------------------------------------------------------------ gl


def _arange(start: int, stop: int, layout: Any = None) -> Tensor:
    return Tensor(torch.arange(whole(start), whole(stop), dtype=torch.int32))


def _full(shape: Any, value: Any, dtype: torch.dtype, layout: Any = None) -> Tensor:
    return Tensor(torch.full(sizes_of(shape), values_of(value), dtype=dtype))


def _zeros(shape: Any, dtype: torch.dtype, layout: Any = None) -> Tensor:
    return _full(shape, 0, dtype)


def _where(condition: Any, a: Any, b: Any) -> Any:
    if not isinstance(condition, Tensor):
        chosen, other = (a, b) if condition else (b, a)
        if isinstance(other, Tensor) and not isinstance(chosen, Tensor):
            return Tensor(torch.full_like(other.data, values_of(chosen)))
        return Int(chosen) if isinstance(chosen, int) else chosen
    kinds = [x.dtype for x in (a, b) if isinstance(x, Tensor)]
    dtype = kinds[0] if kinds else torch.float32 if float in map(type, (a, b)) else torch.int32
    a, b = (torch.as_tensor(values_of(x), dtype=dtype) for x in (a, b))
    return Tensor(torch.where(condition.data, a, b))


def _load(pointer: Pointer) -> Any:
    return pointer.load()


def _store(pointer: Any, x: Any, mask: Any = True) -> None:
    if isinstance(pointer, Pointer):
        pointer.store(x, mask)
    elif bool(torch.as_tensor(values_of(mask)).any()):
        raise TypeError("a store to no tensor")


def _reduced(of: Any) -> Any:
    return lambda x, axis: value_of(of(x.data, axis))


def _of_values(of: Any) -> Any:
    return lambda *arguments: Tensor(of(*(torch.as_tensor(values_of(x)) for x in arguments)))


def _sum(x: Array, axis: int) -> Array:
    return x.sum(axis, dtype=x.dtype)


def _reshape(x: Tensor, shape: Any) -> Tensor:
    return Tensor(x.data.reshape(sizes_of(shape)))


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    return Tensor(x.data[..., 0]), Tensor(x.data[..., 1])


def _join(a: Tensor, b: Tensor) -> Tensor:
    return Tensor(torch.stack([a.data, b.data], dim=-1))


def _broadcast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.broadcast_tensors(a.data, b.data)
    return Tensor(both[0]), Tensor(both[1])


def _to_tensor(x: Any) -> Any:
    return Int(x) if isinstance(x, int) else x


def _registers_of(x: Array) -> Array:
    """[threads, registers] of an accumulator [64, columns], as wgmma lays it out.

    PTX ISA, wgmma, accumulator fragments: four warps of 16 rows, each thread two of them.
    """
    columns = x.shape[1]
    by_thread = x.reshape(4, 2, 8, columns // 8, 4, 2).permute(0, 2, 4, 3, 1, 5)
    return by_thread.reshape(128, columns // 2)


def _accumulator_of(x: Array) -> Array:
    """The inverse."""
    columns = 2 * x.shape[1]
    by_thread = x.reshape(4, 8, 4, columns // 8, 2, 2).permute(0, 4, 1, 3, 2, 5)
    return by_thread.reshape(64, columns)


def _assembly(
    asm: str, constraints: str, arguments: list[Any], dtype: torch.dtype, is_pure: bool, pack: int
) -> Any:
    """`pack` elements at a time: the registers of a thread, one argument after the other."""
    values = [values_of(x) for x in arguments]
    arrays = [
        x if isinstance(x, Array) else torch.tensor(x, dtype=_word(given))
        for x, given in zip(values, arguments, strict=True)
    ]
    if pack == 1:
        (result,) = ptx.run(asm, constraints, arrays)
        return value_of(result)
    threads = [_registers_of(x) for x in arrays]
    columns = [x[:, i::pack] for x in threads for i in range(pack)]
    results = torch.stack(ptx.run(asm, constraints, columns), dim=-1)
    return Tensor(_accumulator_of(results.reshape(128, -1)))


def _word(x: Any) -> torch.dtype:
    return torch.int64 if isinstance(x, Int) and x.bits == 64 else torch.int32


def _allocate(dtype: torch.dtype, shape: Any, layout: Any = None) -> Shared:
    return machine().current.program.memory.allocate(dtype, shape)  # type: ignore[no-any-return]


def _program_id(_axis: int) -> Int:
    return Int(machine().current.program.number)


def _warp_specialize(parts: Any, warps: Any, _registers: Any) -> None:
    """The first part goes on in this task; it ends when all have ended."""
    machine().current.program.specialize(parts, list(warps))


class _NvmmaSharedLayout:
    get_default_for = staticmethod(_layout)


GL = SimpleNamespace(
    constexpr=_itself, tensor=Tensor, shared_memory_descriptor=Shared,
    int16=torch.int16, int32=torch.int32, int64=torch.int64,
    float16=torch.float16, bfloat16=torch.bfloat16, float32=torch.float32,
    BlockedLayout=_layout, SliceLayout=_layout, DotOperandLayout=_layout,
    NVMMADistributedLayout=_layout, SwizzledSharedLayout=_layout,
    NVMMASharedLayout=_NvmmaSharedLayout,
    arange=_arange, full=_full, zeros=_zeros, where=_where, load=_load, store=_store,
    max=_reduced(torch.amax), sum=_reduced(_sum), maximum=_of_values(torch.maximum),
    exp2=_of_values(torch.exp2), log2=_of_values(torch.log2), reshape=_reshape,
    permute=lambda x, order: Tensor(x.data.permute(*order)), split=_split, join=_join,
    broadcast=_broadcast, convert_layout=lambda x, layout, assert_trivial=False: x,
    to_tensor=_to_tensor, inline_asm_elementwise=_assembly, static_range=range,
    allocate_shared_memory=_allocate, program_id=_program_id, warp_specialize=_warp_specialize,
)  # fmt: skip
GLUON = SimpleNamespace(jit=_jit, constexpr_function=_itself)

# ------------------------------------------------------------------------------ hopper


def _expect(barrier: Shared, size: int) -> None:
    barrier.barrier().arrive(expected_bytes=size)
    machine().maybe_switch()


def _arrive(barrier: Shared, count: int = 1) -> None:
    barrier.barrier().arrive(count)
    machine().maybe_switch()


def _wait(barrier: Shared, phase: Any, pred: Any = True) -> None:
    if pred:
        barrier.barrier().wait(whole(phase))


HOPPER = SimpleNamespace(
    fence_async_shared=fence,
    warpgroup_mma=products.warpgroup_mma,
    warpgroup_mma_wait=products.warpgroup_mma_wait,
    tma=SimpleNamespace(store_wait=copies.store_wait),
    mbarrier=SimpleNamespace(
        MBarrierLayout=_layout,
        init=lambda barrier, count: barrier.begin_barrier(count),
        expect=_expect,
        arrive=_arrive,
        wait=_wait,
    ),
)

# what gluon_names.py offers
NAMES = SimpleNamespace(
    aggregate=_itself,
    load_block=copies.load_block,
    store_block=copies.store_block,
    add_block=copies.add_block,
    reinterpret=lambda buffer, dtype, shape, _layout: buffer.reinterpret(dtype, shape),
)
