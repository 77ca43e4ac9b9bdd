"""What masks mean, drawn by hand: a row a query, a column a key, `#` where it is seen."""

from __future__ import annotations

import numpy as np
import pytest

from cmask.compiler.resolve import resolve
from cmask.compiler.semantics import dense, is_visible, key_count, query_count
from cmask.grammar.parser import parse
from cmask.grammar.source import Source
from cmask.runtime.expressions import ExpressionError, Value


def drawn(body: str, sizes: dict[str, Value]) -> str:
    source = Source("drawn.cmask", f"mask drawn {{ {body} }}")
    seen = dense(resolve(parse(source), source), sizes)
    return " ".join("".join("#" if k else "." for k in row) for row in seen)


def of_text(pattern: str, size: int) -> str:
    return drawn(f"region text; text sees text: {pattern}", {"text": size})


@pytest.mark.parametrize(
    ("pattern", "picture"),
    [
        ("all", "##### ##### ##### ##### #####"),
        ("causal", "#.... ##... ###.. ####. #####"),
        ("self", "#.... .#... ..#.. ...#. ....#"),
        ("before(pos)", "..... #.... ##... ###.. ####."),
        ("same(pos / 2)", "##... ##... ..##. ..##. ....#"),
        ("upto(pos / 2)", "##... ##... ####. ####. #####"),
        ("same(pos % 2)", "#.#.# .#.#. #.#.# .#.#. #.#.#"),
        ("window(1, 0)", "#.... ##... .##.. ..##. ...##"),
        ("window(0, inf)", "##### .#### ..### ...## ....#"),
        ("window(2, -1)", "..... #.... ##... .##.. ..##."),
        ("window(-1, 2)", ".##.. ..##. ...## ....# ....."),
        ("window(pos / 2, 1, 0)", "##... ##... ####. ####. ..###"),
        ("first(2)", "##... ##... ##... ##... ##..."),
        ("causal & (first(1) | window(1, 0))", "#.... ##... ###.. #.##. #..##"),
        ("first(1) | self & same(pos / 2)", "#.... ##... #.#.. #..#. #...#"),
    ],
)
def test_a_pattern_shows_what_it_says(pattern: str, picture: str) -> None:
    assert of_text(pattern, 5) == picture


def test_both_binds_tighter_than_either() -> None:
    assert of_text("first(1) | self & first(2)", 3) == of_text("first(1) | (self & first(2))", 3)


def test_nothing_is_visible_by_default_and_rules_add_up() -> None:
    assert drawn("region text", {"text": 2}) == ".. .."
    both = "region text; text sees text: self; text sees text: first(1)"
    assert drawn(both, {"text": 3}) == "#.. ##. #.#"


def test_a_rule_in_a_group_stays_in_one_instance_and_one_outside_does_not() -> None:
    inside = "group document* { region text; text sees text: causal }"
    assert drawn(inside, {"text": [2, 0, 1]}) == "#.. ##. ..#"
    outside = "group document* { region text }; text sees text: causal"
    assert drawn(outside, {"text": [2, 0, 1]}) == "#.. ##. ###"


def test_all_names_every_region_of_the_rules_group() -> None:
    body = "region pad; group part* { region a; region b; a sees all: all }"
    assert drawn(body, {"pad": 1, "a": 1, "b": [1, 0]}) == ".... .##. .... ...#"


def test_the_shared_prompt_of_the_design() -> None:
    body = """
        group sample* {
            region prompt
            region answer*
            prompt sees prompt: causal
            answer sees prompt: all
            answer sees answer: same(answer) & causal
        }"""
    one = "#..... ##.... ###... ####.. ##..#. ##..##"
    assert drawn(body, {"sample": 1, "prompt": 2, "answer": [2, 2]}) == one
    # A list too flat for its depth is used for every outer instance.
    assert drawn(body, {"sample": 2, "prompt": 1, "answer": [1]}) == "#... ##.. ..#. ..##"
    assert drawn(body, {"prompt": [1, 1], "answer": [[], [1]]}) == "#.. .#. .##"


def test_targets_of_hstu_stand_at_the_end_of_the_history() -> None:
    body = """
        region context at 0
        region history from 1
        region target at end(history)
        context sees context, history: all
        history sees context, history: causal & window(1, 0)
        target sees context, history: window(2, inf)
        target sees target: self"""
    sizes: dict[str, Value] = {"context": 2, "history": 3, "target": 2}
    picture = "#####.. #####.. ###.... ..##... ...##.. ...###. ...##.#"
    assert drawn(body, sizes) == picture


def test_queries_without_keys_take_a_corner_by_name() -> None:
    body = "query region q align {}; key region k; q sees k: causal"
    assert drawn(body.format("start"), {"q": 2, "k": 4}) == "#... ##.."
    assert drawn(body.format("end"), {"q": 2, "k": 4}) == "###. ####"
    assert drawn(body.format("end"), {"q": 3, "k": 1}) == ". . #"
    assert drawn(body.format("end"), {"q": 2, "k": 0}) == " "


def test_a_chunk_counts_its_positions_behind_the_cache() -> None:
    body = "key region past; region chunk; chunk sees all: causal"
    assert drawn(body, {"past": 2, "chunk": 2}) == "###. ####"


def test_a_placed_region_is_shifted_with_its_group_into_the_scope() -> None:
    body = "group user* { region a; region b at end(a) }; b sees all: same(pos)"
    assert drawn(body, {"a": [2, 1], "b": [2, 1]}) == "...... ...... ..##.. ..##.. ...... .....#"


def test_levels_count_instances_in_the_scope() -> None:
    body = "group part* { region text; region image }; image sees image: same(part)"
    assert drawn(body, {"text": [1, 0], "image": [1, 2]}) == ".... .#.. ..## ..##"
    nested = "group user* { group turn* { region text } }; text sees text: upto(LEVEL)"
    sizes: dict[str, Value] = {"text": [[1, 1], [1]]}
    assert drawn(nested.replace("LEVEL", "user"), sizes) == "##. ##. ###"
    assert drawn(nested.replace("LEVEL", "turn"), sizes) == "#.. ##. ###"
    in_user = "group user* { group turn* { region text }; text sees text: upto(turn) }"
    assert drawn(in_user, sizes) == "#.. ##. ..#"


def test_regions_that_share_a_level_count_their_own_instances() -> None:
    body = "region noisy* as block; region clean* as block; noisy sees clean: before(block)"
    assert drawn(body, {"noisy": [1, 1], "clean": [1, 1]}) == ".... ..#. .... ...."


def test_the_last_axis_of_a_grid_is_the_fastest() -> None:
    body = "region image[h, w]; image sees image: {}"
    sizes: dict[str, Value] = {"h": 2, "w": 3}
    assert drawn(body.format("same(h)"), sizes).split()[0] == "###..."
    assert drawn(body.format("same(w)"), sizes).split()[1] == ".#..#."
    assert drawn(body.format("disc(2)"), sizes).split()[0] == "##.##."  # 1 + 1 < 4
    assert drawn(body.format("disc(1)"), sizes).split()[0] == "#....."  # strict, as CLEAR
    assert drawn(body.format("disc(w, 2)"), sizes).split()[0] == "##.##."


def test_a_shifted_window_never_shrinks() -> None:
    body = "region line[x]; line sees line: window(x, 1, 1, edge=shift{})"
    assert drawn(body.format(""), {"x": 5}) == "###.. ###.. .###. ..### ..###"
    assert drawn(body.format(""), {"x": 2}) == "## ##"
    shared = drawn(body.format(", stride=2"), {"x": 5})
    assert shared == "###.. ###.. ..### ..### ..###"


def test_tables_are_read_by_row_and_by_level() -> None:
    row = "table cut[row]; region a; region b; b sees a: until(cut[row])"
    assert drawn(row, {"a": 2, "b": 2, "cut": [1, 2]}) == ".... .... #... ##.."
    level = "table cut[draft]; key region a; region draft*; draft sees a: until(cut[draft])"
    assert drawn(level, {"a": 2, "draft": [1, 2], "cut": [2, 1]}) == "##... #.... #...."
    rows = "table func[row]; region a; a sees a: rows(func)"
    assert drawn(rows, {"a": 3, "func": [[0, 1, 2], [2, 0, 0], [3, 0, 0]]}) == "..# #.. ##."


def test_a_table_entry_places_a_token() -> None:
    body = "table order[row]; region text at order[row]; text sees text: causal"
    assert drawn(body, {"text": 3, "order": [2, 0, 1]}) == "### .#. .##"


def test_an_order_changes_no_meaning() -> None:
    plain = "region image[h, w]; image sees image: window(h, 1, 0)"
    tiled = plain.replace("w];", "w] order tile(2, 2);")
    sizes: dict[str, Value] = {"h": 3, "w": 3}
    assert drawn(plain, sizes) == drawn(tiled, sizes)


def test_tokens_are_counted_on_their_side() -> None:
    source = Source(
        "x.cmask", "mask x { query region q; key region k; region both; q sees k: all }"
    )
    mask = resolve(parse(source), source)
    sizes: dict[str, Value] = {"q": 2, "k": 3, "both": 4}
    assert (query_count(mask, sizes), key_count(mask, sizes)) == (6, 7)
    assert is_visible(mask, sizes, 1, 2)
    assert not is_visible(mask, sizes, 1, 3)
    assert dense(mask, sizes).dtype == np.bool_


def test_an_unknown_number_of_instances_is_not_guessed() -> None:
    body = "group document* { region text; text sees text: causal }"
    with pytest.raises(ExpressionError, match="document"):
        drawn(body, {"text": 4})
    with pytest.raises(ExpressionError, match="document"):
        drawn(body, {"text": [1, 2], "document": 3})
