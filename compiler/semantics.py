"""What a mask means: the specification, plain and slow, that every faster form is tested against.

It follows DESIGN.md section 2 word by word.  Where that is silent, these sentences decide:

- Tokens lie in the order in which the layout is written, instance by instance.  A query's number
  counts the tokens of plain and query regions, a key's those of plain and key regions.
- A list too flat for its depth is used for every outer instance, so its lists belong to the
  innermost stars; a number is used for every instance.  The number of a starred group's instances
  follows from its name or the lists inside, which must agree; without either it is an error, since
  one instance would be a guess.  A starred region's is the length of its list (of an axis' list,
  for a grid), or given by its name where that is not its size; else it has one instance.
- In an expression a size stands for its entry at the instance that the expression belongs to.
- A level counts the instances of its region or group in the scope, empty ones too, through nested
  groups; two regions that share a level's name each count their own.  It is 0 in a scope that
  lies inside the instance.
- `pos` of a placed region is counted from the first key of its innermost group instance.  Every
  instance of a starred region starts again from P.
- `start(r)`, `end(r)` and `len(r)` name a region of the same group, the first two one without a
  star.  Without tokens both places are where its first token would be.  A `[row]` entry stands
  alone behind `at` or `from`, and a region that it places has no start or end.
- `align end` in a group instance without keys puts the last query at -1, where it sees nothing.
- A table's `[row]` entries are numbered by the query tokens of the regions that use it, in their
  order; `[level]` entries by the level's instances in the whole sequence.  An entry that places a
  region is shifted into the scope with it; one in `until` is a `pos` of the scope already.
- `rows(f)` counts keys along the scope, whatever their placement.
- `tree(t)` compares offsets, as `self` does: entries are offsets in the query's own region
  instance, a negative one is a root's, and a key of another region is the node of its offset.
- A disc of a negative radius is empty.
- `heads a..b` counts query heads from 0, both ends included; overlapping blocks add up.  A head
  outside all blocks has the rules outside them alone.
- In `window(axis, ..., edge=shift)` the axis that the window stays inside is the query's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from cmask.compiler import ir
from cmask.compiler.positions import Layout, Path, Token
from cmask.runtime.expressions import Expr, Number, Value, evaluate_number


def is_visible(
    mask: ir.ResolvedMask, sizes: Mapping[str, Value], q: int, k: int, head: int = 0
) -> bool:
    """Whether query `q` sees key `k` in a query head.

    `sizes` binds every size, parameter and table.
    """
    return meaning(mask, sizes, head)(q, k)


def query_count(mask: ir.ResolvedMask, sizes: Mapping[str, Value]) -> int:
    """The number of queries [tokens]."""
    return sum(i.length for i in Layout(mask.layout, mask.tables, sizes).instances if i.has_queries)


def key_count(mask: ir.ResolvedMask, sizes: Mapping[str, Value]) -> int:
    """The number of keys [tokens]."""
    return sum(i.length for i in Layout(mask.layout, mask.tables, sizes).instances if i.has_keys)


def dense(mask: ir.ResolvedMask, sizes: Mapping[str, Value], head: int = 0) -> NDArray[np.bool_]:
    """bool[query_count, key_count]: `is_visible` of every pair, for tests."""
    sees = meaning(mask, sizes, head)
    rows, keys = range(query_count(mask, sizes)), range(key_count(mask, sizes))
    return np.array([[sees(q, k) for k in keys] for q in rows], bool).reshape(len(rows), len(keys))


def meaning(
    mask: ir.ResolvedMask, sizes: Mapping[str, Value], head: int = 0
) -> Callable[[int, int], bool]:
    """`is_visible` of one mask at one set of sizes, which lays the tokens out only once."""
    layout = Layout(mask.layout, mask.tables, sizes)
    queries = [t for i in layout.instances if i.has_queries for t in i.tokens()]
    keys = [t for i in layout.instances if i.has_keys for t in i.tokens()]
    rules = [r for r in mask.rules if r.heads is None or r.heads[0] <= head < r.heads[1]]
    return lambda q, k: any(_applies(layout, rule, queries[q], keys[k]) for rule in rules)


def _applies(layout: Layout, rule: ir.Rule, q: Token, k: Token) -> bool:
    """Whether both tokens lie in regions of the rule and in one instance of its scope."""
    if q.instance.region.name not in rule.queries or k.instance.region.name not in rule.keys:
        return False
    scope = q.instance.within(rule.scope)
    if k.instance.within(rule.scope) != scope:
        return False
    return _Pair(layout, scope, q, k).matches(rule.pattern)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A query and a key, as a rule of one scope instance sees them."""

    layout: Layout
    scope: Path
    q: Token
    k: Token

    def matches(self, pattern: ir.Pattern) -> bool:
        """Whether the key is visible to the query by a pattern."""
        match pattern:
            case ir.All():
                return True
            case ir.And(parts=parts):
                return all(self.matches(part) for part in parts)
            case ir.Or(parts=parts):
                return any(self.matches(part) for part in parts)
            case ir.Same(coordinate=c):
                return self.of(self.k, c) == self.of(self.q, c)
            case ir.Before(coordinate=c):
                return self.of(self.k, c) < self.of(self.q, c)
            case ir.Upto(coordinate=c):
                return self.of(self.k, c) <= self.of(self.q, c)
            case ir.Window(coordinate=c, left=left, right=right):
                distance = self.of(self.k, c) - self.of(self.q, c)
                return -self.number(left) <= distance <= self.number(right)
            case _:
                return self._matches_more(pattern)

    def _matches_more(
        self, pattern: ir.ShiftedWindow | ir.First | ir.Disc | ir.Until | ir.Rows | ir.Tree
    ) -> bool:
        match pattern:
            case ir.ShiftedWindow():
                return self._in_shifted_window(pattern)
            case ir.First(count=count):
                return self.k.offset < self.number(count)
            case ir.Disc(axes=axes, radius=radius):
                distances = (self.k.along(axis) - self.q.along(axis) for axis in axes)
                return sum(d * d for d in distances) < max(self.number(radius), 0) ** 2
            case ir.Until(table=table):
                return self.layout.pos(self.k, self.scope) < self.layout.entry(table, self.q)
            case ir.Rows(table=table):
                return self._in_row_intervals(table)
            case ir.Tree(table=table):
                return self._is_ancestor(table)
            case _:
                assert_never(pattern)

    def of(self, token: Token, c: ir.Coordinate) -> int:
        """A coordinate of the query or the key."""
        value = self.layout.coordinate(token, c.name, self.scope)
        if c.divisor is not None:
            return int(value // self.number(c.divisor))
        if c.modulus is not None:
            return int(value % self.number(c.modulus))
        return value

    def number(self, expression: Expr) -> Number:
        return evaluate_number(expression, self.layout.sizes)

    def _in_shifted_window(self, window: ir.ShiftedWindow) -> bool:
        left, right = self.number(window.left), self.number(window.right)
        i, stride = self.q.along(window.axis), int(self.number(window.stride))
        n = self.q.instance.axis_size(window.axis)
        leader = min(i // stride * stride + stride // 2, n - 1)
        low = min(max(leader - left, 0), max(n - (left + right + 1), 0))
        return low <= self.k.along(window.axis) <= low + left + right

    def _in_row_intervals(self, table: str) -> bool:
        """[0, F0), [F1, F2), [F3, F4), ... of the query's row; keys by index in the scope."""
        row = self.layout.row(table, self.q)
        ends = [0, *(line[row] for line in self.layout.lines(table))]
        key = self.k.instance.first_key + self.k.offset - self.layout.first_keys[self.scope]
        return any(ends[i] <= key < ends[i + 1] for i in range(0, len(ends), 2))

    def _is_ancestor(self, table: str) -> bool:
        """From the query up to a root, which is at most as many steps as there are nodes."""
        parents, root = self.layout.lines(table), self.layout.row(table, self.q) - self.q.offset
        node = self.q.offset
        for _ in range(self.q.instance.length):
            if node < 0 or node == self.k.offset:
                break
            node = int(parents[root + node])
        return node == self.k.offset
