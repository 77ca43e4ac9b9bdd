"""Text -> syntax tree."""

from __future__ import annotations

import math
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol, cast

from cmask.grammar import syntax
from cmask.grammar.diagnostic import CmaskError, Diagnostic
from cmask.grammar.source import Source, Span
from cmask.grammar.syntax_errors import explain

if TYPE_CHECKING:
    from lark import Lark


def parse(source: Source) -> syntax.Mask:
    """The syntax tree of a text; raises `CmaskError` where it is none."""
    from lark.exceptions import UnexpectedInput

    try:
        tree = grammar().parse(source.text)
    except UnexpectedInput as error:
        raise CmaskError([explain(error, source)]) from None
    built: syntax.Mask = _Builder().build(cast(Node, tree))
    return built


@cache
def grammar(*, strict: bool = False) -> Lark:
    """The Lark parser; `strict` refuses any conflict in the grammar (for tests)."""
    from lark import Lark

    text = (files("cmask.grammar") / "cmask.lark").read_text(encoding="utf-8")
    return Lark(
        text,
        start="mask",
        parser="lalr",
        propagate_positions=True,
        strict=strict,
        maybe_placeholders=True,
    )


class Node(Protocol):
    """What we use of Lark's trees; the children are nodes, tokens or None."""

    data: str
    children: list[Any]
    meta: Any


_MAX_DEPTH = 100  # of nested nodes: later stages walk the tree by recursion
_SUFFIXES = {"k": 1 << 10, "M": 1 << 20}


def _number(text: str) -> int | None:
    """`32k` is 32,768; None if it is too large for any use."""
    digits = text.rstrip("kM").replace("_", "").lstrip("0") or "0"
    value = int(digits[:20]) * _SUFFIXES.get(text[-1], 1)
    return value if value < 1 << 62 else None


class _Builder:
    """Lark's tree -> our nodes; one method per rule of the grammar."""

    def __init__(self) -> None:
        self.depth = 0

    def build(self, tree: Node) -> Any:
        if self.depth == _MAX_DEPTH:
            raise _fault(tree, "too-deep", "this is nested too deep", "write it in parts")
        self.depth += 1
        node = getattr(self, str(tree.data))(tree)
        self.depth -= 1
        return node

    def all(self, trees: list[Any]) -> tuple[Any, ...]:
        return tuple(self.build(tree) for tree in trees if tree is not None)

    def mask(self, tree: Node) -> syntax.Mask:
        name, *items = tree.children
        return syntax.Mask(self.build(name), self.all(items), _span(tree))

    def param(self, tree: Node) -> syntax.Param:
        name, *default = tree.children
        value = self.build(default[0]) if default else None
        return syntax.Param(self.build(name), value, _span(tree))

    def table(self, tree: Node) -> syntax.Table:
        name, index = tree.children
        return syntax.Table(self.build(name), self.build(index), _span(tree))

    def region(self, tree: Node) -> syntax.Region:
        side, name, star, level, axes, *clauses = tree.children
        return syntax.Region(
            name=self.build(name),
            side="both" if side is None else str(side.children[0]),
            starred=star is not None,
            level=None if level is None else self.build(level),
            axes=() if axes is None else self.all(axes.children),
            clauses=self.all(clauses),
            span=_span(tree),
        )

    def clause(self, tree: Node) -> syntax.Clause:
        word, value = tree.children
        return syntax.Clause(str(word), self.build(value), _span(tree))

    def group(self, tree: Node) -> syntax.Group:
        name, star, level, *items = tree.children
        return syntax.Group(
            name=self.build(name),
            starred=star is not None,
            level=None if level is None else self.build(level),
            items=self.all(items),
            span=_span(tree),
        )

    def rule(self, tree: Node) -> syntax.Rule:
        queries, keys, pattern = tree.children
        return syntax.Rule(
            self.all(queries.children), self.all(keys.children), self.build(pattern), _span(tree)
        )

    def everything(self, tree: Node) -> syntax.Everything:
        return syntax.Everything(_span(tree))

    def both(self, tree: Node) -> syntax.Both:
        return syntax.Both(self.all(tree.children), _span(tree))

    def either(self, tree: Node) -> syntax.Either:
        return syntax.Either(self.all(tree.children), _span(tree))

    def bare(self, tree: Node) -> syntax.Application:
        return syntax.Application(self.build(tree.children[0]), (), _span(tree))

    def heads(self, tree: Node) -> syntax.Heads:
        first, last, *rules = tree.children
        return syntax.Heads(self.build(first), self.build(last), self.all(rules), _span(tree))

    def sizes(self, tree: Node) -> syntax.Sizes:
        return syntax.Sizes(self.all(tree.children), _span(tree))

    def size(self, tree: Node) -> syntax.Size:
        name, value = tree.children
        return syntax.Size(self.build(name), self.build(value), _span(tree))

    def sum(self, tree: Node) -> syntax.Operation:
        left, operator, right = tree.children
        return syntax.Operation(str(operator), self.all([left, right]), _span(tree))

    product = sum

    def negation(self, tree: Node) -> syntax.Expression:
        sign, operand = tree.children
        value: syntax.Expression = self.build(operand)
        return syntax.Operation("-", (value,), _span(tree)) if sign == "-" else value

    def number(self, tree: Node) -> syntax.Number:
        value = _number(str(tree.children[0]))
        if value is None:
            help = "numbers are below 2^62"
            raise _fault(tree, "bad-number", "this number is too large", help)
        return syntax.Number(value, _span(tree))

    def reference(self, tree: Node) -> syntax.Expression:
        name = self.build(tree.children[0])
        if name.text == "inf":
            return syntax.Number(math.inf, name.span)
        return syntax.Reference(name.text, name.span)

    def entry(self, tree: Node) -> syntax.Entry:
        table, index = tree.children
        return syntax.Entry(self.build(table), self.build(index), _span(tree))

    def items(self, tree: Node) -> syntax.Items:
        return syntax.Items(self.all(tree.children), _span(tree))

    def application(self, tree: Node) -> syntax.Application:
        name, *arguments = tree.children
        return syntax.Application(self.build(name), self.all(arguments), _span(tree))

    def keyword(self, tree: Node) -> syntax.Keyword:
        name, value = tree.children
        return syntax.Keyword(self.build(name), self.build(value), _span(tree))

    def name(self, tree: Node) -> syntax.Name:
        return syntax.Name(str(tree.children[0]), _span(tree))

    index = name

    def all_regions(self, tree: Node) -> syntax.Name:
        return syntax.Name("all", _span(tree))


def _fault(tree: Node, code: str, message: str, help: str) -> CmaskError:
    return CmaskError([Diagnostic(code, message, _span(tree), "here", help)])


def _span(tree: Node) -> Span:
    return Span(int(tree.meta.start_pos), int(tree.meta.end_pos))
