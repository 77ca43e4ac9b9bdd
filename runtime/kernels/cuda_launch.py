"""Launching a compiled kernel again with other addresses, for a few microseconds of host time.

Triton's own launch makes every tensor map anew and asks the driver about every pointer: 30 µs for
the Hopper forward on a slow host.  Here the parameters of a kernel are laid out once, a call
changes the addresses that differ from the last call's, and the driver does the rest.

The layout is checked against what the driver says of the kernel; where it differs (another Triton)
or the driver cannot say (before CUDA 12.4), `Relaunch.of` answers None and Triton launches.

Source: CUDA driver API, cuTensorMapEncodeTiled, cuTensorMapReplaceAddress, cuFuncGetParamInfo.
"""

from __future__ import annotations

import ctypes
import re
import struct
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch

_DATA_TYPES = {torch.int32: 3, torch.float16: 6, torch.bfloat16: 9}  # CUtensorMapDataType
_L2_PROMOTION_128B = 2  # CUtensorMapL2promotion
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_MAX_RANK = 5


class Relaunch:
    """A kernel, its grid and its parameters; safe to call from several threads."""

    def __init__(self, compiled: Any, programs: int, arguments: Sequence[Any]) -> None:
        """Lay out the parameters; raises `_Unknown` where they are not what the driver expects."""
        meta = compiled.metadata
        if meta.num_ctas != 1 or meta.global_scratch_size or meta.profile_scratch_size:
            raise _Unknown
        self._driver = _driver()
        self._function = ctypes.c_void_p(compiled.function)
        self._grid = (programs, 1, 1, 32 * compiled.metadata.num_warps, 1, 1)
        self._shared = compiled.metadata.shared
        self._lock = threading.Lock()
        # places of tensor maps, pointers and the scale, and what stands there
        self._maps: tuple[list[int], list[int]] = ([], [])
        self._pointers: tuple[list[int], list[int]] = ([], [])
        self._scale: tuple[int, float] = (0, 0.0)
        metas = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
        leaves = [
            *_leaves(tuple(compiled.src.signature.values()), tuple(arguments)),
            *(("scratch", 0), ("scratch", 0)),
        ]
        sizes = [size for kind, value in leaves for size in _sizes(kind, value)]
        self._check(sizes, compiled.asm["ptx"])
        self._memory = ctypes.create_string_buffer(len(sizes) * (_MAP_BYTES + _MAP_ALIGNMENT))
        places = _places(ctypes.addressof(self._memory), sizes)
        self._parameters = (ctypes.c_void_p * len(places))(*places)
        at = iter(places)
        for kind, value in leaves:
            self._write(kind, value, at, metas)

    @staticmethod
    def of(compiled: Any, programs: int, arguments: Sequence[Any]) -> Relaunch | None:
        """What calls with the same shapes need; None where only Triton can launch.

        compiled: as Triton's `warmup` gives it; arguments: what it was given.
        """
        try:
            compiled._init_handles()
            return Relaunch(compiled, programs, arguments)
        except (_Unknown, AttributeError, KeyError, OSError):
            return None

    def __call__(
        self, stream: int, maps: Sequence[int], pointers: Sequence[int], scale: float
    ) -> None:
        """Launch with these addresses, in the order of the kernel's parameters."""
        with self._lock:
            places, standing = self._maps
            for i, address in enumerate(maps):
                if address != standing[i]:
                    self._driver.cuTensorMapReplaceAddress(places[i], address)
                    standing[i] = address
            places, standing = self._pointers
            if pointers != standing:
                for i, address in enumerate(pointers):
                    ctypes.c_uint64.from_address(places[i]).value = address
                    standing[i] = address
            if scale != self._scale[1]:
                self._scale = (self._scale[0], scale)
                ctypes.c_float.from_address(self._scale[0]).value = scale
            failed = self._driver.cuLaunchKernel(
                self._function, *self._grid, self._shared, stream, self._parameters, None
            )
        if failed:
            raise RuntimeError(f"cuLaunchKernel failed with CUDA error {failed}")

    def _check(self, sizes: Sequence[int], ptx: str) -> None:
        if _num_parameters(ptx) != len(sizes):
            raise _Unknown
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        info = self._driver.cuFuncGetParamInfo
        for index, expected in enumerate(sizes):
            failed = info(self._function, index, ctypes.byref(offset), ctypes.byref(size))
            if failed or size.value != expected:
                raise _Unknown

    def _write(self, kind: str, value: Any, at: Iterator[int], metas: Iterator[Any]) -> None:
        if kind.startswith("tensordesc"):
            place = next(at)
            address = value.base.data_ptr()
            _encode(self._driver, place, value, next(metas))
            self._maps[0].append(place)
            self._maps[1].append(address)
            for n in value.shape:
                _put(next(at), "i", n)
            for n in value.strides:
                _put(next(at), "q", n)
        elif kind.startswith("*"):
            place = next(at)
            _put(place, "Q", value.data_ptr())
            self._pointers[0].append(place)
            self._pointers[1].append(value.data_ptr())
        elif kind == "fp32":
            place = next(at)
            _put(place, "f", value)
            self._scale = (place, value)
        else:
            _put(next(at), "Q" if kind == "scratch" else "i", value)


class _Unknown(Exception):
    """The kernel's parameters are not what this module knows."""


def _num_parameters(ptx: str) -> int:
    """Of the kernel; the driver would have to be asked for one too many, which tools report."""
    _, _, entry = ptx.partition(".entry")
    return entry[: entry.find(")")].count(".param")


def _leaves(types: Any, values: Any) -> Iterator[tuple[str, Any]]:
    """(type, value) of every parameter; tuples are flat, constants none."""
    for kind, value in zip(types, values, strict=True):
        if isinstance(kind, tuple):
            yield from _leaves(kind, value)
        elif kind != "constexpr":
            yield kind, value


def _sizes(kind: str, value: Any) -> list[int]:
    """Bytes of a parameter; a tensor map brings its shape and strides."""
    if kind.startswith("tensordesc"):
        return [_MAP_BYTES, *[4] * len(value.shape), *[8] * len(value.shape)]
    if kind in ("i32", "fp32"):
        return [4]
    if kind == "scratch" or re.match(r"\*\w+$", kind):
        return [8]
    raise _Unknown


def _places(start: int, sizes: Sequence[int]) -> list[int]:
    """An address for each parameter; one takes _MAP_BYTES + _MAP_ALIGNMENT at most."""
    places = []
    for size in sizes:
        alignment = _MAP_ALIGNMENT if size == _MAP_BYTES else 8
        start = -(-start // alignment) * alignment
        places.append(start)
        start += size
    return places


def _put(place: int, code: str, value: float) -> None:
    ctypes.memmove(place, struct.pack(code, value), struct.calcsize(code))


def _encode(driver: Any, place: int, descriptor: Any, meta: Any) -> None:
    rank = len(descriptor.shape)
    if rank > _MAX_RANK or meta["fp4_padded"]:
        raise _Unknown
    step = meta["elem_size"]
    strides = [s * step for s in descriptor.strides]
    failed = driver.cuTensorMapEncodeTiled(
        place,
        _DATA_TYPES[descriptor.base.dtype],
        rank,
        descriptor.base.data_ptr(),
        (ctypes.c_uint64 * rank)(*reversed(descriptor.shape)),
        (ctypes.c_uint64 * rank)(*reversed(strides[:-1]), 0),
        (ctypes.c_uint32 * rank)(*reversed(meta["block_size"])),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        0,  # not interleaved
        meta["swizzle"],
        _L2_PROMOTION_128B,
        0,  # zeros past the edges
    )
    if failed:
        raise _Unknown


@cache
def _driver() -> Any:
    """The CUDA driver, its functions declared; raises OSError or AttributeError without."""
    driver = ctypes.CDLL("libcuda.so.1")
    word, address = ctypes.c_uint, ctypes.c_void_p
    driver.cuLaunchKernel.argtypes = [address, *[word] * 7, address, address, address]
    driver.cuTensorMapReplaceAddress.argtypes = [address, address]
    driver.cuTensorMapEncodeTiled.argtypes = [
        address, ctypes.c_int, word, address, address, address, address, address,
        *[ctypes.c_int] * 4,
    ]  # fmt: skip
    size = ctypes.POINTER(ctypes.c_size_t)
    driver.cuFuncGetParamInfo.argtypes = [address, ctypes.c_size_t, size, size]
    return driver
