"""Warnings that follow from facts: rows that see nothing, keys that nobody reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cmask.grammar.diagnostic import Diagnostic
from cmask.grammar.source import NOWHERE
from cmask.runtime.derive.facts import Facts, Unused
from cmask.runtime.variants import HeadRange, Variant, heads_in_words


def findings_of(variants: Sequence[Variant], facts: Sequence[Facts]) -> tuple[Diagnostic, ...]:
    """A warning for each region with empty rows or unread keys; facts: of each variant, or none.

    It names heads where not all have it.
    """
    found = [(_asked(v, len(variants)), of) for v, of in zip(variants, facts, strict=False)]
    rows = [(heads, of.empty_rows) for heads, of in found if heads]
    keys = [(heads, of.unread_keys) for heads, of in found if heads]
    return (
        *(
            _warning("empty-rows", *found, "queries of `{}` see nothing", "output is", "sees")
            for found in _united(rows)
        ),
        *(
            _warning(
                "unread-keys",
                *found,
                "keys of `{}` are seen by no query",
                "gradients are",
                "is seen",
            )
            for found in _united(keys)
        ),
    )


def _asked(variant: Variant, num_variants: int) -> tuple[HeadRange, ...]:
    """The heads of which findings are told.

    Heads behind all that a rule names may be none at all: that no rule is for them is no finding.
    """
    if variant.form.clauses or num_variants == 1:
        return variant.heads
    return tuple(heads for heads in variant.heads if heads[1] is not None)


def _united(
    found: Sequence[tuple[tuple[HeadRange, ...], tuple[Unused, ...]]],
) -> Iterator[tuple[str, Unused]]:
    """Each finding once, with its heads in words; empty where all have it."""
    for unused in dict.fromkeys(unused for _, each in found for unused in each):
        having = [heads for heads, each in found if unused in each]
        heads = sorted((r for heads in having for r in heads), key=lambda r: r[0])
        yield "" if len(having) == len(found) else f"{heads_in_words(heads)}: ", unused


def _warning(
    code: str, heads: str, unused: Unused, what: str, consequence: str, verb: str
) -> Diagnostic:
    count = f"{unused.count:,} of {unused.total:,} {what.format(unused.region)}"
    return Diagnostic(
        code=code,
        message=f"{heads}{count} (their {consequence} zero): {unused.reason}",
        span=NOWHERE,
        help=f"if this is not meant, add a rule by which `{unused.region}` {verb}",
        severity="warning",
    )
