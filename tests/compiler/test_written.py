"""A mask written down and read again is the same mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from cmask.compiler import ir
from cmask.compiler.resolve import resolve
from cmask.grammar.diagnostic import CmaskError
from cmask.grammar.parser import parse
from cmask.grammar.source import Source
from cmask.runtime.closed_form import Axis, Group, Item, Region
from support.strategies import BoundCase, bound_masks, composed, masks_by_head
from support.written import written

# A random mask may hold what a person is better told than shown an empty picture, and a level that
# is called like another region.
REFUSED = ("empty-window", "empty-first", "empty-disc", "duplicate-name")


@composed
@given(case=st.one_of(bound_masks(), masks_by_head()))
def test_a_mask_that_is_written_down_reads_as_itself(case: BoundCase) -> None:
    assume(_can_be_written(case.mask.layout))
    source = Source("drawn.cmask", written(case.mask))
    try:
        again = resolve(parse(source), source)
    except CmaskError as error:
        faults = {d.code for d in error.diagnostics if d.severity == "error"}
        assume(not faults <= set(REFUSED))
        raise AssertionError(error.diagnostics[0].render(source)) from error
    assert _in_one_order(again) == _in_one_order(case.mask)


def _can_be_written(items: Sequence[Item]) -> bool:
    """Whether no axis has both a name and a size in place: text has one or the other."""
    return all(
        _can_be_written(item.items)
        if isinstance(item, Group)
        else not any(axis.name and axis.size for axis in item.axes)
        for item in items
    )


def _as_read(items: Sequence[Item]) -> tuple[Item, ...]:
    """The layout with a grid of one nameless axis as what it is: a region of a fixed size."""
    read: list[Item] = []
    for item in items:
        match item:
            case Group(items=inner):
                read.append(replace(item, items=_as_read(inner)))
            case Region(axes=(Axis(name=None, size=size),)):
                read.append(replace(item, axes=(), size=size))
            case _:
                read.append(item)
    return tuple(read)


def _in_one_order(mask: ir.ResolvedMask) -> ir.ResolvedMask:
    """Rules without their text, by scope, and their regions as the layout has them."""
    rules = (
        replace(rule, queries=tuple(sorted(rule.queries)), keys=tuple(sorted(rule.keys)), text="")
        for rule in mask.rules
    )
    rules_in_order = tuple(sorted(rules, key=repr))
    tables = tuple(replace(t, users=tuple(sorted(t.users))) for t in mask.tables)
    return replace(mask, layout=_as_read(mask.layout), rules=rules_in_order, tables=tables)
