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
from cmask.runtime.descriptor import Descriptor
from cmask.runtime.mask import Plan, load


def source_of(body: str) -> Source:
    """A mask of this body."""
    return Source("case.cmask", f"mask case {{\n{body}\n}}\n")


def bound(body: str, *, head: int | None = None, **sizes: Any) -> BoundMask:
    """The mask of this body at these sizes; head: whose, where heads differ."""
    return bind_source(source_of(body), CompileOptions(sizes=sizes), head)


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


def intervals(mask: BoundMask) -> list[list[tuple[int, int]]]:
    """The key intervals of each row."""
    found = mask.row_intervals()
    assert found is not None
    pairs = list(zip(found.starts.tolist(), found.stops.tolist(), strict=True))
    return [pairs[a:b] for a, b in zip(found.offsets[:-1], found.offsets[1:], strict=True)]


def runs_of(*keys: object) -> list[tuple[int, int]]:
    """Maximal intervals [start, stop) of the keys."""
    found: list[tuple[int, int]] = []
    for key in sorted(int(k) for part in keys for k in part):  # type: ignore[attr-defined]
        if found and found[-1][1] == key:
            found[-1] = (found[-1][0], key + 1)
        else:
            found.append((key, key + 1))
    return found


def visited_blocks(descriptor: Descriptor) -> set[tuple[int, int]]:
    """The blocks that a kernel touches."""
    lists, found = descriptor.by_query, set()
    for i in range(descriptor.num_q_blocks):
        for offsets, runs in (
            (lists.full_offsets, lists.full_runs),
            (lists.bounds_offsets, lists.bounds_runs),
        ):
            for first, stop in runs[offsets[i] : offsets[i + 1]]:
                found |= {(i, j) for j in range(first, stop)}
        patterns = lists.pattern_blocks[lists.pattern_offsets[i] : lists.pattern_offsets[i + 1]]
        found |= {(i, int(j)) for j, _ in patterns}
    return found


def bytes_of(descriptor: Descriptor) -> bytes:
    """All its arrays."""
    lists = (descriptor.by_query, descriptor.by_key)
    arrays = [getattr(side, name) for side in lists for name in vars(side)]
    arrays += [descriptor.patterns, descriptor.bounds, descriptor.key_is_read]
    return b"".join(array.tobytes() for array in arrays)
