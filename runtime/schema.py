"""The artifact format, and the rules for changing it.

An artifact is one msgpack map:

    format_version   int, first: 1; 2 if some rule is for some heads
    checksum         bytes[16]: BLAKE2b of `body`
    body             bytes: a msgpack map of the fields of `Body`

Rules for change: a field never changes meaning or unit; a new field is optional, with a default,
and old readers skip it; anything else raises `FORMAT_VERSION`, and a reader refuses versions
that it does not know.  Arrays are {dtype, shape, data} with little-endian data.  The same input
gives the same bytes: no dates but those of measurements, no paths, no order that depends on a
hash.

Version 2 is written only where clauses have `heads`: a reader of version 1 would skip the field,
and take such rules for rules of all heads.

Values are coded by their declared types: dataclasses as maps with a `type`, tuples as lists,
enumerations of dataclasses by `type`.  Reading checks every type and trusts nothing.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from typing import Any

import numpy as np

from cmask.runtime.closed_form import ClosedForm
from cmask.runtime.derive.facts import Facts
from cmask.runtime.descriptor import Int32Array
from cmask.runtime.expressions import Value

FORMAT_VERSION = 1
FORMAT_VERSION_WITH_HEADS = 2


class FormatError(ValueError):
    """Bytes that are no value of the declared type."""


@dataclass(frozen=True, eq=False)
class StoredBlocks:
    """A descriptor as stored: the `by_query` lists; the other direction follows from them.

    unread_runs: int32[runs, 2]: runs [first, stop) of key slots that no query sees.
    Other fields: see `cmask.runtime.descriptor`.
    """

    block_m: int
    block_n: int
    q_len: int
    kv_len: int
    full_offsets: Int32Array
    full_runs: Int32Array
    bounds_offsets: Int32Array
    bounds_runs: Int32Array
    pattern_offsets: Int32Array
    pattern_blocks: Int32Array
    order: Int32Array
    patterns: Int32Array
    unread_runs: Int32Array


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """Launch parameters of one kernel for one target.

    l2_mib: heads are worked on together while their keys and values fit in so much [MiB].
    measured: what tuning measured, or None: "latency_ms" of a call (of dkdv and dq: of the whole
        backward) and "default_ms" of the shipped configuration, "inputs", "device", "versions",
        "date".
    """

    target: str
    kernel: str
    direction: str
    dtype: str
    head_dim: int
    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    measured: dict[str, str | float] | None = None
    l2_mib: int = 32


@dataclass(frozen=True, slots=True)
class Golden:
    """The whole mask at small sizes, by which any runtime can check itself.

    head: the query head whose mask it is, as far as heads differ.
    bits: the q_len × kv_len matrix, row by row, 8 pairs a byte, first pair in the highest bit.
    """

    sizes: dict[str, Value]
    q_len: int
    kv_len: int
    bits: bytes
    head: int = 0


@dataclass(frozen=True, eq=False)
class StoredVariant:
    """What is stored of the mask of some heads, at the bound sizes: see `Body`."""

    facts: Facts
    descriptors: tuple[StoredBlocks, ...]


@dataclass(frozen=True, eq=False)
class Body:
    """All that an artifact holds.

    source         the text of the `.cmask` file, and its SHA-256
    closed_form    the mask without sizes
    names          sizes, parameters and tables that are bound
    facts          of the mask at `names`; None if something is unbound, or if heads differ
    descriptors    at `names`, one per block shape; none if heads differ
    configs        kernel configurations
    goldens        small golden vectors
    given          the names whose value was asked for; the others follow from defaults
    variants       if heads differ and nothing is unbound: facts and descriptors of each variant,
                   in the order of `cmask.runtime.variants.variants_of`
    """

    source: str
    source_sha256: bytes
    closed_form: ClosedForm
    names: dict[str, Value]
    facts: Facts | None
    descriptors: tuple[StoredBlocks, ...]
    configs: tuple[StoredConfig, ...]
    goldens: tuple[Golden, ...] = ()
    given: tuple[str, ...] = ()
    variants: tuple[StoredVariant, ...] = ()


def encode(value: Any) -> Any:
    """A value as what msgpack can hold."""
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        return {"dtype": data.dtype.str, "shape": list(data.shape), "data": data.tobytes()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, dict):
        return {key: encode(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def decode(value: Any, declared: Any) -> Any:  # noqa: C901 - one case per kind of type
    """The value of a declared type; raises `FormatError` if it is none."""
    if declared is Any:
        return value
    if declared == Int32Array:
        return _decode_array(value)
    origin = typing.get_origin(declared)
    if origin is types.UnionType or origin is typing.Union:
        return _decode_union(value, typing.get_args(declared))
    if origin is tuple:
        return _decode_tuple(_items(value, declared), typing.get_args(declared))
    if origin is dict:
        _, of = typing.get_args(declared)
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise FormatError("a map with names as keys is needed")
        return {key: decode(item, of) for key, item in value.items()}
    if dataclasses.is_dataclass(declared):
        return _decode_dataclass(value, declared)
    if origin is not None and origin is not Any:  # Sequence[Value]
        return [decode(item, Value) for item in _items(value, declared)]
    if declared is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not (declared or type(None)):
        raise FormatError(f"{_name(declared)} is needed, not {type(value).__name__}")
    return value


def _decode_tuple(items: list[Any], of: tuple[Any, ...]) -> tuple[Any, ...]:
    if of[-1] is not Ellipsis and len(items) != len(of):
        raise FormatError(f"{len(of)} items are needed, not {len(items)}")
    each = [of[0]] * len(items) if of[-1] is Ellipsis else of
    return tuple(decode(item, declared) for item, declared in zip(items, each, strict=True))


def _decode_union(value: Any, options: tuple[Any, ...]) -> Any:
    if value is None and type(None) in options:
        return None
    if isinstance(value, dict) and "type" in value:
        for option in options:
            if dataclasses.is_dataclass(option) and _name(option) == value["type"]:
                return decode(value, option)
    for option in options:
        if option is not type(None) and not dataclasses.is_dataclass(option):
            try:
                return decode(value, option)
            except FormatError:
                continue
    named = [option for option in options if dataclasses.is_dataclass(option)]
    if len(named) == 1:
        return decode(value, named[0])
    raise FormatError(f"one of {', '.join(map(_name, options))} is needed")


def _decode_dataclass(value: Any, declared: Any) -> Any:
    if not isinstance(value, dict) or value.get("type") != declared.__name__:
        raise FormatError(f"a {declared.__name__} is needed")
    hints = _hints(declared)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(declared):
        if field.name in value:
            fields[field.name] = decode(value[field.name], hints[field.name])
        elif field.default is dataclasses.MISSING:
            raise FormatError(f"a {declared.__name__} needs `{field.name}`")
    return declared(**fields)


def _hints(declared: type) -> dict[str, Any]:
    return typing.get_type_hints(declared)


def _decode_array(value: Any) -> Int32Array:
    if not isinstance(value, dict) or value.get("dtype") != "<i4":
        raise FormatError("an int32 array is needed")
    shape, data = value.get("shape"), value.get("data")
    if not isinstance(shape, list) or not isinstance(data, bytes) or len(shape) > 4:
        raise FormatError("an array needs a shape and data")
    if not all(type(n) is int and 0 <= n < 2**31 for n in shape):
        raise FormatError("the shape of an array must be sizes")
    count = 1
    for n in shape:
        count *= n
    if count * 4 != len(data):
        raise FormatError(f"an array of shape {shape} needs {count * 4} bytes, not {len(data)}")
    return np.frombuffer(data, "<i4").astype(np.int32).reshape(shape)


def _items(value: Any, declared: Any) -> list[Any]:
    if not isinstance(value, list):
        raise FormatError(f"a list is needed for {_name(declared)}")
    return value


def _name(declared: Any) -> str:
    return getattr(declared, "__name__", str(declared))
