"""Numbers beyond every coordinate mean what they say, or are refused in words."""

from __future__ import annotations

import numpy as np
import pytest

from cmask.compiler.close import close
from cmask.compiler.resolve import resolve
from cmask.compiler.semantics import dense
from cmask.grammar.parser import parse
from cmask.grammar.source import Source
from cmask.runtime.derive.bound import BoundMask, bind
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.expressions import Value
from support.descriptor_checks import Bools, check_descriptor

SIZES: dict[str, Value] = {"h": 7, "far": 2**31 - 1}
VERY_FAR = "far * far * far"  # beyond 64 bits


def bound_to(text: str) -> tuple[BoundMask, Bools]:
    source = Source("far.cmask", f"mask far_away {{ param far; {text} }}")
    mask = resolve(parse(source), source)
    return bind(close(mask), SIZES), dense(mask, SIZES)


@pytest.mark.parametrize(
    "pattern",
    [
        f"window({VERY_FAR}, 0)",
        f"window(1, {VERY_FAR})",
        f"window(-({VERY_FAR}), {VERY_FAR})",
        f"window(2, -({VERY_FAR}))",
        "window(pos / far, far * far, 0)",
        f"first({VERY_FAR})",
        f"first(-({VERY_FAR}))",
        f"disc({VERY_FAR})",
        f"window(h, {VERY_FAR}, 1, edge=shift)",
        "window(h, 1, 1, edge=shift, stride=far)",
        "same(pos % far)",
        "same(pos / far)",
    ],
)
def test_a_far_end_is_an_open_end(pattern: str) -> None:
    bound, expected = bound_to(f"region t[h]; t sees t: {pattern}")
    rows = np.arange(bound.q_len)
    np.testing.assert_array_equal(bound.visible(rows, rows), expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"region t[h] at {VERY_FAR}; t sees t: causal", "`t` cannot stand at"),
        (f"region t[h] from -({VERY_FAR}); t sees t: causal", "`t` cannot stand at"),
        (f"region t[h]; t sees t: same(pos % ({VERY_FAR}))", "divided by"),
        (f"region t[h]; t sees t: same(pos / ({VERY_FAR}))", "divided by"),
        (f"region t[h]; t sees t: window(h, 1, 1, edge=shift, stride={VERY_FAR})", "divided by"),
        (f"region t[{VERY_FAR}]; t sees t: causal", "more than"),
    ],
)
def test_what_is_too_far_to_count_is_refused(text: str, words: str) -> None:
    source = Source("far.cmask", f"mask far_away {{ param far; {text} }}")
    form = close(resolve(parse(source), source))
    with pytest.raises(BindError, match=words):
        bind(form, SIZES)


def test_an_order_by_a_far_number_is_the_raster() -> None:
    bound, expected = bound_to(f"region t[h] order mod({VERY_FAR}); t sees t: causal")
    check_descriptor(bound, bound.descriptor(8, 8), expected)


def test_tiles_that_pad_beyond_every_host_are_refused() -> None:
    text = "mask padded { region t*[h] order tile(1M); t sees t: causal }"
    source = Source("padded.cmask", text)
    bound = bind(close(resolve(parse(source), source)), {"h": [1] * 65})
    with pytest.raises(BindError, match="tiles pad the tokens"):
        bound.descriptor(8, 8)
