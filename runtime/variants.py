"""Rules for some heads: one mask as variants, each a mask of its own for some query heads.

Heads by the same rules share a variant, and with it block lists, facts and launches.  A mask
without such rules has one variant, which is itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from cmask.runtime.closed_form import Clause, ClosedForm

# query heads [start, stop); None: from `start` on
HeadRange = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class Variant:
    """A mask for some heads.

    heads  its query heads, ascending and apart
    form   the mask with their rules alone; none of its clauses is for some heads
    """

    heads: tuple[HeadRange, ...]
    form: ClosedForm


def has_heads(form: ClosedForm) -> bool:
    """Whether some rule is for some heads only."""
    return any(clause.heads is not None for clause in form.clauses)


def variants_of(form: ClosedForm) -> tuple[Variant, ...]:
    """The variants by their first heads; each head from 0 on is in just one.

    >>> a = Clause(None, ("text",), ("text",), ())
    >>> b, c = replace(a, scope="part", heads=(2, 4)), replace(a, scope="part", heads=(4, 5))
    >>> form = ClosedForm("some", (), (), (), (a, b, c), (), ())
    >>> [variant.heads for variant in variants_of(form)]
    [((0, 2), (5, None)), ((2, 5),)]
    """
    if not has_heads(form):
        return (Variant(((0, None),), form),)
    cuts = sorted({0, *(cut for clause in form.clauses for cut in clause.heads or ())})
    ranges: dict[frozenset[Clause], list[HeadRange]] = {}
    for start, stop in pairwise([*cuts, None]):
        assert start is not None, "only the last end is open"
        clauses = _clauses_of(form, start)
        rules = frozenset(replace(clause, rule=0) for clause in clauses)
        ranges.setdefault(rules, []).append((start, stop))
    return tuple(
        Variant(_united(found), form_of_head(form, found[0][0])) for found in ranges.values()
    )


def form_of_head(form: ClosedForm, head: int) -> ClosedForm:
    """The mask of one query head, as one for all heads."""
    return replace(form, clauses=_clauses_of(form, head)) if has_heads(form) else form


def least_heads(variants: Sequence[tuple[HeadRange, ...]]) -> int:
    """How many query heads a call must have, so that each head that a rule names is there."""
    return max(start for heads in variants for start, stop in heads if stop is None)


def heads_in_words(heads: Sequence[HeadRange]) -> str:
    """Heads as the language writes them, both ends included.

    >>> heads_in_words([(0, 4), (6, 7), (9, None)])
    'heads 0..3, 6, 9 and up'
    >>> heads_in_words([(6, 7)])
    'head 6'
    """
    words = ", ".join(_range_in_words(start, stop) for start, stop in heads)
    return f"head {words}" if words.isdigit() else f"heads {words}"


def _range_in_words(start: int, stop: int | None) -> str:
    if stop is None:
        return f"{start} and up"
    return f"{start}" if stop == start + 1 else f"{start}..{stop - 1}"


def _clauses_of(form: ClosedForm, head: int) -> tuple[Clause, ...]:
    return tuple(
        replace(clause, heads=None)
        for clause in form.clauses
        if clause.heads is None or clause.heads[0] <= head < clause.heads[1]
    )


def _united(ranges: Sequence[HeadRange]) -> tuple[HeadRange, ...]:
    """Ascending ranges, those that touch as one."""
    united: list[HeadRange] = []
    for start, stop in ranges:
        if united and united[-1][1] == start:
            start = united.pop()[0]
        united.append((start, stop))
    return tuple(united)
