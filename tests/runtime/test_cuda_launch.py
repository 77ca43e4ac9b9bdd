"""What a repeated launch hands to the driver, by a driver that only looks."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cmask.runtime.kernels import cuda_launch
from cmask.runtime.kernels.cuda_launch import Relaunch

# of a kernel (descriptor of rank 3, pointer, int, tuple of ints, float, constant)
SIGNATURE = {
    "X": "tensordesc<bf16[1,64,32],layout>",
    "Y": "*fp32",
    "n": "i32",
    "grid": ("i32", "constexpr", "i32"),
    "scale": "fp32",
    "N": "constexpr",
}
SIZES = [128, 4, 4, 4, 8, 8, 8, 8, 4, 4, 4, 4, 8, 8]
META = {"swizzle": 2, "elem_size": 2, "elem_type": 10, "block_size": [1, 64, 32]}


@dataclass
class Driver:
    """Functions of the CUDA driver; `launched` holds what each launch would have read."""

    sizes: list[int] = field(default_factory=lambda: list(SIZES))
    launched: list[dict[int, bytes]] = field(default_factory=list)
    encoded: list[tuple[Any, ...]] = field(default_factory=list)
    replaced: int = 0
    fails: int = 0

    def cuFuncGetParamInfo(self, function: Any, index: int, offset: Any, size: Any) -> int:
        if index >= len(self.sizes):
            return 1
        size._obj.value = self.sizes[index]
        return 0

    def cuTensorMapEncodeTiled(self, place: int, *arguments: Any) -> int:
        ctypes.memmove(place, struct.pack("Q", arguments[2]), 8)
        self.encoded.append(arguments)
        return 0

    def cuTensorMapReplaceAddress(self, place: int, address: int) -> int:
        ctypes.memmove(place, struct.pack("Q", address), 8)
        self.replaced += 1
        return 0

    def cuLaunchKernel(self, function: Any, *arguments: Any) -> int:
        parameters = arguments[8]
        self.launched.append(
            {i: ctypes.string_at(parameters[i], size) for i, size in enumerate(SIZES)}
        )
        self.grid = arguments[:8]
        return self.fails


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setattr(cuda_launch, "_driver", lambda: fake)
    return fake


def ptx_of(sizes: list[int]) -> str:
    """The head of a kernel with parameters of these sizes."""
    parameters = ",\n".join(f"  .param .align 8 .b8 kernel_{i}[{n}]" for i, n in enumerate(sizes))
    return f".version 8.8\n.visible .entry kernel(\n{parameters}\n)\n{{ ret; }}"


def relaunch(driver: Driver, **metadata: Any) -> tuple[Relaunch | None, torch.Tensor, torch.Tensor]:
    x = torch.zeros(3, 100, 32, dtype=torch.bfloat16)
    y = torch.zeros(8)
    descriptor = SimpleNamespace(base=x, shape=list(x.shape), strides=list(x.stride()))
    given = {
        "num_ctas": 1,
        "global_scratch_size": 0,
        "profile_scratch_size": 0,
        "num_warps": 12,
        "shared": 1000,
        "tensordesc_meta": [{**META, "fp4_padded": False}],
    }
    compiled = SimpleNamespace(
        function=77,
        metadata=SimpleNamespace(**{**given, **metadata}),
        src=SimpleNamespace(signature=SIGNATURE),
        asm={"ptx": ptx_of(driver.sizes)},
        _init_handles=lambda: None,
    )
    arguments = (descriptor, y, 5, (6, 1, 7), 0.25, 99)
    return Relaunch.of(compiled, 132, arguments), x, y


def test_parameters_are_laid_out_as_the_kernel_reads_them(driver: Driver) -> None:
    again, x, y = relaunch(driver)
    assert again is not None
    again(1234, [x.data_ptr()], [y.data_ptr()], 0.25)
    (seen,) = driver.launched
    assert struct.unpack("Q", seen[0][:8])[0] == x.data_ptr()
    assert [struct.unpack("i", seen[i])[0] for i in (1, 2, 3)] == [3, 100, 32]
    assert [struct.unpack("q", seen[i])[0] for i in (4, 5, 6)] == [3200, 32, 1]
    assert struct.unpack("Q", seen[7])[0] == y.data_ptr()
    assert [struct.unpack("i", seen[i])[0] for i in (8, 9, 10)] == [5, 6, 7]
    assert struct.unpack("f", seen[11])[0] == 0.25
    assert driver.grid == (132, 1, 1, 384, 1, 1, 1000, 1234)
    (encoded,) = driver.encoded
    assert (encoded[0], encoded[1], encoded[2]) == (9, 3, x.data_ptr())
    assert list(encoded[3]) == [32, 100, 3]
    assert list(encoded[4])[:2] == [64, 6400]
    assert list(encoded[5]) == [32, 64, 1]
    assert driver.replaced == 0


def test_only_what_differs_is_changed(driver: Driver) -> None:
    again, x, y = relaunch(driver)
    assert again is not None
    for maps, pointers, scale in (
        ([x.data_ptr()], [y.data_ptr()], 0.25),
        ([x.data_ptr() + 64], [0], 0.5),
        ([x.data_ptr() + 64], [y.data_ptr()], 0.5),
    ):
        again(0, maps, pointers, scale)
        seen = driver.launched[-1]
        assert struct.unpack("Q", seen[0][:8])[0] == maps[0]
        assert struct.unpack("Q", seen[7])[0] == pointers[0]
        assert struct.unpack("f", seen[11])[0] == scale
    assert driver.replaced == 1


@pytest.mark.parametrize("sizes", [SIZES[:-1], [*SIZES, 8], [64, *SIZES[1:]]])
def test_a_kernel_that_reads_other_parameters_is_left_to_triton(
    sizes: list[int], driver: Driver
) -> None:
    driver.sizes = sizes
    assert relaunch(driver)[0] is None


@pytest.mark.parametrize("metadata", [{"num_ctas": 2}, {"global_scratch_size": 64}])
def test_what_needs_more_than_parameters_is_left_to_triton(
    metadata: dict[str, int], driver: Driver
) -> None:
    assert relaunch(driver, **metadata)[0] is None


def test_a_failed_launch_is_an_error(driver: Driver) -> None:
    again, x, y = relaunch(driver)
    assert again is not None
    driver.fails = 700
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        again(0, [x.data_ptr()], [y.data_ptr()], 0.25)
