"""Warnings that follow from facts: rows that see nothing, keys that nobody reads."""

from __future__ import annotations

from cmask.grammar.diagnostic import Diagnostic
from cmask.grammar.source import NOWHERE
from cmask.runtime.derive.facts import Facts, Unused


def findings_of(facts: Facts | None) -> tuple[Diagnostic, ...]:
    """A warning for each region with empty rows or unread keys."""
    if facts is None:
        return ()
    rows = (
        _warning("empty-rows", u, "queries of `{}` see nothing", "their output is zero", "sees")
        for u in facts.empty_rows
    )
    keys = (
        _warning(
            "unread-keys",
            u,
            "keys of `{}` are seen by no query",
            "their gradients are zero",
            "is seen",
        )
        for u in facts.unread_keys
    )
    return (*rows, *keys)


def _warning(code: str, unused: Unused, what: str, consequence: str, verb: str) -> Diagnostic:
    count = f"{unused.count:,} of {unused.total:,} {what.format(unused.region)}"
    return Diagnostic(
        code=code,
        message=f"{count} ({consequence}): {unused.reason}",
        span=NOWHERE,
        help=f"if this is not meant, add a rule by which `{unused.region}` {verb}",
        severity="warning",
    )
