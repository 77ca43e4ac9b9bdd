"""The whole compiler on one page: text -> artifact, one line a stage."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from cmask.compiler.close import close
from cmask.compiler.configs import shipped_configs
from cmask.compiler.findings import findings_of
from cmask.compiler.goldens import make_goldens
from cmask.compiler.ir import ResolvedMask
from cmask.compiler.options import CompileOptions
from cmask.compiler.resolve import resolve_with_warnings
from cmask.compiler.settle import settle_orders
from cmask.grammar.diagnostic import Diagnostic
from cmask.grammar.parser import parse
from cmask.grammar.source import Source
from cmask.runtime.artifact import store, write_artifact
from cmask.runtime.closed_form import ClosedForm
from cmask.runtime.derive.bound import BoundMask, bind
from cmask.runtime.derive.cost import USUAL_SHAPE, cheapest
from cmask.runtime.derive.facts import Facts, facts_of
from cmask.runtime.derive.sizes import UnboundError, bind_names
from cmask.runtime.expressions import Value
from cmask.runtime.schema import Body


@dataclass(frozen=True, eq=False)
class Compilation:
    """What each stage made.

    bound, facts   None where something was left without a value
    unbound        says what that is, and how to bind it; empty if it was asked for
    """

    mask: ResolvedMask
    closed_form: ClosedForm
    bound: BoundMask | None
    facts: Facts | None
    unbound: str
    artifact: bytes
    warnings: tuple[Diagnostic, ...]


def compile_source(source: Source, options: CompileOptions | None = None) -> Compilation:
    """Compile a mask.

    What has no value stays symbolic: the artifact then has neither facts nor block lists, and
    the runtime binds the rest.

    Raises `CmaskError` with every fault of the text, `BindError` when sizes do not fit.
    """
    options = options or CompileOptions()
    tree = parse(source)
    mask, warnings = resolve_with_warnings(tree, source)
    form = close(mask)
    names = {} if options.symbolic else bind_names(form, seq=options.seq, given=options.sizes)
    form = form if options.symbolic else settle_orders(form, names)
    bound, unbound = (None, "") if options.symbolic else _bind_if_complete(form, names)
    facts = None if bound is None else facts_of(bound)
    shape = USUAL_SHAPE if bound is None else cheapest(bound)[0]
    shapes = options.block_shapes or (shape,)
    body = Body(
        source=source.text,
        source_sha256=hashlib.sha256(source.text.encode()).digest(),
        closed_form=form,
        names=names,
        facts=facts,
        descriptors=tuple(store(bound.descriptor(m, n)) for m, n in shapes if bound is not None),
        configs=shipped_configs(options.targets, shape),
        goldens=make_goldens(mask, form),
        given=() if options.symbolic else tuple(sorted(options.sizes)),
    )
    warnings = (*warnings, *findings_of(facts))
    return Compilation(mask, form, bound, facts, unbound, write_artifact(body), warnings)


def _bind_if_complete(form: ClosedForm, names: Mapping[str, Value]) -> tuple[BoundMask | None, str]:
    """The mask at its sizes, or None and what has no value yet."""
    try:
        return bind(form, names), ""
    except UnboundError as error:
        return None, str(error)


def bind_source(source: Source, options: CompileOptions) -> BoundMask:
    """Text -> the mask at its sizes, for those who need no artifact."""
    mask, _ = resolve_with_warnings(parse(source), source)
    form = close(mask)
    return bind(form, bind_names(form, seq=options.seq, given=options.sizes))
