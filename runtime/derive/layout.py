"""Where every region instance lies, once sizes are known.

Instances are few (hundreds), tokens are many: this walk is plain Python over instances, and
everything per token happens in numpy in `tokens.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cmask.runtime.closed_form import ClosedForm, Group, Item, Region
from cmask.runtime.derive.sizes import (
    BindError,
    UnboundError,
    at_instance,
    depth_of,
    sizes_that_count,
    walk,
)
from cmask.runtime.derive.values import value_in
from cmask.runtime.expressions import Expr, Value

# More would take minutes and tens of gigabytes on the host.
MAX_TOKENS = 1 << 26
MAX_INSTANCES = 1 << 21


@dataclass(slots=True)
class Instance:
    """One instance of a group (or the whole sequence): a scope of rules.

    key_start   key tokens before it
    counts      instances of each starred region or group that began before it
    """

    key_start: int
    counts: dict[str, int]
    segments: dict[str, list[Segment]] = field(default_factory=dict)


@dataclass(slots=True)
class Segment:
    """One instance of a region.

    sizes       of its axes, slowest first; (length,) for a one-dimensional region
    q_start     index of its first query, or -1 on the key side only
    k_start     index of its first key, or -1 on the query side only
    key_before  key tokens before it
    groups      group name -> which of its instances encloses this one
    levels      level name -> the starred region or group that it numbers
    numbers     starred region or group -> running number of the enclosing instance
    pos_start   `pos` of its first token, counted along the whole sequence
    pos_step    0 if all tokens stand at one `pos`
    pos_table   the table whose row entries give `pos` instead (+ pos_start), or None
    """

    region: Region
    length: int
    sizes: tuple[int, ...]
    q_start: int
    k_start: int
    key_before: int
    groups: dict[str, int]
    levels: dict[str, str]
    numbers: dict[str, int]
    indices: tuple[int, ...]
    pos_start: int = 0
    pos_step: int = 1
    pos_table: str | None = None


@dataclass(slots=True)
class Layout:
    """All region instances in token order, and all group instances by group name.

    The whole sequence is the only instance of the group "".
    levels: level -> number of its instances, empty ones too (the most, if several regions have it)
    stars: size or count -> how many starred items it lies in
    """

    segments: list[Segment]
    instances: dict[str, list[Instance]]
    q_len: int
    kv_len: int
    levels: dict[str, int] = field(default_factory=dict)
    stars: dict[str, int] = field(default_factory=dict)


def lay_out(form: ClosedForm, names: Mapping[str, Value]) -> Layout:
    """Every region instance with its place; raises `BindError` when sizes are missing or wrong."""
    walker = _Walker(form, names)
    walker.check_that_sizes_are_known()
    walker.group(Group(name="", level=None, items=form.layout), _Path())
    for item in walk(form.layout):
        if item.level is not None:
            count = walker.counts.get(item.name, 0)
            levels = walker.layout.levels
            levels[item.level] = max(levels.get(item.level, 0), count)
    return walker.layout


@dataclass(frozen=True, slots=True)
class _Path:
    """The instances that enclose a place in the layout, as `Segment` names them."""

    groups: dict[str, int] = field(default_factory=dict)
    levels: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    indices: tuple[int, ...] = ()


class _Walker:
    """Walks the layout once, counting tokens and instances."""

    def __init__(self, form: ClosedForm, names: Mapping[str, Value]) -> None:
        self.form, self.names = form, names
        stars = {name: n for item in form.layout for name, n in sizes_that_count(item)}
        self.layout = Layout([], {"": []}, 0, 0, stars=stars)
        self.counts: dict[str, int] = {}
        for item in walk(form.layout):
            if isinstance(item, Group):
                self.layout.instances[item.name] = []

    def check_that_sizes_are_known(self) -> None:
        missing = [n for n in _needed_sizes(self.form) if n not in self.names]
        missing += [name for name, _ in self.form.params if name not in self.names]
        if missing:
            example = ", ".join(f"{name}={_example(name, self.form)}" for name in missing)
            raise UnboundError(
                f"mask `{self.form.name}` needs {', '.join(f'`{n}`' for n in missing)}: "
                f"bind({example}), or seq=... if its sizes follow from the length"
            )

    def group(self, group: Group, path: _Path) -> None:
        instances = self.layout.instances[group.name]
        instance = Instance(self.layout.kv_len, dict(self.counts))
        path = replace(path, groups={**path.groups, group.name: len(instances)})
        instances.append(instance)
        for item in group.items:
            for index in range(self.count(item, path.indices)):
                inner = path if item.level is None else self.numbered(item, path, index)
                if isinstance(item, Group):
                    self.group(item, inner)
                else:
                    segment = self.segment(item, inner)
                    instance.segments.setdefault(item.name, []).append(segment)

    def numbered(self, item: Item, path: _Path, index: int) -> _Path:
        number = self.counts.get(item.name, 0)
        if number >= MAX_INSTANCES:
            raise BindError(f"more than {MAX_INSTANCES:,} instances of `{item.name}`")
        self.counts[item.name] = number + 1
        return _Path(
            groups=path.groups,
            levels={**path.levels, str(item.level): item.name},
            numbers={**path.numbers, item.name: number},
            indices=(*path.indices, index),
        )

    def segment(self, region: Region, path: _Path) -> Segment:
        sizes = self.sizes(region, path.indices)
        length = math.prod(sizes)
        layout = self.layout
        segment = Segment(
            region=region,
            length=length,
            sizes=sizes,
            q_start=-1 if region.side == "key" else layout.q_len,
            k_start=-1 if region.side == "query" else layout.kv_len,
            key_before=layout.kv_len,
            groups=path.groups,
            levels=path.levels,
            numbers=path.numbers,
            indices=path.indices,
        )
        layout.q_len += 0 if region.side == "key" else length
        layout.kv_len += 0 if region.side == "query" else length
        if max(layout.q_len, layout.kv_len) > MAX_TOKENS:
            raise BindError(f"more than {MAX_TOKENS:,} tokens: at region `{region.name}`")
        layout.segments.append(segment)
        return segment

    def sizes(self, region: Region, indices: tuple[int, ...]) -> tuple[int, ...]:
        if region.axes:
            return tuple(
                self.size(axis.name or region.name, axis.size, indices) for axis in region.axes
            )
        return (self.size(region.name, region.size, indices),)

    def size(self, name: str, written: Expr | None, indices: tuple[int, ...]) -> int:
        if written is not None:
            value = value_in(written, self.names, indices, self.layout.stars)
        else:
            try:
                value = at_instance(self.names[name], indices)
            except IndexError:
                raise BindError(f"`{name}` has too few entries: {self.names[name]}") from None
        if not isinstance(value, int) or value < 0:
            raise BindError(f"`{name}` must be a size of at least 0 here, got {value}")
        return value

    def count(self, item: Item, indices: tuple[int, ...]) -> int:
        """Instances of a region or group within one instance of its enclosing group."""
        if item.level is None:
            return 1
        found: dict[str, int] = {}
        for name, stars in sizes_that_count(item):
            if name in self.names:
                value = self.names[name]
                part = at_instance(value, indices, len(indices) + stars)
                if not isinstance(part, (int, float)) and depth_of(value) >= stars:
                    found[name] = len(part)
        counted_by_name = isinstance(item, Group) or bool(item.axes) or item.size is not None
        if counted_by_name and item.name in self.names:
            value = at_instance(self.names[item.name], indices)
            if not isinstance(value, int) or value < 0:
                raise BindError(f"`{item.name}` must be a number of instances, got {value}")
            found[item.name] = value
        if len(set(found.values())) > 1:
            counts = ", ".join(f"`{name}` says {n}" for name, n in found.items())
            raise BindError(f"the number of instances of `{item.name}` is unclear: {counts}")
        if found:
            return next(iter(found.values()))
        if isinstance(item, Region):
            return 1
        raise UnboundError(
            f"the number of instances of `{item.name}` is unknown: bind({item.name}=2)"
        )


def _needed_sizes(form: ClosedForm) -> list[str]:
    names: list[str] = []
    for item in walk(form.layout):
        if isinstance(item, Region):
            if item.axes:
                names += [axis.name for axis in item.axes if axis.name and axis.size is None]
            elif item.size is None:
                names.append(item.name)
    return list(dict.fromkeys(names))


def _example(name: str, form: ClosedForm) -> str:
    starred = {i.name for i in walk(form.layout) if isinstance(i, Region) and i.level is not None}
    return "[640, 702]" if name in starred else "1024"
