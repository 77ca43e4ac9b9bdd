"""What a kernel computes with: integers of 32 and 64 bits, pointers, tensors in registers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor as Array

from support.hopper.machine import GpuError

_INTEGERS = (torch.int16, torch.int32, torch.int64)


def whole(x: Any) -> int:
    """The number itself."""
    return operator.index(x)


def _toward_zero(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": _toward_zero,
    "mod": lambda a, b: a - b * _toward_zero(a, b),
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


class Int:
    """An integer that all threads of a partition have in common; more than its bits is an error."""

    __slots__ = ("bits", "value")

    def __init__(self, value: int, bits: int = 32) -> None:
        if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise GpuError(f"{value} does not fit in {bits} bits")
        self.value, self.bits = value, bits

    def __index__(self) -> int:
        return self.value

    def __bool__(self) -> bool:
        return self.value != 0

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:  # in PTX, where a number is an immediate
        return str(self.value)

    def to(self, dtype: torch.dtype) -> Int:
        return Int(self.value, 8 * dtype.itemsize)


def _define_integers() -> None:
    def arithmetic(of: Callable[[int, int], int], reverse: bool) -> Any:
        def method(self: Int, other: Any) -> Any:
            if not isinstance(other, (Int, int)):
                return NotImplemented
            a, b = (whole(other), self.value) if reverse else (self.value, whole(other))
            return Int(of(a, b), max(self.bits, getattr(other, "bits", 32)))

        return method

    def comparison(of: Callable[[int, int], bool]) -> Any:
        def method(self: Int, other: Any) -> Any:
            if not isinstance(other, (Int, int)):
                return NotImplemented
            return of(self.value, whole(other))

        return method

    for name, of in _ARITHMETIC.items():
        setattr(Int, f"__{name}__", arithmetic(of, False))
        setattr(Int, f"__r{name}__", arithmetic(of, True))
    for name in _COMPARISONS:
        setattr(Int, f"__{name}__", comparison(getattr(operator, name)))


_define_integers()


class Tensor:
    """Values in the registers of a partition, in their logical shape; layouts are not kept.

    product: what computes them, which must be waited for before they are read
    """

    __hash__ = None  # type: ignore[assignment]
    type = SimpleNamespace(layout=None)

    def __init__(self, values: Array, product: Any = None) -> None:
        self._values = values
        self.product = product

    @property
    def data(self) -> Array:
        if self.product is not None and not self.product.is_done:
            raise GpuError("the result of a product is read before it is waited for")
        return self._values

    @property
    def in_flight(self) -> Array:
        """The values, for the next product, which comes after this one."""
        return self._values

    @property
    def shape(self) -> list[int]:
        return list(self._values.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self._values.dtype

    def to(self, dtype: torch.dtype, bitcast: bool = False) -> Tensor:
        return Tensor(self.data.view(dtype) if bitcast else self.data.to(dtype))

    def __getitem__(self, places: Any) -> Tensor:
        return Tensor(self.data[places])


def values_of(x: Any) -> Any:
    """As torch computes with it."""
    if isinstance(x, Tensor):
        return x.data
    return x.value if isinstance(x, Int) else x


def value_of(x: Array) -> Tensor | Int:
    """The inverse: integers without dimensions are those of the whole partition."""
    if x.ndim == 0 and x.dtype in _INTEGERS:
        return Int(int(x), 8 * x.dtype.itemsize)
    return Tensor(x)


def _define_tensors() -> None:
    def method(of: Callable[[Any, Any], Any], reverse: bool) -> Any:
        def apply(self: Tensor, other: Any) -> Tensor:
            a, b = self.data, values_of(other)
            return Tensor(of(b, a) if reverse else of(a, b))

        return apply

    names = {name: getattr(operator, f"{name}_", None) for name in ("and", "or")}
    for name in (*_ARITHMETIC, "truediv", *_COMPARISONS):
        of = names.get(name) or getattr(operator, name)
        setattr(Tensor, f"__{name}__", method(of, False))
        if name not in _COMPARISONS:
            setattr(Tensor, f"__r{name}__", method(of, True))


_define_tensors()


@dataclass(frozen=True, eq=False)
class Pointer:
    """Elements of a contiguous tensor in global memory, from one on or those of a Tensor."""

    memory: Array  # flat
    offset: Any = 0  # int or Array

    @staticmethod
    def to_tensor(x: Array) -> Pointer:
        return Pointer(x.view(-1))

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.memory, self.offset + values_of(other))

    def to(self, _dtype: torch.dtype) -> Int:
        return Int(self.memory.data_ptr() + self.offset * self.memory.element_size(), 64)

    def load(self) -> Tensor | Int:
        self._check(self.offset)
        return value_of(self.memory[self.offset].clone())

    def store(self, x: Any, mask: Any) -> None:
        offset = torch.as_tensor(self.offset)
        kept = torch.as_tensor(values_of(mask)).broadcast_to(offset.shape)
        places = offset[kept]
        self._check(places)
        self.memory[places] = torch.as_tensor(values_of(x)).broadcast_to(offset.shape)[kept]

    def _check(self, places: Any) -> None:
        places = torch.as_tensor(places)
        if not places.numel():
            return
        first, last = int(places.min()), int(places.max())
        if first < 0 or last >= len(self.memory):
            raise GpuError(f"elements {first} to {last} of {len(self.memory)} in global memory")


def sizes_of(shape: Sequence[Any]) -> list[int]:
    """As torch takes them."""
    return [whole(n) for n in shape]
