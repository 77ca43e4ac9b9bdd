"""Entries of tables as written -> entries that the tokens of a region have."""

from __future__ import annotations

from collections.abc import Collection

from cmask.compiler.declared import Declared, DeclaredRegion
from cmask.compiler.faults import Faults, did_you_mean
from cmask.grammar import syntax
from cmask.runtime.expressions import Entry


def table_entry(
    node: syntax.Entry, regions: Collection[DeclaredRegion], declared: Declared, faults: Faults
) -> Entry | None:
    """`table[index]` as the regions' tokens see it; None if it is reported."""
    table = declared.tables.get(node.table.text)
    if table is None:
        faults.error(
            "unknown-table",
            f"there is no table `{node.table.text}`",
            node.table.span,
            "not declared",
            did_you_mean(node.table.text, declared.tables)
            or f"declare it: `table {node.table.text}[{node.index.text}]`",
        )
        return None
    if table.index.text not in ("row", *declared.levels):
        return None  # reported where it is declared
    if table.index.text != node.index.text:
        faults.error(
            "wrong-index",
            f"`{table.name.text}` is indexed by `{table.index.text}`",
            node.index.span,
            f"not by `{node.index.text}`",
            f"write `{table.name.text}[{table.index.text}]`",
        )
        return None
    index = node.index.text
    lacking = [r for r in regions if index != "row" and index not in r.levels(None)]
    if lacking:
        faults.error(
            "missing-coordinate",
            f"`{lacking[0].name}` has no level `{index}`",
            node.index.span,
            "no such level",
            did_you_mean(index, lacking[0].levels(None)),
        )
        return None
    return Entry(table.name.text, index)
