"""Short ways from the text of a mask to what the compiler makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import Compilation, bind_source, compile_source
from cmask.grammar.source import Source
from cmask.runtime.derive.bound import BoundMask
from cmask.runtime.derive.facts import Facts, facts_of
from cmask.runtime.mask import Plan, load


def source_of(body: str) -> Source:
    """A mask of this body."""
    return Source("case.cmask", f"mask case {{\n{body}\n}}\n")


def bound(body: str, **sizes: Any) -> BoundMask:
    """The mask of this body at these sizes."""
    return bind_source(source_of(body), CompileOptions(sizes=sizes))


def facts(body: str, **sizes: Any) -> Facts:
    """Its facts."""
    return facts_of(bound(body, **sizes))


def compiled(body: str, **sizes: Any) -> Compilation:
    """All that the compiler makes of it."""
    return compile_source(source_of(body), CompileOptions(sizes=sizes))


def planned(body: str, device: str = "cpu", **sizes: Any) -> Plan:
    """The plan of its artifact."""
    return load(compiled(body, **sizes).artifact).bind(device=device)


def dense(mask: BoundMask) -> NDArray[np.bool_]:
    """bool[q_len, kv_len]."""
    return mask.visible(np.arange(mask.q_len), np.arange(mask.kv_len))


def interval_table(rows: list[list[tuple[int, int]]]) -> list[list[int]]:
    """The table of `rows(f)` for the intervals [start, stop) of each row."""
    most = max((len(row) for row in rows), default=0)
    padded = [row + [(0, 0)] * (most - len(row)) for row in rows]
    ends = [[0] * len(rows)]
    for i in range(most):
        ends += [[row[i][0] for row in padded], [row[i][1] for row in padded]]
    return ends
