"""A mask as it is meant: names resolved and checked, patterns as a small algebra.

The layout (regions, groups, axes) is `cmask.runtime.closed_form`'s own: it means the same from
here to the kernel.  Nodes carry no span: every fault of the text is reported while resolving.
"""

from __future__ import annotations

from dataclasses import dataclass

from cmask.runtime.closed_form import Item, Table
from cmask.runtime.expressions import ONE, Expr


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A coordinate of a token: `name`, `name / divisor` or `name % modulus` (never both).

    name: "pos", "offset", an axis, or a level.
    """

    name: str
    divisor: Expr | None = None
    modulus: Expr | None = None


@dataclass(frozen=True, slots=True)
class All:
    """Every key."""


@dataclass(frozen=True, slots=True)
class Same:
    """c(k) = c(q)."""

    coordinate: Coordinate


@dataclass(frozen=True, slots=True)
class Before:
    """c(k) < c(q)."""

    coordinate: Coordinate


@dataclass(frozen=True, slots=True)
class Upto:
    """c(k) <= c(q)."""

    coordinate: Coordinate


@dataclass(frozen=True, slots=True)
class Window:
    """-left <= c(k) - c(q) <= right: inclusive distances, negative and inf allowed."""

    coordinate: Coordinate
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class ShiftedWindow:
    """NATTEN's window along an axis: moved at the border, shared by `stride` neighbours."""

    axis: str
    left: Expr
    right: Expr
    stride: Expr = ONE


@dataclass(frozen=True, slots=True)
class First:
    """k is among the first `count` tokens of its region instance."""

    count: Expr


@dataclass(frozen=True, slots=True)
class Disc:
    """Squared distance over `axes` < radius squared."""

    axes: tuple[str, ...]
    radius: Expr


@dataclass(frozen=True, slots=True)
class Until:
    """pos(k) < the table's entry of the query's row or level."""

    table: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Row intervals over the scope's keys from a table."""

    table: str


@dataclass(frozen=True, slots=True)
class Tree:
    """k is q or an ancestor of q: the table's entry is the offset of a query's parent."""

    table: str


@dataclass(frozen=True, slots=True)
class And:
    """Every part holds."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Some part holds."""

    parts: tuple[Pattern, ...]


Pattern = (
    All
    | Same
    | Before
    | Upto
    | Window
    | ShiftedWindow
    | First
    | Disc
    | Until
    | Rows
    | Tree
    | And
    | Or
)


@dataclass(frozen=True, slots=True)
class Rule:
    """`queries sees keys: pattern`, between tokens of one instance of `scope`.

    scope: the name of the group that the rule is written in, or None.
    heads: the query heads [start, stop) that it is for; None: all.
    text: the rule as written, with its line number, for people ("12: answer sees prompt: all").
    """

    scope: str | None
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    pattern: Pattern
    text: str = ""
    heads: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ResolvedMask:
    """A whole mask; see `cmask.runtime.closed_form.ClosedForm` for params and sizes."""

    name: str
    params: tuple[tuple[str, Expr | None], ...]
    tables: tuple[Table, ...]
    layout: tuple[Item, ...]
    rules: tuple[Rule, ...]
    sizes: tuple[tuple[str, Expr], ...]
