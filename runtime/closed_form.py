"""A mask in closed form: where tokens lie, and which key coordinates a query's rules allow.

Small data without any size in it: the compiler writes it into the artifact, and the same table
drives the builder in numpy (`derive`) and any other builder.  A query sees a key when some
`Clause` holds: both tokens lie in regions of the clause, in one instance of its scope, every test
of the clause is met, and the query's head is one of the clause's.
"""

from __future__ import annotations

from dataclasses import dataclass

from cmask.runtime.expressions import ONE, ZERO, Expr


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a grid.  Its size is called by its name, unless an expression stands in place.

    `name` is None for an axis written as a bare expression: nothing can refer to it.
    """

    name: str | None
    size: Expr | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a region's tokens stand in `pos`.

    kind: "at" (all tokens at `position`), "from" (counting up from it), or "align_end" (the
    last query at the last key's `pos`; `position` is unused).
    """

    kind: str
    position: Expr = ZERO


@dataclass(frozen=True, slots=True)
class Order:
    """The token order that a kernel works in.  kind: "raster", "tile", "mod" or "auto"."""

    kind: str = "raster"
    sizes: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Region:
    """A named run of tokens, or a grid of them with the last axis fastest.

    side: "both", "query" or "key".  level: the level's name if starred, else None.
    size: an expression for a one-dimensional region of fixed size; None when the size is called
    by the region's own name (or by its axes' names).
    """

    name: str
    side: str = "both"
    level: str | None = None
    axes: tuple[Axis, ...] = ()
    size: Expr | None = None
    placement: Placement | None = None
    order: Order = Order()


@dataclass(frozen=True, slots=True)
class Group:
    """Regions and groups that lie together, repeated once per instance if starred."""

    name: str
    level: str | None
    items: tuple[Item, ...]


Item = Region | Group


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers that only the caller knows.

    index: "row" (an entry per query token of the regions `users`, in order), or a level's name
    (an entry per instance of the level in the whole sequence).
    """

    name: str
    index: str
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """One end of an interval of key coordinates, as a quasi-affine form of the query.

    value = scale * floor((coordinate(query) % modulus) / divisor) + offset

    Without `coordinate` the first term is 0; with `table` it is the entry of the query's row or
    level.  An `offset` of +-inf leaves that side open.
    """

    coordinate: str | None = None
    modulus: Expr | None = None
    divisor: Expr = ONE
    scale: Expr = ONE
    offset: Expr = ZERO
    table: str | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """low <= coordinate(key) % modulus < high; an end that is None is open.

    coordinate: "pos", "offset", an axis, or a level.
    """

    coordinate: str
    low: End | None
    high: End | None
    modulus: Expr | None = None


@dataclass(frozen=True, slots=True)
class ShiftedWindow:
    """A window along an axis that is moved at the border so that it never shrinks.

    With n the axis size and leader = min(floor(i / stride) * stride + floor(stride / 2), n - 1):
    low = clamp(leader - left, 0, max(n - (left + right + 1), 0)), and left + right + 1 keys from
    there.  Source: NATTEN's `stride` and window shift.
    """

    axis: str
    left: Expr
    right: Expr
    stride: Expr = ONE


@dataclass(frozen=True, slots=True)
class Disc:
    """Squared distance over `axes` strictly less than radius squared (as CLEAR)."""

    axes: tuple[str, ...]
    radius: Expr


@dataclass(frozen=True, slots=True)
class RowTable:
    """Row intervals over the scope's keys, counted by index.

    table: int[2 * m + 1, rows] F; visible = [0, F0) + [F1, F2) + ... (NVIDIA HSTU's `func`).
    """

    table: str


@dataclass(frozen=True, slots=True)
class Tree:
    """The key's offset is the query's or that of an ancestor.

    table: int[rows], the offset of each query's parent in its region instance; negative: a root.
    """

    table: str


Test = Limit | ShiftedWindow | Disc | RowTable | Tree


@dataclass(frozen=True, slots=True)
class Clause:
    """One conjunction of one rule.

    scope: the group whose instance both tokens share, or None for the whole sequence.
    rule: which of `ClosedForm.rule_texts` it comes from.
    heads: the query heads [start, stop) that it is for; None: all.
    """

    scope: str | None
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    tests: tuple[Test, ...]
    rule: int = 0
    heads: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """A whole mask.

    params: name and default (None: must be bound).  sizes: defaults of the sizes block, in the
    order in which they can be evaluated, as expressions of `seq`, of each other and of params.
    """

    name: str
    params: tuple[tuple[str, Expr | None], ...]
    tables: tuple[Table, ...]
    layout: tuple[Item, ...]
    clauses: tuple[Clause, ...]
    sizes: tuple[tuple[str, Expr], ...]
    rule_texts: tuple[str, ...]
