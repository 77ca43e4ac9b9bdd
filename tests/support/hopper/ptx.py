"""The inline PTX of the kernels, run on whole tensors of registers at once."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Any

import torch
from torch import Tensor as Array

from support.hopper.barriers import NamedBarrier
from support.hopper.machine import machine

_COMPARE = {
    "eq": torch.eq, "ne": torch.ne, "neu": torch.ne, "lt": torch.lt, "le": torch.le,
    "gt": torch.gt, "ge": torch.ge,
}  # fmt: skip
_ARITHMETIC = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "and": torch.bitwise_and}
_LINE = re.compile(r"\s*(?:@(!?\w+)\s+)?(.*?)\s*", re.DOTALL)
_JOIN = {"or": torch.logical_or, "and": torch.logical_and}
_HALVES = {"bf16x2": torch.bfloat16, "f16x2": torch.float16}


@cache
def _statements(asm: str) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """(predicate or "", operation, operands) of each; a label is an operation."""
    found = []
    body = asm.strip().removeprefix("{").removesuffix("}")
    for line in re.sub(r"(\w+:)", r"\1;", body).split(";"):
        predicate, statement = _LINE.fullmatch(line).groups()  # type: ignore[union-attr]
        operation, _, operands = statement.partition(" ")
        if operation and operation != ".reg":
            names = tuple(name.strip() for name in operands.split(",") if name.strip())
            found.append((predicate or "", operation, names))
    return tuple(found)


class _Thread:
    """Registers by name, each of all threads; lane 0 stands for a partition's own numbers."""

    def __init__(self, outputs: int, inputs: list[Array], tied: dict[int, int]) -> None:
        self.registers: dict[str, Any] = {}
        for i, x in enumerate(inputs):
            self.registers[f"${outputs + i}"] = x
            if i in tied:
                self.registers[f"${tied[i]}"] = x

    def run(self, asm: str) -> None:
        skip_to = ""
        for predicate, operation, operands in _statements(asm):
            if skip_to:
                skip_to = "" if operation == f"{skip_to}:" else skip_to
                continue
            if operation.endswith(":"):
                continue
            kept = self._predicate(predicate)
            if operation.startswith("bra"):
                skip_to = operands[0] if bool(torch.as_tensor(kept).all()) else ""
            else:
                self._do(operation.split("."), operands, kept)

    def _predicate(self, name: str) -> Any:
        if not name:
            return True
        value = self.registers[name.removeprefix("!")]
        return torch.logical_not(value) if name.startswith("!") else value

    def _read(self, name: str, kind: str) -> Any:
        if name == "%laneid":
            return torch.tensor(0, dtype=torch.int32)
        if name.startswith("0f"):
            return (
                torch.tensor(int(name[2:], 16), dtype=torch.int64)
                .to(torch.int32)
                .view(torch.float32)
            )
        x = self.registers[name] if name in self.registers else torch.tensor(int(name, 0))
        if kind == "f32":
            return x if x.dtype == torch.float32 else x.to(torch.int32).view(torch.float32)
        if kind == "u32":
            x = x.view(torch.int32) if x.dtype == torch.float32 else x
            return x.to(torch.int64) & 0xFFFFFFFF
        return x.view(torch.int32) if x.dtype == torch.float32 else x.to(torch.int32)

    def _write(self, name: str, x: Any, kept: Any) -> None:
        if kept is not True:
            x = torch.where(torch.as_tensor(kept), x, self.registers[name])
        self.registers[name] = x

    def _do(self, operation: list[str], names: tuple[str, ...], kept: Any) -> None:
        if operation[0] in ("bar", "atom", "st"):
            if bool(torch.as_tensor(kept)):
                self._act(operation, names)
        else:
            self._write(names[0], self._value(operation, names), kept)

    def _value(self, operation: list[str], names: tuple[str, ...]) -> Any:
        """What an operation gives."""
        match operation:
            case ["mov", _] | ["shfl", "sync", "idx", _]:
                return self._read(names[1], "b32")
            case ["setp", comparison, *joined, kind]:
                value = _COMPARE[comparison](*(self._read(name, kind) for name in names[1:3]))
                return _JOIN[joined[0]](value, self.registers[names[3]]) if joined else value
            case ["selp", kind]:
                a, b = (self._read(name, kind) for name in names[1:3])
                return torch.where(self.registers[names[3]], a, b)
            case [("add" | "sub" | "mul" | "and") as name, kind]:
                value = _ARITHMETIC[name](*(self._read(name, kind) for name in names[1:]))
                return value if kind == "f32" else _wrapped(value)
            case ["cvt", "rn", pair, "f32"]:
                halves = (self._read(name, "f32").to(_HALVES[pair]) for name in names[1:])
                high, low = (x.view(torch.int16).to(torch.int32) for x in halves)
                return (high << 16) | (low & 0xFFFF)
            case ["vote", "sync", "any", "pred"]:
                return self.registers[names[1]].any()
        raise NotImplementedError(".".join(operation))

    def _act(self, operation: list[str], names: tuple[str, ...]) -> None:
        """What an operation does to others than its registers."""
        match operation:
            case ["bar", "warp", "sync"]:
                pass
            case ["bar", ("sync" | "arrive") as how]:
                number, threads = (int(self._read(name, "b32")) for name in names)
                _meet(number, threads, waits=how == "sync")
            case ["atom", "global", "add", "u32"]:
                word = self._word(names[1])
                self.registers[names[0]] = torch.tensor(word.value, dtype=torch.int32)
                word.value += int(self._read(names[2], "b32"))
            case ["st", "global", "b32"]:
                self._word(names[0]).value = int(self._read(names[1], "b32"))
            case _:
                raise NotImplementedError(".".join(operation))

    def _word(self, name: str) -> ctypes.c_int32:
        register, offset = re.match(r"\[(\$?\w+)\+?(\d*)\]", name).groups()  # type: ignore[union-attr]
        return ctypes.c_int32.from_address(int(self.registers[register]) + int(offset or 0))


def _wrapped(x: Array) -> Array:
    """In 32 bits."""
    low = x.to(torch.int64) & 0xFFFFFFFF
    return torch.where(low >= 1 << 31, low - (1 << 32), low).to(torch.int32)


def _meet(number: int, threads: int, *, waits: bool) -> None:
    task = machine().current
    barriers: dict[int, NamedBarrier] = task.program.barriers
    barrier = barriers.setdefault(number, NamedBarrier(number))
    barrier.arrive(32 * task.warps, threads, waits=waits)
    machine().maybe_switch()


def run(asm: str, constraints: str, inputs: list[Array]) -> list[Array]:
    """The outputs, from the inputs of one pack of elements."""
    kinds = [kind.strip() for kind in constraints.split(",")]
    outputs = sum(kind.startswith("=") for kind in kinds)
    tied = {i: int(kind) for i, kind in enumerate(kinds[outputs:]) if kind.isdigit()}
    thread = _Thread(outputs, inputs, tied)
    thread.run(asm)
    return [thread.registers[f"${i}"] for i in range(outputs)]
