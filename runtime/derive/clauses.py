"""Clauses with sizes bound: for each query, the interval of key coordinates that it allows.

Every test but the disc says `low(query) <= coordinate(key) < high(query)`.  The arrays here are
in the caller's token order; whoever works in another order indexes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cmask.runtime.closed_form import (
    Clause,
    Disc,
    End,
    Limit,
    RowTable,
    ShiftedWindow,
    Test,
    Tree,
)
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.derive.tokens import WHOLE, Array, Side, Tokens
from cmask.runtime.derive.trees import tours
from cmask.runtime.expressions import Expr, ExpressionError, Number, Value, evaluate

Bools = NDArray[np.bool_]
FAR = 2**40  # beyond every coordinate: an open end
MAX_INSTANCES = 32  # of a key region, that a clause is split into


@dataclass(frozen=True, eq=False)
class BoundLimit:
    """low[query] <= key[key] < high[query]; an end that is None is open."""

    key: Array
    low: Array | None
    high: Array | None


@dataclass(frozen=True, eq=False)
class BoundDisc:
    """Sum over axes of (key - query)^2 < radius_squared."""

    axes: tuple[tuple[Array, Array], ...]  # (query coordinates, key coordinates)
    radius_squared: int


@dataclass(frozen=True, eq=False)
class BoundClause:
    """One conjunction over the tokens of a bound mask.

    query_scope, key_scope   the scope instance of each token, or -1 where the token is in no
                             region of the clause
    """

    rule: int
    query_scope: NDArray[np.int32]
    key_scope: NDArray[np.int32]
    limits: tuple[BoundLimit, ...]
    discs: tuple[BoundDisc, ...]


def bind_clauses(clauses: Sequence[Clause], tokens: Tokens) -> list[BoundClause]:
    """Every clause over the tokens of a layout.

    Where a test's coordinate is not ascending over all keys of a clause, but is within each
    region, or within each of a few region instances, the clause is split so that its parts are
    row intervals.
    """
    bound: list[BoundClause] = []
    for clause in clauses:
        whole = _bind_clause(clause, tokens)
        if len(clause.keys) > 1 and not all(map(is_interval, whole)):
            parts = [replace(clause, keys=(key,)) for key in clause.keys]
            whole = [b for part in parts for b in _bind_clause(part, tokens)]
        bound += [part for b in whole for part in _by_instance(b, tokens)]
    return [b for b in bound if (b.query_scope >= 0).any() and (b.key_scope >= 0).any()]


def _by_instance(clause: BoundClause, tokens: Tokens) -> list[BoundClause]:
    """The clause for each instance of its key region, if they are few and that makes intervals.

    `base sees draft: self` with a handful of drafts is such a clause: offsets begin again in
    each draft.
    """
    if is_interval(clause):
        return [clause]
    segment = tokens.segment("k")
    instances = np.unique(segment[clause.key_scope >= 0])
    if not 1 < len(instances) <= MAX_INSTANCES:
        return [clause]
    parts = [
        replace(clause, key_scope=np.where(segment == i, clause.key_scope, np.int32(-1)))
        for i in instances
    ]
    return parts if all(map(is_interval, parts)) else [clause]


def is_interval(clause: BoundClause) -> bool:
    """Whether each query's keys are one interval of the clause's keys in token order."""
    return not clause.discs and all(is_ascending(clause, limit.key) for limit in clause.limits)


def is_ascending(clause: BoundClause, coordinate: Array) -> bool:
    """Whether a key coordinate never falls along the clause's keys within a scope instance."""
    keys = np.flatnonzero(clause.key_scope >= 0)
    scope, values = clause.key_scope[keys], coordinate[keys]
    return bool(((np.diff(values) >= 0) | (np.diff(scope) != 0)).all())


def visible(clauses: Sequence[BoundClause], queries: Array, keys: Array) -> Bools:
    """bool[len(queries), len(keys)]: which pairs of token indices are visible."""
    seen = np.zeros((len(queries), len(keys)), bool)
    for clause in clauses:
        rows = np.flatnonzero(clause.query_scope[queries] >= 0)
        columns = np.flatnonzero(clause.key_scope[keys] >= 0)
        if len(rows) and len(columns):
            seen[np.ix_(rows, columns)] |= clause_visible(clause, queries[rows], keys[columns])
    return seen


def clause_visible(clause: BoundClause, queries: Array, keys: Array) -> Bools:
    """bool[len(queries), len(keys)] of one clause, tokens outside its regions included."""
    scope = clause.query_scope[queries]
    seen = (scope[:, None] == clause.key_scope[keys]) & (scope >= 0)[:, None]
    for limit in clause.limits:
        coordinate = limit.key[keys]
        if limit.low is not None:
            seen &= limit.low[queries][:, None] <= coordinate
        if limit.high is not None:
            seen &= coordinate < limit.high[queries][:, None]
    for disc in clause.discs:
        distance = np.zeros(seen.shape, np.int64)
        for query, key in disc.axes:
            distance += (query[queries][:, None] - key[keys]) ** 2
        seen &= distance < disc.radius_squared
    return seen


def _bind_clause(clause: Clause, tokens: Tokens) -> list[BoundClause]:
    scope = clause.scope or WHOLE
    sides: tuple[tuple[Side, tuple[str, ...]], ...] = (("q", clause.queries), ("k", clause.keys))
    scopes = {
        side: np.where(tokens.is_in(side, regions), tokens.scope(side, scope), -1).astype(np.int32)
        for side, regions in sides
    }
    binder = _TestBinder(tokens, scope)
    return [
        BoundClause(
            rule=clause.rule,
            query_scope=scopes["q"],
            key_scope=scopes["k"],
            limits=tuple(t for t in tests if isinstance(t, BoundLimit)),
            discs=tuple(t for t in tests if isinstance(t, BoundDisc)),
        )
        for tests in binder.alternatives(clause.tests)
    ]


@dataclass(frozen=True, eq=False)
class _TestBinder:
    """Evaluates tests over the tokens, within one scope."""

    tokens: Tokens
    scope: str

    def alternatives(self, tests: Sequence[Test]) -> Iterator[tuple[BoundLimit | BoundDisc, ...]]:
        """The tests as conjunctions: a `rows` table is one alternative per interval."""
        for choice in itertools.product(*(tuple(self.choices(test)) for test in tests)):
            yield tuple(itertools.chain.from_iterable(choice))

    def choices(self, test: Test) -> Iterator[tuple[BoundLimit | BoundDisc, ...]]:
        match test:
            case RowTable(table=table):
                index = self.tokens.key_index(self.scope)
                columns = self.tokens.row_intervals(table)
                yield (BoundLimit(index, None, columns[0]),)
                for i in range(1, len(columns), 2):
                    yield (BoundLimit(index, columns[i], columns[i + 1]),)
            case Tree(table=table):
                for first, stop, time in tours(self.tokens, table, self.scope):
                    yield BoundLimit(first, None, time + 1), BoundLimit(stop, time + 1, None)
            case _:
                yield (self.test(test),)

    def test(self, test: Limit | ShiftedWindow | Disc) -> BoundLimit | BoundDisc:
        tokens, scope = self.tokens, self.scope
        match test:
            case Limit(coordinate=name, low=low, high=high, modulus=modulus):
                key = tokens.coordinate("k", name, scope)
                if modulus is not None:
                    key = key % self.divisor(modulus)
                return BoundLimit(key, self.end(low), self.end(high))
            case ShiftedWindow(axis=axis, left=left, right=right, stride=stride):
                first, width = self.shifted(axis, left, right, stride)
                return BoundLimit(tokens.coordinate("k", axis, scope), first, first + width)
            case Disc(axes=axes, radius=radius):
                r = self.whole(radius)
                pairs = tuple(
                    (tokens.coordinate("q", a, scope), tokens.coordinate("k", a, scope))
                    for a in axes
                )
                return BoundDisc(pairs, min(r, 2**31) ** 2 if r > 0 else 0)

    def end(self, end: End | None) -> Array | None:
        if end is None:
            return None
        offset = self.number(end.offset)
        if abs(offset) >= FAR:
            return np.full(self.tokens.length("q"), FAR if offset > 0 else -FAR, np.int64)
        if end.table is not None:
            return self.entry(end.table) + int(offset)
        if end.coordinate is None:
            return np.full(self.tokens.length("q"), int(offset), np.int64)
        value = self.tokens.coordinate("q", end.coordinate, self.scope)
        if end.modulus is not None:
            value = value % self.divisor(end.modulus)
        return value // self.divisor(end.divisor) * self.divisor(end.scale) + int(offset)

    def entry(self, table: str) -> Array:
        return self.tokens.entry(table)

    def shifted(self, axis: str, left: Expr, right: Expr, stride: Expr) -> tuple[Array, int]:
        size = self.tokens.axis_size("q", axis)
        s, before = self.divisor(stride), self.whole(left)
        width = before + self.whole(right) + 1
        if before < 0 or width < before + 1:
            raise BindError(f"a window along `{axis}` that is moved at the edge cannot be negative")
        i = self.tokens.coordinate("q", axis, self.scope)
        leader = np.minimum(i // s * s + s // 2, size - 1)
        return np.clip(leader - before, 0, np.maximum(size - width, 0)), width

    def whole(self, expression: Expr) -> int:
        return int(min(max(self.number(expression), -FAR), FAR))

    def divisor(self, expression: Expr) -> int:
        value = self.number(expression)
        if not 1 <= value < FAR:
            raise BindError(f"a coordinate is divided by {value}: 1 to {FAR - 1:,} can be")
        return int(value)

    def number(self, expression: Expr) -> Number:
        return number(expression, self.tokens.names)


def number(expression: Expr, names: Mapping[str, Value]) -> Number:
    """The value of a number in a rule; raises `BindError` in words."""
    try:
        value = evaluate(expression, names)
    except ExpressionError as error:
        raise BindError(str(error)) from None
    if not isinstance(value, (int, float)):
        raise BindError(f"a rule needs one number here, not the list {value}")
    return value
