"""Text -> syntax tree."""

from __future__ import annotations

import math
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from cmask.grammar import syntax
from cmask.grammar.diagnostic import CmaskError
from cmask.grammar.source import Source, Span
from cmask.grammar.syntax_errors import explain

if TYPE_CHECKING:
    from lark import Lark, Token, Tree


def parse(source: Source) -> syntax.Mask:
    """The syntax tree of a text; raises `CmaskError` where it is none."""
    from lark.exceptions import UnexpectedInput

    try:
        tree = grammar().parse(source.text)
    except UnexpectedInput as error:
        raise CmaskError([explain(error, source)]) from None
    return _Builder().mask(tree)


@cache
def grammar(*, strict: bool = False) -> Lark:
    """The Lark parser; `strict` refuses any conflict in the grammar (for tests)."""
    from lark import Lark

    text = (files("cmask.grammar") / "cmask.lark").read_text(encoding="utf-8")
    return Lark(
        text, start="mask", parser="lalr", propagate_positions=True, strict=strict, maybe_placeholders=True
    )


_SUFFIXES = {"k": 1 << 10, "M": 1 << 20}


def _number(text: str) -> int:
    """`32k` is 32,768."""
    digits = text.rstrip("kM").replace("_", "")
    return int(digits) * _SUFFIXES.get(text[-1], 1)


class _Builder:
    """Lark's tree -> our nodes; one method per rule of the grammar."""

    def build(self, tree: Tree[Token]) -> Any:
        return getattr(self, str(tree.data))(tree)

    def all(self, trees: list[Any]) -> tuple[Any, ...]:
        return tuple(self.build(tree) for tree in trees if tree is not None)

    def mask(self, tree: Tree[Token]) -> syntax.Mask:
        name, *items = tree.children
        return syntax.Mask(self.build(name), self.all(items), _span(tree))

    def param(self, tree: Tree[Token]) -> syntax.Param:
        name, default = tree.children
        value = None if default is None else self.build(default)
        return syntax.Param(self.build(name), value, _span(tree))

    def table(self, tree: Tree[Token]) -> syntax.Table:
        name, index = tree.children
        return syntax.Table(self.build(name), self.build(index), _span(tree))

    def region(self, tree: Tree[Token]) -> syntax.Region:
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

    def clause(self, tree: Tree[Token]) -> syntax.Clause:
        word, value = tree.children
        return syntax.Clause(str(word), self.build(value), _span(tree))

    def group(self, tree: Tree[Token]) -> syntax.Group:
        name, star, level, *items = tree.children
        return syntax.Group(
            name=self.build(name),
            starred=star is not None,
            level=None if level is None else self.build(level),
            items=self.all(items),
            span=_span(tree),
        )

    def rule(self, tree: Tree[Token]) -> syntax.Rule:
        queries, keys, pattern = tree.children
        return syntax.Rule(
            self.all(queries.children), self.all(keys.children), self.pattern(pattern), _span(tree)
        )

    def pattern(self, tree: Tree[Token]) -> syntax.Pattern:
        match str(tree.data):
            case "everything":
                return syntax.Everything(_span(tree))
            case "both":
                return syntax.Both(tuple(map(self.pattern, tree.children)), _span(tree))
            case "either":
                return syntax.Either(tuple(map(self.pattern, tree.children)), _span(tree))
            case "bare":
                return syntax.Application(self.build(tree.children[0]), (), _span(tree))
        built: syntax.Application = self.build(tree)
        return built

    def heads(self, tree: Tree[Token]) -> syntax.Heads:
        first, last, *rules = tree.children
        return syntax.Heads(self.build(first), self.build(last), self.all(rules), _span(tree))

    def sizes(self, tree: Tree[Token]) -> syntax.Sizes:
        return syntax.Sizes(self.all(tree.children), _span(tree))

    def size(self, tree: Tree[Token]) -> syntax.Size:
        name, value = tree.children
        return syntax.Size(self.build(name), self.build(value), _span(tree))

    def sum(self, tree: Tree[Token]) -> syntax.Operation:
        left, operator, right = tree.children
        return syntax.Operation(str(operator), self.all([left, right]), _span(tree))

    product = sum

    def negation(self, tree: Tree[Token]) -> syntax.Expression:
        sign, operand = tree.children
        value: syntax.Expression = self.build(operand)
        return syntax.Operation("-", (value,), _span(tree)) if sign == "-" else value

    def number(self, tree: Tree[Token]) -> syntax.Number:
        return syntax.Number(_number(str(tree.children[0])), _span(tree))

    def reference(self, tree: Tree[Token]) -> syntax.Expression:
        name = self.build(tree.children[0])
        if name.text == "inf":
            return syntax.Number(math.inf, name.span)
        return syntax.Reference(name.text, name.span)

    def entry(self, tree: Tree[Token]) -> syntax.Entry:
        table, index = tree.children
        return syntax.Entry(self.build(table), self.build(index), _span(tree))

    def items(self, tree: Tree[Token]) -> syntax.Items:
        return syntax.Items(self.all(tree.children), _span(tree))

    def application(self, tree: Tree[Token]) -> syntax.Application:
        name, *arguments = tree.children
        return syntax.Application(self.build(name), self.all(arguments), _span(tree))

    def keyword(self, tree: Tree[Token]) -> syntax.Keyword:
        name, value = tree.children
        return syntax.Keyword(self.build(name), self.build(value), _span(tree))

    def name(self, tree: Tree[Token]) -> syntax.Name:
        return syntax.Name(str(tree.children[0]), _span(tree))

    index = name

    def all_regions(self, tree: Tree[Token]) -> syntax.Name:
        return syntax.Name("all", _span(tree))


def _span(tree: Tree[Token]) -> Span:
    return Span(int(tree.meta.start_pos), int(tree.meta.end_pos))
