"""Warnings that follow from facts: rows that see nothing, keys that nobody reads."""

from __future__ import annotations

from cmask.grammar.diagnostic import Diagnostic
from cmask.grammar.source import NOWHERE
from cmask.runtime.derive.facts import Facts, Unused


def findings_of(facts: Facts | None) -> tuple[Diagnostic, ...]:
    """A warning for each region with empty rows or unread keys."""
    if facts is None:
        return ()
    rows = [_warning("empty-rows", "queries", "see nothing", u) for u in facts.empty_rows]
    keys = [_warning("unread-keys", "keys", "are seen by no query", u) for u in facts.unread_keys]
    return (*rows, *keys)


def _warning(code: str, what: str, does: str, unused: Unused) -> Diagnostic:
    return Diagnostic(
        code=code,
        message=f"{unused.count:,} of {unused.total:,} {what} of `{unused.region}` {does}",
        span=NOWHERE,
        label="",
        help=f"{unused.reason}; attention gives them zeros",
        severity="warning",
    )
