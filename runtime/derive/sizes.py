"""Names and their values: defaults of the sizes block, what the caller gives, what is missing."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from cmask.runtime.closed_form import ClosedForm, Group, Item, Region
from cmask.runtime.expressions import ExpressionError, Value, evaluate


class BindError(ValueError):
    """Sizes, parameters or tables do not make a mask; the message says which and what to give."""


class UnboundError(BindError):
    """A size, parameter or table has no value yet: the mask is right and can be bound later."""


def bind_names(
    form: ClosedForm, *, seq: int | None = None, given: Mapping[str, object] | None = None
) -> dict[str, Value]:
    """The value of each name that can be known.

    Values in `given` win; the rest follow from the defaults of the sizes block, which may use
    `seq` and the given values.  A name that stays without a value is absent from the result.
    Raises `BindError` for an unknown name or a value of the wrong kind.
    """
    tables = {table.name for table in form.tables}
    known = bindable_names(form)
    names: dict[str, Value] = {} if seq is None else {"seq": seq}
    for name, value in (given or {}).items():
        if name not in known:
            raise BindError(_unknown(name, form.name, known))
        names[name] = _table(name, value) if name in tables else _size(name, value)
    for name, default in (*form.params, *form.sizes):
        if name in names or default is None:
            continue
        try:
            value = evaluate(default, names)
            names[name] = _table(name, value) if name in tables else value
        except ExpressionError as error:
            if seq is not None and "has no value" not in str(error):
                raise BindError(f"the default of `{name}`: {error}") from None
    for name in _counts_that_follow(form.layout, given or {}):
        names.pop(name, None)
    return names


def _counts_that_follow(items: Sequence[Item], given: Mapping[str, object]) -> Iterator[str]:
    """Starred groups whose number follows from given lists, so that a default count must go."""
    for item in items:
        if isinstance(item, Group):
            yield from _counts_that_follow(item.items, given)
        if item.level is None or item.name in given:
            continue
        for name, stars in sizes_that_count(item):
            value = given.get(name)
            if isinstance(value, (list, tuple)) and depth_of(value) >= stars:
                yield item.name


def sizes_that_count(item: Item, stars: int = 0) -> list[tuple[str, int]]:
    """Names of sizes inside an item, each with the number of stars from the item down to it."""
    stars += item.level is not None
    if isinstance(item, Region) and not item.axes and item.size is None:
        return [(item.name, stars)]
    counts = [(item.name, stars - 1)] if stars > 1 and item.level is not None else []
    if isinstance(item, Group):
        return counts + [x for inner in item.items for x in sizes_that_count(inner, stars)]
    return counts + [(a.name, stars) for a in item.axes if a.name and a.size is None]


def bindable_names(form: ClosedForm) -> tuple[str, ...]:
    """Every name that `bind` takes: parameters, tables, and what sizes and counts are called."""
    names = [name for name, _ in form.params] + [table.name for table in form.tables]
    for item in walk(form.layout):
        if isinstance(item, Group) or item.level is not None or not item.axes:
            names.append(item.name)
        if isinstance(item, Region):
            names += [axis.name for axis in item.axes if axis.name and axis.size is None]
    return tuple(dict.fromkeys(names))


def walk(items: Sequence[Item]) -> Iterator[Item]:
    """Every region and group, outermost first, in the order written."""
    for item in items:
        yield item
        if isinstance(item, Group):
            yield from walk(item.items)


def depth_of(value: Value) -> int:
    """How many lists deep a value is: 0 for a number."""
    if isinstance(value, (int, float)):
        return 0
    return 1 + max((depth_of(item) for item in value), default=0)


def at_instance(value: Value, indices: Sequence[int], needed: int | None = None) -> Value:
    """The part of a size that belongs to one instance.

    indices: the running numbers of the enclosing starred instances, outermost first.  needed: how
    many lists deep a full value is (the indices, and the region's own star).  A value too flat
    is used for every outer instance.
    """
    needed = len(indices) if needed is None else needed
    skip = max(0, needed - depth_of(value))
    for index in indices[skip:]:
        if isinstance(value, (int, float)):
            break
        if index >= len(value):
            raise IndexError(index)
        value = value[index]
    return value


def _unknown(name: str, mask: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean `{close[0]}`?" if close else ""
    return f"mask `{mask}` has no size, parameter or table `{name}`{hint} (it has {_list(known)})"


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _size(name: str, value: object) -> Value:
    """A size or parameter as plain numbers: int, inf, or lists of them."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_size(name, item) for item in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BindError(f"`{name}` must be a whole number or lists of them, got {value!r}")
    if isinstance(value, float):
        if math.isinf(value):
            return value
        if not value.is_integer():
            raise BindError(f"`{name}` must be a whole number, got {value!r}")
    if abs(value) >= 2**31:
        raise BindError(f"`{name}` must be below 2^31, got {value}")
    return int(value)


def _table(name: str, value: object) -> Value:
    """A table as lists of integers; tensors of any device are read back."""
    if hasattr(value, "cpu"):
        value = value.cpu()
    try:
        array = np.asarray(value)
    except ValueError:
        raise BindError(f"the rows of table `{name}` must be equally long") from None
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise BindError(f"table `{name}` must hold integers, got {array.dtype}")
    if array.size and (array.max() >= 2**31 or array.min() < -(2**31)):
        raise BindError(f"the entries of table `{name}` must fit 32 bits")
    table: list[Value] = array.tolist()
    return table
