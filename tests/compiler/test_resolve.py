"""Syntax tree -> mask: what each construct means."""

from __future__ import annotations

import math

import pytest

from cmask.compiler import ir
from cmask.compiler.ir import Coordinate
from cmask.compiler.resolve import resolve, resolve_with_warnings
from cmask.grammar.diagnostic import CmaskError
from cmask.grammar.parser import parse
from cmask.grammar.source import Source
from cmask.runtime.closed_form import Axis, Group, Order, Placement, Region, Table
from cmask.runtime.expressions import ZERO, Call, Entry, Literal, Place, Ref


def resolved(body: str) -> ir.ResolvedMask:
    source = Source("mask.cmask", f"mask example {{\n{body}\n}}")
    return resolve(parse(source), source)


def codes(body: str) -> list[str]:
    """The codes of all faults, or of the warnings where there is none."""
    source = Source("mask.cmask", f"mask example {{\n{body}\n}}")
    try:
        return [d.code for d in resolve_with_warnings(parse(source), source)[1]]
    except CmaskError as error:
        return [d.code for d in error.diagnostics]


def region(text: str) -> Region:
    found = resolved(f"param n = 4; region other; {text}; all sees all: self").layout[1]
    assert isinstance(found, Region)
    return found


def pattern(text: str) -> ir.Pattern:
    mask = resolved(f"param n = 4; table cut[row]; region x*[h, w]; x sees x: {text}")
    return mask.rules[0].pattern


# ---------------------------------------------------------------------------- layout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("region x", Region("x")),
        ("region x[512]", Region("x", size=Literal(512))),
        ("region x[seq / 4]", Region("x", size=Call("/", (Ref("seq"), Literal(4))))),
        ("region x[n]", Region("x", size=Ref("n"))),
        ("region x[seq]", Region("x", size=Ref("seq"))),
        ("region x[other]", Region("x", size=Ref("other"))),
        ("region x[seq, 4]", Region("x", axes=(Axis(None, Ref("seq")), Axis(None, Literal(4))))),
        ("region x[h]", Region("x", axes=(Axis("h"),))),
        ("region x[h, 4]", Region("x", axes=(Axis("h"), Axis(None, Literal(4))))),
        ("region x*", Region("x", level="x")),
        ("region x* as block", Region("x", level="block")),
        ("query region x at 3", Region("x", "query", placement=Placement("at", Literal(3)))),
        ("key region x", Region("x", "key")),
        ("query region x align end", Region("x", "query", placement=Placement("align_end"))),
        ("query region x align start", Region("x", "query", placement=Placement("from", ZERO))),
        (
            "region x from end(other)",
            Region("x", placement=Placement("from", Place("end", "other"))),
        ),
        ("region x from len(x)", Region("x", placement=Placement("from", Place("len", "x")))),
        ("region x order mod(n)", Region("x", order=Order("mod", (Ref("n"),)))),
        (
            "region x[h, w] order tile(8, 16)",
            Region(
                "x", axes=(Axis("h"), Axis("w")), order=Order("tile", (Literal(8), Literal(16)))
            ),
        ),
        ("region x order auto", Region("x", order=Order("auto"))),
    ],
)
def test_a_region_says_where_its_tokens_lie(text: str, expected: Region) -> None:
    assert region(text) == expected


def test_a_region_can_be_placed_by_a_table() -> None:
    mask = resolved(
        "table start_of[row]; table first[draft]; query region x at start_of[row]; "
        "region draft* from first[draft]; all sees all: causal"
    )
    x, draft = mask.layout
    assert isinstance(x, Region)
    assert isinstance(draft, Region)
    assert x.placement == Placement("at", Entry("start_of", "row"))
    assert draft.placement == Placement("from", Entry("first", "draft"))
    assert mask.tables == (Table("start_of", "row", ("x",)), Table("first", "draft"))


def test_groups_hold_their_regions_and_have_levels() -> None:
    mask = resolved("group g* { region x; group h { region y } }; all sees all: same(g)")
    assert mask.layout == (Group("g", "g", (Region("x"), Group("h", None, (Region("y"),)))),)


def test_the_same_axis_may_stand_in_several_grids_and_a_level_on_several_regions() -> None:
    assert codes("region a[h, w]; region b[h, w]; a, b sees a, b: same(h)") == []
    assert codes("region a* as part; region b* as part; a sees b: same(part)") == []


# ---------------------------------------------------------------------------- rules


def test_a_rule_relates_one_instance_of_the_group_that_it_is_written_in() -> None:
    mask = resolved(
        "region first\ngroup g* {\n  region x\n  group h* {\n    region y\n    y sees   all: #\n"
        "      causal\n  }\n  all sees x: all\n}\nall sees all: self"
    )
    assert [(rule.scope, rule.queries, rule.keys) for rule in mask.rules] == [
        ("h", ("y",), ("y",)),
        ("g", ("x", "y"), ("x",)),
        (None, ("first", "x", "y"), ("first", "x", "y")),
    ]
    assert mask.rules[0].text == "7: y sees all: causal"


def test_all_leaves_out_the_regions_of_the_other_side() -> None:
    mask = resolved("query region q; key region k; region x; all sees all: all")
    assert (mask.rules[0].queries, mask.rules[0].keys) == (("q", "x"), ("k", "x"))


def test_a_region_named_twice_counts_once() -> None:
    assert resolved("region x; x, all, x sees x, x: all").rules[0].queries == ("x",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", ir.All()),
        ("causal", ir.Upto(Coordinate("pos"))),
        ("self", ir.Same(Coordinate("offset"))),
        ("same(x)", ir.Same(Coordinate("x"))),
        ("before(pos / 16)", ir.Before(Coordinate("pos", divisor=Literal(16)))),
        ("upto(h % n)", ir.Upto(Coordinate("h", modulus=Ref("n")))),
        ("window(15, 0)", ir.Window(Coordinate("pos"), Literal(15), Literal(0))),
        ("window(n, inf)", ir.Window(Coordinate("pos"), Ref("n"), Literal(math.inf))),
        ("window(w, -1, 5)", ir.Window(Coordinate("w"), Literal(-1), Literal(5))),
        ("window(h, 3, 4, edge=shift)", ir.ShiftedWindow("h", Literal(3), Literal(4))),
        (
            "window(h, 3, 4, edge=shift, stride=2)",
            ir.ShiftedWindow("h", Literal(3), Literal(4), Literal(2)),
        ),
        ("first(4)", ir.First(Literal(4))),
        ("disc(n)", ir.Disc(("h", "w"), Ref("n"))),
        ("disc(w, 3)", ir.Disc(("w",), Literal(3))),
        ("until(cut[row])", ir.Until("cut")),
        ("rows(cut)", ir.Rows("cut")),
        ("tree(cut[row])", ir.Tree("cut")),
        (
            "same(h) & (all | self)",
            ir.And((ir.Same(Coordinate("h")), ir.Or((ir.All(), ir.Same(Coordinate("offset")))))),
        ),
    ],
)
def test_a_pattern_compares_coordinates(text: str, expected: ir.Pattern) -> None:
    assert pattern(text) == expected


def test_the_users_of_a_row_table_are_its_query_regions_in_layout_order() -> None:
    mask = resolved(
        "table cut[row]; region a; region b; region c; "
        "c sees all: until(cut[row]) & causal; a sees b: causal | until(cut[row]); b sees c: all"
    )
    assert mask.tables == (Table("cut", "row", ("a", "c")),)


# ---------------------------------------------------------------------------- sizes


def test_sizes_stand_in_an_order_in_which_each_needs_only_earlier_ones() -> None:
    mask = resolved(
        "param n = 4; region a; region b; a sees b: all; "
        "sizes { b = seq - a; half = seq / 2; a = half - n }"
    )
    assert [name for name, _ in mask.sizes] == ["half", "a", "b"]
    assert mask.params == (("n", Literal(4)),)


def test_the_number_of_instances_and_of_table_entries_may_have_defaults() -> None:
    assert (
        codes(
            "table cut[row]; group g* { region x; x sees x: until(cut[row]) }; "
            "sizes { g = 2; x = 3; cut = [1, 2, 3] * 2 }"
        )
        == []
    )


# ---------------------------------------------------------------------------- faults


def test_all_faults_are_reported_at_once_in_source_order_each_once() -> None:
    assert codes(
        "region x[h, w]\nregion x\nx sees y: casual\nx sees x: same(z) & first(0)\n"
        "y sees x: disc()\nsizes { hh = 4 }"
    ) == [
        "duplicate-name", "unknown-region", "unknown-pattern", "unknown-coordinate", "empty-first",
        "unknown-region", "bad-argument", "unknown-size",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["window(-inf, inf)", "window(inf, -inf)", "window(-5, 4)", "window(h, 0, -1, edge=shift)"],
)
def test_a_window_that_can_hold_no_key_is_a_fault(text: str) -> None:
    assert codes(f"region x[h, w]; x sees x: {text}") == ["empty-window"]


@pytest.mark.parametrize("by", ["0", "-1", "inf"])
def test_a_coordinate_is_divided_by_a_positive_number_only(by: str) -> None:
    assert codes(f"region x; x sees x: same(pos / {by})") == ["bad-divisor"]


def test_queries_without_keys_have_a_pos_only_where_the_mask_gives_them_one() -> None:
    for text in ("causal", "window(4, 0)", "same(pos / 4)", "window(pos % 2, 0, 0)"):
        assert codes(f"query region q; key region k; q sees k: {text}") == ["unplaced-query"]
        assert codes(f"query region q align end; key region k; q sees k: {text}") == []
    for text in ("all", "self", "first(4)", "until(cut[row])"):
        body = f"table cut[row]; query region q; key region k; q sees k: {text}"
        assert set(codes(body)) <= {"unused-table"}


def test_a_level_is_a_coordinate_only_outside_its_own_instances() -> None:
    group = "group g* {{ region x; {} }} {}"
    assert codes(group.format("x sees x: same(g)", "")) == ["level-outside-rule"]
    assert codes(group.format("", "x sees x: same(g)")) == []
    assert codes(group.format("", "x sees x: same(x)")) == ["unknown-coordinate"]


def test_a_helper_of_a_helper_is_used() -> None:
    assert codes("region x; x sees x: all; sizes { a = 1; b = a; x = b }") == []
    assert codes("region x; x sees x: all; sizes { a = 1; x = 2 }") == ["unknown-size"]


def test_a_parameter_is_used_wherever_an_expression_names_it() -> None:
    for body in (
        "region x[n]; x sees x: all",
        "region x from n; x sees x: causal",
        "region x order mod(n); x sees x: causal",
        "region x; x sees x: same(pos / n)",
        "region x; x sees x: all; sizes { x = n }",
    ):
        assert codes(f"param n = 4; {body}") == []
    assert codes("param n = 4; region x; x sees x: all # n") == ["unused-param"]


@pytest.mark.parametrize(
    "body",
    [
        "group g* { region x*; x sees x: all }; sizes { x = [[1], [2, 3]] }",
        "group g* { group h* { region x; x sees x: all } }; sizes { h = [2, 3]; x = 4 }",
        "region x*[h, w]; x sees x: all; sizes { h = [2, 3]; w = 4 }",
        "region a; region x*[a]; x sees a: all; sizes { a = 4; x = 2 }",
        "region a; region x[a]; x sees a: all; sizes { a = seq / 2 }",
        "region x*; region y; x, y sees x: all; sizes { x = [1] * 2 + [3]; y = sum(x) }",
        "table t[g]; group g* { region x from t[g] + 1 }; x sees x: causal",
        "query region q align end; region a; region b from end(a); q, b sees a, b: causal",
        "group g* { query region q align end; region b at end(a); region a }; all sees all: causal",
    ],
)
def test_what_the_language_allows_is_no_fault(body: str) -> None:
    assert codes(body) == []
