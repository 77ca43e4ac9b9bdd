"""Text -> syntax tree: every construct, as it is written."""

from __future__ import annotations

import math

import pytest

from cmask.grammar import syntax, syntax_errors
from cmask.grammar.diagnostic import CmaskError
from cmask.grammar.parser import grammar, parse
from cmask.grammar.source import Source
from cmask.grammar.syntax import (
    Application,
    Both,
    Clause,
    Either,
    Entry,
    Everything,
    Heads,
    Items,
    Keyword,
    Name,
    Number,
    Operation,
    Reference,
    Region,
    Rule,
)


def items(body: str) -> tuple[syntax.Item, ...]:
    return parse(Source("mask.cmask", f"mask example {{ {body} }}")).items


def region(text: str) -> Region:
    (found,) = items(text)
    assert isinstance(found, Region)
    return found


def pattern(text: str) -> syntax.Pattern:
    (found,) = items(f"text sees text: {text}")
    assert isinstance(found, Rule)
    return found.pattern


def expression(text: str) -> syntax.Expression:
    (found,) = items(f"param value = {text}")
    assert isinstance(found, syntax.Param)
    assert found.default is not None
    return found.default


def fault(text: str) -> str:
    with pytest.raises(CmaskError) as caught:
        parse(Source("mask.cmask", text))
    (diagnostic,) = caught.value.diagnostics
    return diagnostic.code


def test_the_grammar_has_no_conflict() -> None:
    grammar(strict=True)


@pytest.mark.parametrize(
    ("text", "value"),
    [("512", 512), ("32k", 32768), ("1M", 1048576), ("32_768", 32768), ("inf", math.inf)],
)
def test_numbers_have_suffixes_of_two_to_the_ten(text: str, value: float) -> None:
    assert expression(text) == Number(value)


def test_a_region_may_stand_on_one_side_be_starred_have_axes_and_clauses() -> None:
    assert region("region text") == Region(Name("text"), "both", False, None, (), ())
    assert region("query region q align end").side == "query"
    assert region("key region cache").side == "key"
    assert region("region noisy* as block").level == Name("block")
    assert region("region image[h, w / 2]").axes == (
        Reference("h"),
        Operation("/", (Reference("w"), Number(2))),
    )
    assert region("region x from end(y) order tile(8, 16)").clauses == (
        Clause("from", Application(Name("end"), (Reference("y"),))),
        Clause("order", Application(Name("tile"), (Number(8), Number(16)))),
    )


@pytest.mark.parametrize("word", ["at", "from", "align", "order", "stored", "causal", "window"])
def test_words_that_are_not_reserved_can_name_a_region(word: str) -> None:
    first, second, rule = items(f"region {word} region other {word}, other sees {word}: all")
    assert isinstance(first, Region)
    assert isinstance(second, Region)
    assert isinstance(rule, Rule)
    assert first.name == Name(word)
    assert second.clauses == ()
    assert rule.queries == (Name(word), Name("other"))


@pytest.mark.parametrize(
    "word",
    syntax_errors.RESERVED,
)
def test_reserved_words_are_no_names(word: str) -> None:
    assert fault(f"mask example {{ region {word} }}") == "reserved-word"


def test_names_may_begin_with_a_reserved_word() -> None:
    assert region("region keys").name == Name("keys")
    assert region("region all_text").name == Name("all_text")


def test_a_parameter_needs_no_default() -> None:
    assert items("param radius; param other = 4") == (
        syntax.Param(Name("radius"), None),
        syntax.Param(Name("other"), Number(4)),
    )


def test_groups_nest_and_rules_stand_where_they_are_written() -> None:
    (group,) = items("group a* as outer { group b { region x; x sees all: all } }")
    assert isinstance(group, syntax.Group)
    assert (group.starred, group.level) == (True, Name("outer"))
    (inner,) = group.items
    assert isinstance(inner, syntax.Group)
    assert not inner.starred
    assert inner.items[1] == Rule((Name("x"),), (Name("all"),), Everything())


def test_and_binds_tighter_than_or() -> None:
    a, b, c = (Application(Name(name), ()) for name in "abc")
    assert pattern("a | b & c") == Either((a, Both((b, c))))
    assert pattern("(a | b) & c") == Both((Either((a, b)), c))
    assert pattern("a & b & c") == Both((a, b, c))


def test_a_pattern_takes_coordinates_numbers_entries_and_keywords() -> None:
    assert pattern("same(pos % 4)") == Application(
        Name("same"), (Operation("%", (Reference("pos"), Number(4))),)
    )
    assert pattern("until(cut[row])") == Application(
        Name("until"), (Entry(Name("cut"), Name("row")),)
    )
    assert pattern("window(h, -1, inf, edge=shift)") == Application(
        Name("window"),
        (
            Reference("h"),
            Operation("-", (Number(1),)),
            Number(math.inf),
            Keyword(Name("edge"), Reference("shift")),
        ),
    )


def test_products_bind_tighter_than_sums_and_both_group_to_the_left() -> None:
    a, b, c = (Reference(name) for name in "abc")
    assert expression("a - b + c") == Operation("+", (Operation("-", (a, b)), c))
    assert expression("a + b * c") == Operation("+", (a, Operation("*", (b, c))))
    assert expression("a * b / c") == Operation("/", (Operation("*", (a, b)), c))
    assert expression("(a + b) * -c") == Operation(
        "*", (Operation("+", (a, b)), Operation("-", (c,)))
    )


def test_lists_repeat_nest_and_may_end_in_a_comma() -> None:
    assert expression("[1, [2, 3],] * 4") == Operation(
        "*", (Items((Number(1), Items((Number(2), Number(3))))), Number(4))
    )
    assert expression("[]") == Items(())


def test_constructs_of_a_later_version_are_read() -> None:
    table, node, heads = items(
        "table birth[key]; region node order role stored morton; "
        "heads 0..15 { node sees node: tree(parent[row]); node sees node: seen(birth[key]) }"
    )
    assert table == syntax.Table(Name("birth"), Name("key"))
    assert isinstance(node, Region)
    assert [clause.word for clause in node.clauses] == ["order", "stored"]
    assert isinstance(heads, Heads)
    assert (heads.first, heads.last, len(heads.rules)) == (Number(0), Number(15), 2)


def test_a_byte_order_mark_at_the_head_of_a_file_has_no_meaning() -> None:
    assert parse(Source("a", "\ufeffmask m { }")) == parse(Source("b", "mask m { }"))


def test_newlines_semicolons_and_comments_have_no_meaning() -> None:
    one = parse(Source("a", "mask m { region text; text sees text: causal; sizes { text = 4; } }"))
    other = parse(
        Source("b", "mask m{region text # a comment\r\n\ttext sees text:\n causal sizes{text=4}}")
    )
    assert one == other


def test_spans_point_at_the_text_of_a_node() -> None:
    source = Source("a", "mask m { region text\n  text sees text: causal & first( 4 ) }")
    _, rule = parse(source).items
    assert isinstance(rule, Rule)
    assert isinstance(rule.pattern, Both)
    assert source.slice(rule.span) == "text sees text: causal & first( 4 )"
    assert source.slice(rule.pattern.parts[1].span) == "first( 4 )"
    assert source.slice(rule.keys[0].span) == "text"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "unexpected-end"),
        ("mask", "unexpected-end"),
        ("mask m { region text", "unclosed-brace"),
        ("mask m { } mask n { }", "unexpected-token"),
        ("mask m { region text[] }", "unexpected-token"),
        ("mask m { text sees text causal }", "missing-colon"),
        ("mask m { text sees text: not causal }", "foreign-word"),
        ("mask m { param x = 1.5 }", "bad-number"),
        ("mask m { param x = 5G }", "bad-number"),
        ("mask m { text sees text: all causal }", "missing-sees"),
        ("mask m { text sees text }", "missing-colon"),
        ("mask m { text sees text sizes { } }", "missing-colon"),
        ("mask m { text sess text: all }", "misspelled-word"),
        ("Mask m { }", "misspelled-word"),
        ("mask m { size { } }", "misspelled-word"),
        ("mask m { text sees text: causal || self }", "foreign-word"),
        ("mask m { text sees text: !causal }", "foreign-word"),
        ("// masks\nmask m { }", "foreign-word"),
        ("mask m { param x = " + "9" * 5000 + " }", "bad-number"),
        ("mask m { param x = " + "1 + " * 5000 + "1 }", "too-deep"),
        ("mask m { x sees x: " + "(all | all & " * 500 + "all" + ")" * 500 + " }", "too-deep"),
        ("mask m { " + "group g { " * 500 + "} " * 500 + "}", "too-deep"),
        ("mask m { region t\ue000 }", "unknown-character"),
        ("mask m { region \x00 }", "unknown-character"),
    ],
)
def test_a_text_that_is_no_mask_is_refused_in_words(text: str, code: str) -> None:
    assert fault(text) == code


def test_parentheses_nest_freely() -> None:
    assert expression("(" * 400 + "4" + ")" * 400) == Number(4)


def test_words_of_a_comment_are_not_taken_for_words_of_the_mask() -> None:
    assert fault("mask m { text sees text # this or\n causal }") == "missing-colon"
    assert fault("mask m { # regoin\n text ]") == "missing-sees"
