"""Where every token lies: the layout as the specification walks it, plain and slow.

`semantics` has the sentences that decide what DESIGN.md section 2 leaves open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cmask.runtime.closed_form import Group, Item, Region, Table
from cmask.runtime.expressions import (
    Call,
    Entry,
    Expr,
    ExpressionError,
    Literal,
    Place,
    Ref,
    Value,
    apply,
)

# The instances that a token lies in, outermost first: (region or group, its number), ...
Path = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance of a region.  first_key: the keys before it [tokens]."""

    region: Region
    path: Path
    indices: tuple[int, ...]
    shape: tuple[int, ...]
    first_key: int

    @property
    def length(self) -> int:
        """Tokens in it."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def has_queries(self) -> bool:
        """Whether its tokens are queries."""
        return self.region.side != "key"

    @property
    def has_keys(self) -> bool:
        """Whether its tokens are keys."""
        return self.region.side != "query"

    @property
    def group(self) -> Path:
        """The innermost group instance."""
        return self.path[:-1]

    def within(self, scope: str | None) -> Path:
        """The instance of a group that it lies in; the whole sequence is ()."""
        if scope is None:
            return ()
        return self.path[: 1 + [name for name, _ in self.path].index(scope)]

    def axis_size(self, axis: str) -> int:
        """Its size along an axis of its grid."""
        return self.shape[[a.name for a in self.region.axes].index(axis)]

    def tokens(self) -> Iterator[Token]:
        """Its tokens, in order."""
        return (Token(self, offset) for offset in range(self.length))


@dataclass(frozen=True, slots=True)
class Token:
    """A token by its region instance and its index there."""

    instance: Instance
    offset: int

    def along(self, axis: str) -> int:
        """Its index along an axis of its grid, whose last axis is fastest."""
        number = [a.name for a in self.instance.region.axes].index(axis)
        return int(np.unravel_index(self.offset, self.instance.shape)[number])


class Layout:
    """Where the tokens of a mask lie at one set of sizes."""

    def __init__(
        self, items: Sequence[Item], tables: Sequence[Table], sizes: Mapping[str, Value]
    ) -> None:
        self.sizes, self.tables = sizes, {table.name: table for table in tables}
        self.stars = dict(_size_names(items, 0))
        self.levels: dict[str, str | None] = {}  # of each region and group
        self.instances: list[Instance] = []
        self.paths: list[Path] = []  # of each instance of a region or group, in their order
        self.first_keys: dict[Path, int] = {(): 0}  # the keys before each of them
        self._num_keys = 0
        self._coordinates: dict[tuple[int, int, str, Path], int] = {}
        self._lay_out(items, (), ())

    def _lay_out(self, items: Sequence[Item], path: Path, indices: tuple[int, ...]) -> None:
        for item in items:
            self.levels[item.name] = item.level
            for index in range(1 if item.level is None else self._count(item, indices)):
                its_path = (*path, (item.name, index))
                its_indices = indices if item.level is None else (*indices, index)
                self.paths.append(its_path)
                self.first_keys[its_path] = self._num_keys
                if isinstance(item, Group):
                    self._lay_out(item.items, its_path, its_indices)
                    continue
                shape = self._shape(item, its_indices)
                instance = Instance(item, its_path, its_indices, shape, self._num_keys)
                self.instances.append(instance)
                self._num_keys += instance.length if instance.has_keys else 0

    def _count(self, item: Item, outer: tuple[int, ...]) -> int:
        """How many instances of a starred region or group lie in one outer instance."""
        counts = set()
        for name, stars in _size_names([item], len(outer)):
            if name == item.name and stars == len(outer) and name in self.sizes:
                counts.add(self._number(Ref(name), outer))
            elif name in self.sizes and stars - _depth(self.sizes[name]) <= len(outer):
                entry = self._entry(name, stars, outer)
                if not isinstance(entry, (int, float)):
                    counts.add(len(entry))
        if isinstance(item, Region) and not counts:
            return 1
        if len(counts) != 1:
            raise ExpressionError(f"the number of `{item.name}` is not clear: {sorted(counts)}")
        return counts.pop()

    def _shape(self, region: Region, indices: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes of a region instance along its axes."""
        stars = len(indices)
        named = [(a.name, a.size) for a in region.axes] or [(region.name, region.size)]
        sizes = [
            self._entry(str(name), stars, indices) if size is None else self._number(size, indices)
            for name, size in named
        ]
        return tuple(_whole(size) for size in sizes)

    def _entry(self, name: str, stars: int, indices: tuple[int, ...]) -> Value:
        """The part of a size at an instance: a too flat list skips the outer indices."""
        value = self._bound(name)
        for index in indices[max(0, stars - _depth(value)) :]:
            if not isinstance(value, (int, float)):
                value = value[index]
        return value

    def _bound(self, name: str) -> Value:
        if name not in self.sizes:
            raise ExpressionError(f"`{name}` has no value")
        return self.sizes[name]

    def _value(self, expression: Expr, indices: tuple[int, ...], token: Token | None) -> Value:
        """The value of an expression that belongs to an instance, or places a token."""
        match expression:
            case Literal(value=value):
                return value
            case Ref(name=name):
                return self._entry(name, self.stars.get(name, len(indices)), indices)
            case Call(function=function, arguments=arguments):
                return apply(function, [self._value(a, indices, token) for a in arguments])
            case Place() if token is not None:
                return self._place(expression, token.instance.group)
            case Entry(table=table) if token is not None:
                return self.entry(table, token)
        raise ExpressionError("a place or a table entry stands only in `at` and `from`")

    def _number(
        self, expression: Expr, indices: tuple[int, ...], token: Token | None = None
    ) -> int:
        return _whole(self._value(expression, indices, token))

    def coordinate(self, token: Token, name: str, scope: Path) -> int:
        """`pos`, `offset`, an axis or a level of a token."""
        key = (id(token.instance), token.offset, name, scope)
        if key not in self._coordinates:
            self._coordinates[key] = self._coordinate(token, name, scope)
        return self._coordinates[key]

    def _coordinate(self, token: Token, name: str, scope: Path) -> int:
        if name == "pos":
            return self.pos(token, scope)
        if name == "offset":
            return token.offset
        if name in [axis.name for axis in token.instance.region.axes]:
            return token.along(name)
        return self.level(token, name, scope)

    def level(self, token: Token, level: str, scope: Path) -> int:
        """The running number, in the scope, of the instance of a level that a token lies in."""
        path = token.instance.path
        depth = 1 + [self.levels[name] for name, _ in path].index(level)
        if depth <= len(scope):
            return 0
        item = path[depth - 1][0]
        peers = [p for p in self.paths if p[-1][0] == item and p[: len(scope)] == scope]
        return peers.index(path[:depth])

    def pos(self, token: Token, scope: Path) -> int:
        """The index of a token along the scope, or where its region is placed."""
        instance, placement = token.instance, token.instance.region.placement
        if placement is None:
            if not instance.has_keys:
                raise ExpressionError(f"`{instance.region.name}` has no `pos` of its own")
            return instance.first_key + token.offset - self.first_keys[scope]
        shift = self.first_keys[instance.group] - self.first_keys[scope]
        if placement.kind == "align_end":
            last = self._last_key_pos(instance.group)
            return shift + last - (instance.length - 1 - token.offset)
        position = self._number(placement.position, instance.indices, token)
        return shift + position + (token.offset if placement.kind == "from" else 0)

    def _last_key_pos(self, group: Path) -> int:
        last = [i for i in self._in(group) if i.has_keys and i.length][-1:]
        return self.pos(Token(last[0], last[0].length - 1), group) if last else -1

    def _place(self, place: Place, group: Path) -> int:
        """`start(r)`, `end(r)` or `len(r)` in a group instance."""
        instances = [i for i in self._in(group) if i.region.name == place.region]
        if place.what == "len":
            return sum(i.length for i in instances)
        (only,) = instances
        if place.what == "end" and only.length:
            return self.pos(Token(only, only.length - 1), group) + 1
        return self.pos(Token(only, 0), group)

    def _in(self, group: Path) -> list[Instance]:
        return [i for i in self.instances if i.path[: len(group)] == group]

    def entry(self, table: str, token: Token) -> int:
        """The entry of a table for a token's row, or for its instance of a level."""
        index = self.tables[table].index
        number = self.row(table, token) if index == "row" else self.level(token, index, ())
        return int(self.lines(table)[number])

    def row(self, table: str, token: Token) -> int:
        """The number of a query among the queries of the regions that use a table."""
        users = self.tables[table].users
        before = self.instances[: self.instances.index(token.instance)]
        return token.offset + sum(i.length for i in before if i.region.name in users)

    def lines(self, table: str) -> Sequence[Any]:
        """What is bound to a table: numbers, or lists of them."""
        lines: Any = self._bound(table)
        return lines  # type: ignore[no-any-return]


def _size_names(items: Sequence[Item], stars: int) -> Iterator[tuple[str, int]]:
    """The names of sizes and counts, each with the number of stars that it lies under."""
    for item in items:
        own = stars + (item.level is not None)
        if isinstance(item, Region) and not item.axes and item.size is None:
            yield item.name, own
            continue
        yield item.name, stars
        if isinstance(item, Group):
            yield from _size_names(item.items, own)
        else:
            yield from ((a.name, own) for a in item.axes if a.name and a.size is None)


def _depth(value: Value) -> int:
    """How deep lists are nested in a value."""
    if isinstance(value, (int, float)):
        return 0
    return 1 + max((_depth(item) for item in value), default=0)


def _whole(value: Value) -> int:
    if not isinstance(value, int):
        raise ExpressionError(f"a whole number is needed, not {value}")
    return value
