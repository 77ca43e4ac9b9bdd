"""Names that people choose, and sizes that lie further out, mean what they mean everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from cmask.compiler.close import close
from cmask.compiler.resolve import resolve
from cmask.compiler.semantics import dense
from cmask.grammar.parser import parse
from cmask.grammar.source import Source
from cmask.runtime.derive.bound import bind
from cmask.runtime.expressions import Value

# among them the words that the code uses for what it derives
NAMES = ("scope", "index", "segment", "entry", "coordinate", "key_index", "q", "k", "start", "self")


def check(body: str, sizes: dict[str, Value]) -> None:
    source = Source("named.cmask", f"mask named {{ {body} }}")
    mask = resolve(parse(source), source)
    bound = bind(close(mask), sizes)
    seen = bound.visible(np.arange(bound.q_len), np.arange(bound.kv_len))
    np.testing.assert_array_equal(seen, dense(mask, sizes))


@pytest.mark.parametrize("name", NAMES)
def test_an_axis_may_have_any_name(name: str) -> None:
    check(f"region image[{name}, x]; image sees image: same({name})", {name: 2, "x": 3})


@pytest.mark.parametrize("name", NAMES)
def test_a_level_may_have_any_name(name: str) -> None:
    body = f"table cut[row]; group {name}* {{ region text; text sees text: causal }} "
    body += f"text sees text: same({name}) & until(cut[row])"
    check(body, {"text": [1, 3, 2], "cut": [1, 2, 3, 4, 5, 6]})


@pytest.mark.parametrize("name", NAMES)
def test_a_table_may_have_any_name(name: str) -> None:
    body = f"table {name}[row]; group part* {{ region text; text sees text: until({name}[row]) }} "
    body += "text sees text: before(part)"
    check(body, {"text": [1, 3, 2], name: [1, 2, 3, 1, 2, 1]})


@pytest.mark.parametrize("region", ["pooled[long / 2]", "pooled[2] at long", "pooled[2] from long"])
def test_a_size_of_an_outer_group_is_that_of_the_outer_instance(region: str) -> None:
    body = f"""
        group outer* {{
            region long
            group inner* {{ region {region} }}
            pooled sees long: causal
            pooled sees pooled: same(pos)
        }}"""
    check(body, {"long": [6, 2, 4], "inner": 2})
    check(body, {"long": [6, 2, 4], "inner": [1, 3, 0]})
    check(body, {"long": 4, "inner": [1, 2]})
