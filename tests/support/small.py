"""Small masks as the compiler's own data, for tests that need just one."""

from __future__ import annotations

from cmask.compiler import ir
from cmask.runtime.closed_form import Region


def one_region(pattern: ir.Pattern) -> ir.ResolvedMask:
    """`region text` that sees itself by a pattern."""
    rule = ir.Rule(None, ("text",), ("text",), pattern)
    return ir.ResolvedMask("small", (), (), (Region("text"),), (rule,), ())


def causal() -> ir.ResolvedMask:
    """`text sees text: causal`."""
    return one_region(ir.Upto(ir.Coordinate("pos")))
