"""wgmma: products of shared memory and registers, in order, done when they are waited for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor as Array

from support.hopper.machine import GpuError, machine
from support.hopper.shared import Shared
from support.hopper.values import Tensor


class _Product:
    """One that is under way: it may read its operands at any time."""

    def __init__(self, operands: list[Shared]) -> None:
        self.is_done = False
        self._operands = operands
        self._before = [operand.data.clone() for operand in operands]

    def finish(self) -> None:
        for operand, before in zip(self._operands, self._before, strict=True):
            now, then = (x.contiguous().view(torch.int16) for x in (operand.data, before))
            if not torch.equal(now, then):
                raise GpuError("an operand is overwritten while a product reads it")
        self.is_done = True


def warpgroup_mma(
    a: Tensor | Shared, b: Shared, acc: Tensor, *, use_acc: Any = True, is_async: bool = False
) -> Tensor:
    """acc + a · b in float32."""
    operands = [x for x in (a, b) if isinstance(x, Shared)]
    for operand in operands:
        operand.check_arrived("multiplied")
        operand.check_fenced("a product")
    product = _Product(operands)
    values = _floats(a) @ _floats(b)
    if tuple(values.shape) != tuple(acc.shape):
        raise GpuError(f"a product of {list(values.shape)} added to {acc.shape}")
    if use_acc:
        values += acc.in_flight
    machine().current.products.append(product)
    result = Tensor(values, product)
    if not is_async:
        warpgroup_mma_wait(0)
    machine().maybe_switch()
    return result


def _floats(x: Tensor | Shared) -> Array:
    if x.data.dtype not in (torch.bfloat16, torch.float16):
        raise GpuError(f"a product of {x.data.dtype}")
    return x.data.float()


def warpgroup_mma_wait(pendings: int, deps: tuple[Any, ...] = ()) -> Any:
    """All but the last so many products are done."""
    machine().maybe_switch()
    products = machine().current.products
    while len(products) > pendings:
        products.pop(0).finish()
    return deps[0] if len(deps) == 1 else deps
