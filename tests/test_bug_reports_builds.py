"""Public bug reports about building masks for long or changing inputs: each must not happen here.

The number at the end of a name is the report's.  Sections F and H, what needs no kernel; times are
measured by `cmask bench`, not here.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.compiled import bound, dense, facts, interval_table

CAUSAL = "region text; text sees text: causal"
WINDOW = "region text; text sees text: window(1023, 0)"
DOCUMENTS = "group document* { region text; text sees text: causal }"
BYTES_A_TOKEN = 256


def most_bytes(call: Callable[[], Any]) -> tuple[Any, int]:
    """What a call returns, and the most memory that it held meanwhile [bytes]."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "tokens", "pairs"),
    [
        (CAUSAL, 96_000, 4_608_048_000),
        (WINDOW, 96_000, 97_780_224),
        (CAUSAL, 1 << 20, (1 << 20) * ((1 << 20) + 1) // 2),
        (WINDOW, 1 << 20, 1024 * (1 << 20) - 1023 * 1024 // 2),
    ],
)
def test_a_million_tokens_make_no_matrix__CM_086(body: str, tokens: int, pairs: int) -> None:
    found, most = most_bytes(lambda: facts(body, text=tokens))
    assert found.visible_pairs == pairs
    assert most < BYTES_A_TOKEN * tokens


def test_many_short_documents_take_memory_by_the_token__CM_087() -> None:
    found, most = most_bytes(lambda: facts(DOCUMENTS, text=[512] * 512))
    assert found.visible_pairs == 67_239_936
    assert most < BYTES_A_TOKEN * 512 * 512  # the matrix has 64 GiB


@pytest.mark.parametrize("block", [1, 16, 128])
def test_draft_blocks_with_anchors_have_two_intervals_at_most__CM_088(block: int) -> None:
    """Each block sees the context before its anchor, and itself."""
    random = np.random.default_rng(block)
    context, blocks = 1024, 2048 // block
    anchors = np.sort(random.integers(0, context + 1, blocks))
    rows = [[(0, int(anchor))] for anchor in np.repeat(anchors, block)]
    body = """
        table before[row]
        key region context
        region draft*
        draft sees context: rows(before)
        draft sees draft: same(draft)
    """
    mask = bound(body, context=context, draft=[block] * blocks, before=interval_table(rows))
    q, k = np.arange(blocks * block)[:, None], np.arange(context + blocks * block)[None]
    own = (k >= context) & ((k - context) // block == q // block)
    expected = (k < np.repeat(anchors, block)[:, None]) | own
    np.testing.assert_array_equal(dense(mask), expected)
    found = facts(body, context=context, draft=[block] * blocks, before=interval_table(rows))
    assert found.max_intervals is not None
    assert found.max_intervals <= 2


def test_scales_of_images_have_one_interval_a_row__CM_092() -> None:
    body = "region scale*; scale sees scale: upto(scale)"
    found = facts(body, scale=[1, 4, 16, 36, 64, 144, 256])
    assert (found.q_len, found.visible_pairs, found.max_intervals) == (521, 181_689, 1)


def test_a_long_context_takes_a_descriptor_by_the_query__CM_098() -> None:
    """The last 16,384 of 262,144 tokens: a window, or all of an image that they lie in."""
    queries, keys, window = 16_384, 262_144, 1024
    first = keys - queries
    image = np.full((queries, 2), 0)
    image[3000:5000] = first + 3000, first + 5000
    body = """
        table image[row]
        query region q align end
        key region k
        q sees k: window(1023, 0) | rows(image)
    """
    table = interval_table([[(int(a), int(b))] for a, b in image])
    found = facts(body, q=queries, k=keys, image=table)
    rows = np.arange(first, keys)
    low = rows - window + 1
    inside = image[:, 1] > 0
    low = np.where(inside, np.minimum(low, image[:, 0]), low)
    stop = np.where(inside, np.maximum(rows + 1, image[:, 1]), rows + 1)
    assert found.visible_pairs == (stop - low).sum()
    assert found.max_intervals is not None
    assert found.max_intervals <= 2
    assert found.descriptor_bytes <= 256 * 1024


def test_any_size_of_sparse_blocks_is_right__CM_101() -> None:
    """A quarter of the 16-token blocks, where kernels have blocks of 64 and 128."""
    random = np.random.default_rng(101)
    grid = random.random((16, 16)) < 0.25
    expected = np.kron(grid, np.ones((16, 16), bool))
    rows = []
    for row in expected:
        edges = np.flatnonzero(np.diff(np.pad(row, 1).astype(np.int8)))
        rows.append([(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)])
    body = "table seen[row]; region text; text sees text: rows(seen)"
    table = interval_table(rows)
    np.testing.assert_array_equal(dense(bound(body, text=256, seen=table)), expected)
    found = facts(body, text=256, seen=table)
    assert found.visible_pairs == expected.sum()
    visited = found.full_blocks + found.partial_blocks
    assert found.useful_share == pytest.approx(
        expected.sum() / (visited * found.block_m * found.block_n)
    )


def test_lengths_are_sizes_that_may_change__CM_111() -> None:
    """Causal to the last key: once bound, other lengths are bound as well."""
    body = "query region q align end; key region k; q sees k: causal"
    for (q, k), pairs, empty in (((64, 128), 6176, 0), ((32, 200), 5904, 0), ((200, 32), 528, 168)):
        found = facts(body, q=q, k=k)
        assert found.visible_pairs == pairs
        assert sum(unused.count for unused in found.empty_rows) == empty


@pytest.mark.parametrize("text", [37, 200, 512])
def test_padding_between_text_and_image_is_a_gap__CM_117(text: int) -> None:
    body = "region text; region padding; region image; all sees text: all; all sees image: all"
    found = facts(body, text=text, padding=512 - text, image=4096)
    assert found.max_intervals == (2 if text < 512 else 1)
    assert found.visible_pairs == 4608 * (text + 4096)
    assert sum(unused.count for unused in found.unread_keys) == 512 - text
    assert not found.empty_rows
