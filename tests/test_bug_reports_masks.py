"""Public bug reports about what a mask means and what is known of it: each must not happen here.

The number at the end of a name is the report's.  Sections A to C here, D to I in
`test_bug_reports_sizes.py`, a kernel's numbers in `runtime/test_bug_reports_*.py`.  Not here,
because it does not apply:

    CM-019 (b), CM-068   pages of a KV cache: keys are one tensor here
    CM-079               softcap: scores are changed by nothing but the mask here
    CM-080               a learned bias: the same
    CM-105               pictures and queries of a row: tested with the command line

CM-078, sinks, is no part of a mask either; its formula follows from the LSE and is tested with it.
"""

from __future__ import annotations

import numpy as np
import pytest

from cmask.grammar.diagnostic import CmaskError
from cmask.runtime.derive.bound import bind
from support.compiled import (
    bound,
    bytes_of,
    compiled,
    dense,
    facts,
    interval_table,
    intervals,
    runs_of,
    visited_blocks,
)
from support.descriptor_checks import intervals_per_row

CAUSAL = "region text; text sees text: causal"
DOCUMENTS = "group document* { region text; text sees text: causal }"
CORNER = "query region q align {}; key region k; q sees k: causal"


# --------------------------------------------------------------------------- A
def test_padded_query_rows_are_known_to_be_empty__CM_001() -> None:
    body = """
        region text
        query region pad
        key region unused
        text sees text: causal"""
    compilation = compiled(body, text=5, pad=1, unused=5)
    assert compilation.facts is not None
    assert compilation.facts.visible_pairs == 15
    assert [(u.region, u.count) for u in compilation.facts.empty_rows] == [("pad", 1)]
    assert any("pad" in warning.message for warning in compilation.warnings)


def test_a_hidden_first_tile_leaves_no_row_empty__CM_003() -> None:
    body = "region hidden; region text; all sees text: all"
    found = facts(body, hidden=128, text=313)
    assert found.visible_pairs == 138_033
    assert found.empty_rows == ()
    assert [(u.region, u.count) for u in found.unread_keys] == [("hidden", 128)]
    assert set(map(tuple, intervals(bound(body, hidden=128, text=313)))) == {((128, 441),)}


def test_the_corner_of_a_causal_mask_is_spelled_in_the_mask__CM_005() -> None:
    end = compiled(CORNER.format("end"), q=2048, k=1024)
    assert end.facts is not None
    assert end.facts.visible_pairs == 524_800
    assert sum(u.count for u in end.facts.empty_rows) == 1024
    assert any("1,024" in w.message or "1024" in w.message for w in end.warnings)
    start = facts(CORNER.format("start"), q=2048, k=1024)
    assert start.visible_pairs == 1_573_376
    assert start.empty_rows == ()
    stairs = "table end[row]; query region q; key region k; q sees k: until(end[row])"
    assert facts(stairs, q=5, k=3, end=[1, 2, 2, 3, 3]).visible_pairs == 11


@pytest.mark.parametrize(
    ("q", "k", "start", "end", "empty"), [(2, 5, 3, 9, 0), (5, 2, 9, 3, 3), (1, 16, 1, 16, 0)]
)
def test_both_corners_have_a_name__CM_006(q: int, k: int, start: int, end: int, empty: int) -> None:
    assert facts(CORNER.format("start"), q=q, k=k).visible_pairs == start
    bottom_right = facts(CORNER.format("end"), q=q, k=k)
    assert bottom_right.visible_pairs == end
    assert sum(u.count for u in bottom_right.empty_rows) == empty


def test_a_bare_causal_between_two_lengths_is_refused__CM_006() -> None:
    with pytest.raises(CmaskError) as error:
        bound("query region q; key region k; q sees k: causal", q=2, k=5)
    (diagnostic,) = error.value.diagnostics
    text = f"{diagnostic.message} {diagnostic.help}"
    assert "align start" in text
    assert "align end" in text


# --------------------------------------------------------------------------- B
def test_chunks_with_a_limited_look_back_are_one_interval_a_row__CM_016() -> None:
    body = "region text; text sees text: window(pos / 32, 10, 0)"
    mask = bound(body, text=512)
    assert facts(body, text=512).visible_pairs == 123_904
    assert [len(row) for row in intervals(mask)] == [1] * 512
    q, k = np.arange(512)[:, None] // 32, np.arange(512)[None] // 32
    np.testing.assert_array_equal(dense(mask), (k <= q) & (q - k <= 10))


def test_few_queries_touch_one_tile_of_a_large_cache__CM_021() -> None:
    mask = bound(CORNER.format("start"), q=16, k=262_144)
    descriptor = mask.descriptor(128, 128)
    assert sum(stop - start for row in intervals(mask) for start, stop in row) == 136
    assert visited_blocks(descriptor) == {(0, 0)}


def test_a_length_for_each_item_of_a_batch_counts_its_own_keys__CM_025() -> None:
    body = "group item* { query region q; key region seen; key region rest; q sees seen: all }"
    found = facts(body, q=8, seen=[3, 8], rest=[5, 0])
    assert found.visible_pairs == 3 * 8 + 8 * 8
    assert found.kv_len == 16


@pytest.mark.parametrize("size", [1, 64, 1000])
def test_four_spellings_of_causal_are_one_descriptor__CM_028(size: int) -> None:
    spellings = ("causal", "window(inf, 0)", f"window({size}, 0)", f"window({size - 1}, 0)")
    made = [bound(f"region text; text sees text: {p}", text=size) for p in spellings]
    first, *others = (bytes_of(mask.descriptor(128, 128)) for mask in made)
    assert all(other == first for other in others)


def test_siblings_of_a_draft_tree_stay_hidden__CM_029() -> None:
    # `tree(parent[row])` comes later; until then a tree is a table of intervals.
    body = "table func[row]; key region past; region node; node sees all: rows(func)"
    nodes = [{0}, {0, 1}, {0, 2}, {0, 1, 3}, {0, 2, 4}]
    table = interval_table([runs_of(range(100), {100 + i for i in row}) for row in nodes])
    mask = bound(body, past=100, node=5, func=table)
    found = intervals(mask)
    assert facts(body, past=100, node=5, func=table).visible_pairs == 511
    assert max(map(len, found)) == 3
    assert sum(map(len, found)) == 9


def test_a_draft_tree_may_have_more_keys_than_queries__CM_030() -> None:
    body = "table func[row]; query region leaf; key region cache; leaf sees cache: rows(func)"
    rows = [set(range(7)), {*range(6), 7}, {*range(5), 7, 8}, {*range(6), 9}]
    table = interval_table([runs_of(row) for row in rows])
    mask = bound(body, leaf=4, cache=10, func=table)
    assert [set(np.flatnonzero(row)) for row in dense(mask)] == rows
    assert max(map(len, intervals(mask))) == 2
    assert dense(mask).sum() == 28


def test_causal_documents_may_have_more_keys_than_queries__CM_031() -> None:
    body = """
        group document* {
            query region q align end
            key region k
            q sees k: causal
        }"""
    found = facts(body, q=[4096, 4096], k=[25_600, 8192])
    assert (found.q_len, found.kv_len) == (8192, 33_792)
    triangle = 4096 * 4095 // 2
    assert found.visible_pairs == 4096 * 25_600 - triangle + 4096 * 8192 - triangle
    assert found.max_intervals == 1


# --------------------------------------------------------------------------- C
@pytest.mark.parametrize(
    ("pattern", "pairs", "keys"),
    [
        ("window(2047, 0)", 6_292_480, 2048),
        ("window(2048, 0)", 6_294_528, 2049),
        ("window(2048, 2048)", 12_584_960, 4095 - 2048 + 2049),
    ],
)
def test_a_window_counts_distances_and_not_keys__CM_032(
    pattern: str, pairs: int, keys: int
) -> None:
    body = f"region text; text sees text: {pattern}"
    assert facts(body, text=4096).visible_pairs == pairs
    row = intervals(bound(body, text=4096))[2048]
    assert sum(stop - start for start, stop in row) == keys


@pytest.mark.parametrize("chunk", [32, 16, 8, 5, 1])
def test_each_row_of_a_chunk_has_its_own_window__CM_033(chunk: int) -> None:
    body = "region text; text sees text: window(7, 0)"
    whole = bound(body, text=32)
    chunks = [
        dense(bind(whole.form, whole.names, (start, min(start + chunk, 32))))
        for start in range(0, 32, chunk)
    ]
    assert sum(part.sum() for part in chunks) == 228
    np.testing.assert_array_equal(np.concatenate(chunks), dense(whole))


def test_a_window_needs_no_other_mask_to_take_effect__CM_034() -> None:
    assert facts("region text; text sees text: window(15, 0)", text=64).visible_pairs == 904
    wide = bound("region text; text sees text: window(64, 0)", text=64)
    np.testing.assert_array_equal(dense(wide), dense(bound(CAUSAL, text=64)))


def test_a_window_without_keys_is_refused__CM_034() -> None:
    with pytest.raises(CmaskError, match="window"):
        bound("region text; text sees text: window(-1, 0)", text=64)


IMAGES = """
    group part* { region text; region image }
    all sees all: causal
    image sees image: same(part)"""


def test_a_chunk_that_cuts_an_image_still_asks_for_its_last_key__CM_037() -> None:
    sizes = {"text": [24, 24], "image": [16, 0]}
    whole = bound(IMAGES, **sizes)
    assert facts(IMAGES, **sizes).visible_pairs == 2200
    assert facts(IMAGES, **sizes).looks_ahead
    first = intervals(bind(whole.form, whole.names, (0, 32)))
    assert [row for row in range(32) if first[row][-1][1] > 32] == list(range(24, 32))
    assert first[24][-1] == (0, 40)


def test_padding_is_no_document__CM_038() -> None:
    body = f"{DOCUMENTS} region pad"
    found = facts(body, text=[5, 5], pad=6)
    assert found.visible_pairs == 30
    assert [(u.region, u.count) for u in found.empty_rows] == [("pad", 6)]


def test_a_window_without_its_right_side_is_seen_in_the_facts__CM_040() -> None:
    one_sided = facts("region text; text sees text: window(5, inf)", text=25_000)
    assert one_sided.visible_pairs == 312_637_485
    assert one_sided.density == pytest.approx(0.5002, abs=1e-4)
    assert one_sided.looks_ahead
    both = facts("region text; text sees text: window(5, 0)", text=25_000)
    assert both.visible_pairs == 149_985
    assert both.density == pytest.approx(0.00024, abs=1e-5)
    assert not both.looks_ahead
    row = intervals(bound("region text; text sees text: window(5, inf)", text=25_000))[0]
    assert row == [(0, 25_000)]


@pytest.mark.parametrize("steps", [3, 8])
def test_later_steps_of_a_draft_are_one_diagonal_each__CM_041(steps: int) -> None:
    body = """
        region base
        group step* { key region draft }
        base sees base: causal
        base sees draft: self"""
    mask = bound(body, base=128, step=steps - 1, draft=128)
    assert dense(mask).sum() == 8256 + 128 * (steps - 1)
    assert (intervals_per_row(dense(mask)) == steps).all()
    q, k = np.arange(128)[:, None], np.arange(128 * steps)[None]
    expected = ((k < 128) & (k <= q)) | ((k >= 128) & ((k - q) % 128 == 0))
    np.testing.assert_array_equal(dense(mask), expected)


@pytest.mark.parametrize(("history", "pairs"), [("causal", 7070), ("all", 14_020)])
def test_targets_see_the_history_and_themselves__CM_044(history: str, pairs: int) -> None:
    ahead = "history sees target: all" if history == "all" else ""
    body = f"""
        region history
        region target
        history sees history: {history}
        target sees history: all
        target sees target: self
        {ahead}"""
    found = facts(body, history=100, target=20)
    assert found.visible_pairs == pairs
    assert found.max_intervals == 2


def test_items_of_one_request_do_not_see_each_other__CM_045() -> None:
    body = """
        region prefix
        region item*
        prefix sees prefix: causal
        item sees prefix: all
        item sees item: same(item) & causal"""
    found = facts(body, prefix=50, item=[7, 5, 9])
    assert found.visible_pairs == 2413
    assert found.max_intervals == 2


@pytest.mark.parametrize(("n", "pairs"), [(0, 65_536), (37, 56_767), (128, 41_024), (256, 32_896)])
def test_a_causal_beginning_may_be_any_length__CM_046(n: int, pairs: int) -> None:
    body = "region causal_part; region rest; causal_part sees all: causal; rest sees all: all"
    assert facts(body, causal_part=n, rest=256 - n).visible_pairs == pairs
