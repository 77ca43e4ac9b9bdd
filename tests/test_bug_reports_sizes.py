"""Public bug reports about sizes, errors and files: each must not happen here.

The number at the end of a name is the report's; `test_bug_reports_masks.py` lists what does not
apply.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cmask.grammar.diagnostic import CmaskError
from cmask.runtime.artifact import ArtifactError, read_artifact
from support.compiled import (
    bound,
    compiled,
    dense,
    facts,
    interval_table,
    runs_of,
    source_of,
    visited_blocks,
)

CAUSAL = "region text; text sees text: causal"
CORNER = "query region q align {}; key region k; q sees k: causal"


# --------------------------------------------------------------------------- D
def test_a_dense_mask_becomes_intervals_at_any_length__CM_063() -> None:
    body = "table func[row]; region text; text sees text: rows(func)"
    for size in (43, 77):
        wanted = np.random.default_rng(size).random((size, size)) < 0.5
        table = interval_table([runs_of(np.flatnonzero(row).tolist()) for row in wanted])
        np.testing.assert_array_equal(dense(bound(body, text=size, func=table)), wanted)


def test_requests_may_have_one_query_or_none__CM_071() -> None:
    body = "group request* { query region q align end; key region k; q sees k: causal }"
    found = facts(body, q=[1, 0, 1], k=[3, 0, 5])
    assert (found.q_len, found.visible_pairs) == (2, 8)


@pytest.mark.parametrize(
    ("q", "k", "unread"),
    [
        ((0, 1208, 840, 0), (2538, 1742, 840, 3072), (*range(2538), *range(5120, 8192))),
        ((150, 0, 150), (100, 100, 100), range(100, 200)),
    ],
)
def test_keys_of_requests_without_queries_are_read_by_none__CM_072(
    q: tuple[int, ...], k: tuple[int, ...], unread: tuple[int, ...]
) -> None:
    body = "group request* { query region q align end; key region k; q sees k: causal }"
    mask = bound(body, q=list(q), k=list(k))
    descriptor = mask.descriptor(128, 128)
    found = np.flatnonzero(descriptor.key_is_read[: mask.kv_len] == 0)
    assert set(unread) <= set(found.tolist())
    count = sum(u.count for u in facts(body, q=list(q), k=list(k)).unread_keys)
    assert count == len(found)


@pytest.mark.parametrize(("q", "k"), [(4, 0), (0, 4), (0, 0)])
def test_no_keys_or_no_queries_make_a_mask_all_the_same__CM_073(q: int, k: int) -> None:
    for body in ("query region q; key region k; q sees k: all", CORNER.format("end")):
        found = facts(body, q=q, k=k)
        assert found.visible_pairs == 0
        assert sum(u.count for u in found.empty_rows) == q
        assert sum(u.count for u in found.unread_keys) == k


# --------------------------------------------------------------------------- E
@pytest.mark.parametrize("seed", range(5))
def test_runs_of_random_length_are_the_mask_that_was_meant__CM_084(seed: int) -> None:
    random = np.random.default_rng(seed)
    text, image = (random.integers(0, 200, (3, 4)).tolist() for _ in range(2))
    body = """
        group sample* {
            group part* { region text; region image }
            all sees all: causal
            image sees image: all
        }"""
    mask = bound(body, text=text, image=image)
    lengths = [
        n for t, i in zip(text, image, strict=True) for p in zip(t, i, strict=True) for n in p
    ]
    sample = np.repeat(np.repeat(np.arange(3), 8), lengths)
    visual = np.repeat(np.tile([False, True], 12), lengths)
    q, k = np.arange(len(sample))[:, None], np.arange(len(sample))[None]
    expected = (sample[q] == sample[k]) & ((k <= q) | (visual[q] & visual[k]))
    np.testing.assert_array_equal(dense(mask), expected)


# --------------------------------------------------------------------------- G
@pytest.mark.parametrize(
    ("pattern", "word"), [("not window(64, 0)", "not"), ("causal and self", "and"), ("if", "if")]
)
def test_words_of_python_get_a_line_and_a_column_and_help__CM_102(pattern: str, word: str) -> None:
    with pytest.raises(CmaskError) as error:
        bound(f"region text\ntext sees text: {pattern}", text=256)
    diagnostic = error.value.diagnostics[0]
    source = source_of(f"region text\ntext sees text: {pattern}")
    assert source.text[diagnostic.span.start : diagnostic.span.stop].startswith(word)
    assert ":3:" in diagnostic.render(source)
    assert diagnostic.help


def test_the_complement_of_a_window_is_two_windows__CM_102() -> None:
    body = "region text; text sees text: window(inf, -64) | window(-1, inf)"
    assert facts(body, text=256).visible_pairs == 51_168


def test_an_artifact_needs_no_source_and_is_the_same_each_time__CM_104(tmp_path: Path) -> None:
    body = "region text; text sees text: window(pos / 32, 10, 0)"
    data = compiled(body, text=1024).artifact
    (tmp_path / "stream.cmaskc").write_bytes(data)
    program = (
        "from cmask.runtime import load\n"
        "mask = load('stream.cmaskc')\n"
        "intervals = mask.bind().bound.row_intervals()\n"
        "print((intervals.stops - intervals.starts).sum())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == dense(bound(body, text=1024)).sum()
    assert compiled(body, text=1024).artifact == data
    with pytest.raises(ArtifactError):
        read_artifact(data[:-1])
    with pytest.raises(ArtifactError):
        read_artifact(data.replace(b"window", b"w1ndow", 1))


def test_a_block_need_not_divide_either_length__CM_107() -> None:
    body = "group document* { query region q; key region k; q sees k: all }"
    mask = bound(body, q=[3, 5, 4], k=[7, 2, 6])
    assert dense(mask).sum() == 55
    for m, n in ((8, 8), (16, 8), (8, 16), (128, 128)):
        assert {(q // m, k // n) for q, k in np.argwhere(dense(mask))} == visited_blocks(
            mask.descriptor(m, n)
        )


# --------------------------------------------------------------------------- I
def test_a_random_half_of_the_keys_and_its_complement_are_all_keys__CM_119() -> None:
    body = "table func[row]; query region q; key region k; q sees k: rows(func)"
    hidden = set(np.random.default_rng(0).choice(1000, 420, replace=False).tolist())
    seen = [i for i in range(1000) if i not in hidden]
    masks = [
        bound(body, q=1, k=1000, func=interval_table([runs_of(sorted(keys))]))
        for keys in (seen, hidden)
    ]
    assert [dense(mask).sum() for mask in masks] == [580, 420]
    assert (dense(masks[0]) ^ dense(masks[1])).all()


def test_facts_are_finite_numbers() -> None:
    found = facts(CAUSAL, text=0)
    assert math.isfinite(found.density)
    assert math.isfinite(found.useful_share)
