"""The sources of the kernels loaded against another `gl`, and launches of them."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor as Array

from support.hopper.barriers import NamedBarrier
from support.hopper.copies import DeviceDescriptor, store_wait
from support.hopper.language import GL, GLUON, HOPPER, NAMES
from support.hopper.machine import GpuError, Machine, Task, machine, run_on
from support.hopper.shared import SharedMemory
from support.hopper.values import Int, Pointer

_HOME = "cmask.runtime.kernels."
_MODULES = {
    "triton.experimental": SimpleNamespace(gluon=GLUON),
    "triton.experimental.gluon": SimpleNamespace(language=GL),
    "triton.experimental.gluon.language.nvidia.hopper": HOPPER,
    f"{_HOME}gluon_names": NAMES,
}


@cache
def source_of(module: str, edit: tuple[str, str] = ("", "")) -> SimpleNamespace:
    """A module of kernels with our `gl` in it; edit: a line of it and what takes its place."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin)

    def load(name: str, *arguments: Any) -> Any:
        if name in _MODULES:
            return _MODULES[name]
        return (
            source_of(name) if name.startswith(f"{_HOME}gluon_") else __import__(name, *arguments)
        )

    names = {"__builtins__": vars(builtins) | {"__import__": load}, "__name__": module}
    text = path.read_text(encoding="utf-8")
    assert edit[0] in text, f"{module} has no {edit[0]!r}"
    exec(compile(text.replace(*edit, 1) if edit[0] else text, path, "exec"), names)
    return SimpleNamespace(**names)


@dataclass(eq=False)
class Program:
    """One program of a launch: its memory, its barriers, its partitions."""

    number: int
    memory: SharedMemory = field(default_factory=SharedMemory)
    barriers: dict[int, NamedBarrier] = field(default_factory=dict)

    def specialize(self, parts: list[tuple[Callable[..., None], Any]], warps: list[int]) -> None:
        """Partitions: the first in the current task, of as many warps as it has."""
        (function, arguments), *others = parts
        tasks = [
            Task(f"program {self.number}, {part[0].__name__} {i}", _ended(*part), self, count)
            for i, (part, count) in enumerate(zip(others, warps, strict=True), 1)
        ]
        for task in tasks:
            machine().start(task)
        function(*arguments)
        machine().wait(lambda: all(task.is_done for task in tasks), "the other partitions")


def _ended(function: Callable[..., None], arguments: Any) -> Callable[[], None]:
    """A partition's stores end with it."""

    def work() -> None:
        function(*arguments)
        _end()

    return work


def _end() -> None:
    if machine().current.products:
        raise GpuError("a product was not waited for when its partition ended")
    store_wait(0)


@dataclass(frozen=True)
class Kernel:
    """A kernel of a module, in the place of Triton's: `warmup`, then a launch; or both at once."""

    function: Callable[..., None]
    seeds: Iterator[int]

    def warmup(self, *arguments: Any, grid: Any, num_warps: int, **_options: Any) -> Compiled:
        """What a launch needs: of descriptors, the address alone comes later."""
        return Compiled(self, [_dtype_of(x) for x in arguments], num_warps)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, num_warps: int, **options: Any) -> None:
            names = inspect.signature(self.function).parameters
            constants = {name: x for name, x in options.items() if name in names}
            self.warmup(*arguments, grid=grid, num_warps=num_warps)[grid](*arguments, **constants)

        return launch


@dataclass(frozen=True)
class Compiled:
    """A kernel and the dtypes of its tensors."""

    kernel: Kernel
    dtypes: list[torch.dtype | None]
    warps: int

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, stream: int = 0, **constants: Any) -> None:
            function, names = self.kernel.function, inspect.signature(self.kernel.function)
            values = [
                x if parameter.annotation is GL.constexpr else _argument(x, dtype)
                for x, dtype, parameter in zip(
                    arguments, self.dtypes, names.parameters.values(), strict=False
                )
            ]
            on_machine = Machine(next(self.kernel.seeds))
            for number in range(grid[0]):
                work = _ended(lambda: function(*values, **constants), ())
                task = Task(f"program {number}", work, Program(number), self.warps)
                on_machine.start(task)
            run_on(on_machine)

        return launch


def _argument(x: Any, dtype: torch.dtype | None = None) -> Any:
    if isinstance(x, Array):
        return Pointer.to_tensor(x)
    if hasattr(x, "block_shape"):
        return DeviceDescriptor(x, dtype)
    if isinstance(x, tuple):
        return tuple(_argument(each) for each in x)
    return Int(x) if isinstance(x, int) else x


def _dtype_of(x: Any) -> torch.dtype | None:
    return x.base.dtype if hasattr(x, "block_shape") else None
