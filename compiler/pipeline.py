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
from cmask.runtime.derive.bound import BoundMask, bind, bind_all
from cmask.runtime.derive.cost import USUAL_SHAPE, cheapest
from cmask.runtime.derive.facts import Facts, facts_of
from cmask.runtime.derive.sizes import UnboundError, bind_names
from cmask.runtime.expressions import Value
from cmask.runtime.schema import Body, StoredVariant
from cmask.runtime.variants import HeadRange, Variant, form_of_head, variants_of


@dataclass(frozen=True, eq=False)
class Compilation:
    """What each stage made.

    variants             the mask of each set of heads; one for all where no rule is for some heads
    bound, all_facts     of each variant; empty where something was left without a value
    unbound              says what that is, and how to bind it; empty if it was asked for
    """

    mask: ResolvedMask
    closed_form: ClosedForm
    variants: tuple[Variant, ...]
    bound: tuple[BoundMask, ...]
    all_facts: tuple[Facts, ...]
    unbound: str
    artifact: bytes
    warnings: tuple[Diagnostic, ...]

    @property
    def facts(self) -> Facts | None:
        """Those of a mask that is the same for all heads; None where something has no value."""
        return self.all_facts[0] if len(self.all_facts) == 1 else None


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
    variants = variants_of(form)
    bound, unbound = ((), "") if options.symbolic else _bind_if_complete(variants, names)
    stored = tuple(_stored(each, options.block_shapes) for each in bound)
    one = stored[0] if len(stored) == 1 else None
    shape = cheapest(bound[0])[0] if bound else USUAL_SHAPE
    body = Body(
        source=source.text,
        source_sha256=hashlib.sha256(source.text.encode()).digest(),
        closed_form=form,
        names=names,
        facts=one.facts if one else None,
        descriptors=one.descriptors if one else (),
        configs=shipped_configs(options.targets, shape),
        goldens=make_goldens(mask, form),
        given=() if options.symbolic else tuple(sorted(options.sizes)),
        variants=() if one else stored,
    )
    facts = tuple(each.facts for each in stored)
    warnings = (*warnings, *findings_of(variants, facts))
    return Compilation(mask, form, variants, bound, facts, unbound, write_artifact(body), warnings)


def _bind_if_complete(
    variants: tuple[Variant, ...], names: Mapping[str, Value]
) -> tuple[tuple[BoundMask, ...], str]:
    """The variants at their sizes, or none and what has no value yet."""
    try:
        return bind_all([variant.form for variant in variants], names), ""
    except UnboundError as error:
        return (), str(error)


def _stored(bound: BoundMask, shapes: tuple[tuple[int, int], ...] | None) -> StoredVariant:
    shapes = shapes or (cheapest(bound)[0],)
    descriptors = tuple(store(bound.descriptor(m, n)) for m, n in shapes)
    return StoredVariant(facts_of(bound), descriptors)


def bind_source(source: Source, options: CompileOptions, head: int | None = None) -> BoundMask:
    """Text -> the mask at its sizes, for those who need no artifact.

    head: the query head whose mask it is.  None, for masks that are the same for all heads, raises
    `BindError` where they differ.
    """
    mask, _ = resolve_with_warnings(parse(source), source)
    form = close(mask)
    names = bind_names(form, seq=options.seq, given=options.sizes)
    return bind(form if head is None else form_of_head(form, head), names)


def heads_of_source(source: Source) -> tuple[tuple[HeadRange, ...], ...]:
    """Text -> the sets of query heads that see the same; one set where heads do not differ."""
    mask, _ = resolve_with_warnings(parse(source), source)
    return tuple(variant.heads for variant in variants_of(close(mask)))
