"""What was written: one node per construct.

Spans do not take part in equality: equal masks are equal wherever they were written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cmask.grammar.source import NOWHERE, Span


@dataclass(frozen=True, slots=True)
class Name:
    """An identifier; `all` too, where a rule lists regions."""

    text: str
    span: Span = field(default=NOWHERE, compare=False)


# ---------------------------------------------------------------------------- expressions


@dataclass(frozen=True, slots=True)
class Number:
    """`512`, `32k`, `32_768`, or `inf`."""

    value: int | float
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Reference:
    """A name used as a value."""

    name: str
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Operation:
    """`left + right` and the like, or `-right` (one operand)."""

    operator: str
    operands: tuple[Expression, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Items:
    """`[a, b]`."""

    items: tuple[Expression, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """`table[index]`."""

    table: Name
    index: Name
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Keyword:
    """`name=value` among arguments."""

    name: Name
    value: Expression
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Application:
    """`name(arguments)`: a function in an expression, or a pattern in a rule."""

    name: Name
    arguments: tuple[Expression | Keyword, ...]
    span: Span = field(default=NOWHERE, compare=False)


Expression = Number | Reference | Operation | Items | Entry | Application

# ---------------------------------------------------------------------------- patterns


@dataclass(frozen=True, slots=True)
class Everything:
    """`all` as a pattern."""

    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Both:
    """`a & b`."""

    parts: tuple[Pattern, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Either:
    """`a | b`."""

    parts: tuple[Pattern, ...]
    span: Span = field(default=NOWHERE, compare=False)


Pattern = Everything | Both | Either | Application

# ---------------------------------------------------------------------------- declarations


@dataclass(frozen=True, slots=True)
class Param:
    """`param name = default`."""

    name: Name
    default: Expression | None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Table:
    """`table name[index]`."""

    name: Name
    index: Name
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Clause:
    """What follows a region: `at P`, `from P`, `align W`, `order W(…)`, `stored W(…)`."""

    word: str
    value: Expression
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Region:
    """`query region name* as level [axes] clauses`."""

    name: Name
    side: str
    starred: bool
    level: Name | None
    axes: tuple[Expression, ...]
    clauses: tuple[Clause, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Group:
    """`group name* as level { items }`."""

    name: Name
    starred: bool
    level: Name | None
    items: tuple[Item, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Rule:
    """`queries sees keys: pattern`."""

    queries: tuple[Name, ...]
    keys: tuple[Name, ...]
    pattern: Pattern
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Heads:
    """`heads first..last { rules }`."""

    first: Number
    last: Number
    rules: tuple[Rule, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Size:
    """One `name = expression` of the sizes block."""

    name: Name
    value: Expression
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Sizes:
    """`sizes { … }`."""

    entries: tuple[Size, ...]
    span: Span = field(default=NOWHERE, compare=False)


Item = Param | Table | Region | Group | Rule | Heads | Sizes


@dataclass(frozen=True, slots=True)
class Mask:
    """`mask name { items }`."""

    name: Name
    items: tuple[Item, ...]
    span: Span = field(default=NOWHERE, compare=False)
