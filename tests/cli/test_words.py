"""Every pattern in closed form, as `cmask explain` words it."""

from __future__ import annotations

import pytest

from cmask.cli.words import clause_in_words, expression_in_words
from cmask.compiler.close import close
from cmask.compiler.resolve import resolve
from cmask.grammar.parser import parse
from cmask.grammar.source import Source
from cmask.runtime.closed_form import ClosedForm
from cmask.runtime.expressions import Call, Entry, Literal, Place, Ref

MASK = """
mask words {{
    param n = 4
    table cut[row]
    table spans[row]
    region x
    region grid[h, w]
    region block*
    group doc* {{ region text; text sees text: causal }}
    x sees x: until(cut[row])
    x sees x: rows(spans)
    {rule}
}}
"""


def _form(rule: str) -> ClosedForm:
    """The closed form of the mask with one more rule, its last."""
    source = Source("words.cmask", MASK.format(rule=rule))
    return close(resolve(parse(source), source))


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("x sees x: all", ["always"]),
        ("x sees x: causal", ["pos(k) <= pos(q)"]),
        ("x sees x: before(pos)", ["pos(k) < pos(q)"]),
        ("x sees x: self", ["offset(k) = offset(q)"]),
        ("x sees x: window(3, 0)", ["pos(k) >= pos(q) - 3, pos(k) <= pos(q)"]),
        ("x sees x: window(n, n)", ["pos(k) >= pos(q) - n, pos(k) <= pos(q) + n"]),
        ("x sees x: window(-1, inf)", ["pos(k) >= pos(q) + 1"]),
        ("x sees x: window(inf, inf)", ["always"]),
        ("x sees x: first(n)", ["offset(k) < n"]),
        ("x sees x: same(pos / n)", ["⌊pos(k) / n⌋ = ⌊pos(q) / n⌋"]),
        ("x sees x: upto(pos / 32)", ["⌊pos(k) / 32⌋ <= ⌊pos(q) / 32⌋"]),
        ("x sees x: window(pos / 8, 2, inf)", ["⌊pos(k) / 8⌋ >= ⌊pos(q) / 8⌋ - 2"]),
        ("x sees x: same(pos % n)", ["pos(k) % n = pos(q) % n"]),
        ("x sees x: until(cut[row])", ["pos(k) < cut[q]"]),
        ("x sees x: rows(spans)", ["k in the intervals of spans[q]"]),
        ("block sees block: same(block)", ["block(k) = block(q)"]),
        ("grid sees grid: disc(n)", ["(h(k) - h(q))² + (w(k) - w(q))² < n²"]),
        ("grid sees grid: disc(w, 3)", ["(w(k) - w(q))² < 3²"]),
        (
            "grid sees grid: window(h, 2, 1, edge=shift, stride=n)",
            ["h(k) from 2 before to 1 behind h(q), moved at the border, shared by n neighbours"],
        ),
        ("x sees x: causal & causal", ["pos(k) <= pos(q)"]),
        ("x sees x: first(4) | window(7, 0) & causal", [
            "offset(k) < 4",
            "pos(k) >= pos(q) - 7, pos(k) <= pos(q)",
        ]),
    ],
)  # fmt: skip
def test_a_pattern_has_words(rule: str, words: list[str]) -> None:
    form = _form(rule)
    last = len(form.rule_texts) - 1
    assert [clause_in_words(c) for c in form.clauses if c.rule == last] == words


def test_a_rule_in_a_group_names_its_scope() -> None:
    form = _form("x sees x: all")
    assert "same doc, pos(k) <= pos(q)" in [clause_in_words(c) for c in form.clauses]


def test_known_sizes_stand_as_numbers() -> None:
    form = _form("x sees x: window(n, 0)")
    assert clause_in_words(form.clauses[-1], {"n": 9}) == "pos(k) >= pos(q) - 9, pos(k) <= pos(q)"


def test_expressions_keep_their_brackets() -> None:
    difference = Call("-", (Ref("a"), Literal(1)))
    assert expression_in_words(Call("*", (difference, Literal(2)))) == "(a - 1) * 2"
    assert expression_in_words(Call("max", (Ref("a"), Literal(1)))) == "max(a, 1)"
    assert expression_in_words(Call("-", (difference,))) == "-(a - 1)"
    assert expression_in_words(Call("+", (Place("end", "x"), Entry("t", "row")))) == (
        "end(x) + t[row]"
    )
