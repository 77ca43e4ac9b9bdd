"""What is bound to a name must fit it, a default too."""

from __future__ import annotations

import pytest

from cmask.compiler.close import close
from cmask.compiler.resolve import resolve
from cmask.grammar.parser import parse
from cmask.grammar.source import Source
from cmask.runtime.derive.sizes import BindError, bind_names

TABLE = "mask m { table f[row]; region text[2]; text sees text: rows(f); sizes { f = %s } }"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[[1, 1], [2, 2], [2]]", "the rows of table `f` must be equally long"),
        ("[[1, inf], [2, 2], [2, 2]]", "table `f` must hold integers, got float64"),
        ("[[1, 4096M], [2, 2], [2, 2]]", "must fit 32 bits"),
    ],
)
def test_a_default_table_is_held_to_what_a_bound_one_is(value: str, message: str) -> None:
    source = Source("m.cmask", TABLE % value)
    form = close(resolve(parse(source), source))
    with pytest.raises(BindError, match=message):
        bind_names(form)


def test_a_ragged_table_is_refused_in_words() -> None:
    source = Source("m.cmask", TABLE % "[]")
    form = close(resolve(parse(source), source))
    with pytest.raises(BindError, match="equally long"):
        bind_names(form, given={"f": [[1, 1], [2]]})
