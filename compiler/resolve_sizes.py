"""The sizes block: defaults in an order in which each needs only earlier ones."""

from __future__ import annotations

import difflib

from cmask.compiler.declared import TAKEN, Declared
from cmask.compiler.faults import Faults
from cmask.compiler.resolve_values import Values, nesting
from cmask.grammar import syntax
from cmask.runtime.expressions import Expr, names_in


def resolve_sizes(
    mask: syntax.Mask, declared: Declared, faults: Faults
) -> tuple[tuple[str, Expr], ...]:
    """Defaults of sizes, tables and helper names."""
    entries = [e for i in mask.items if isinstance(i, syntax.Sizes) for e in i.entries]
    nodes: dict[str, syntax.Size] = {}
    for entry in entries:
        if entry.name.text in TAKEN:
            faults.error(
                "taken-name",
                f"`{entry.name.text}` has a meaning of its own",
                entry.name.span,
                "names a size",
                f"choose another name, such as `{entry.name.text}_`",
            )
        elif entry.name.text in nodes:
            faults.error(
                "duplicate-size",
                f"`{entry.name.text}` has a second size",
                entry.name.span,
                "given above already",
            )
        else:
            nodes[entry.name.text] = entry
    known = {*declared.sizes, *declared.tables}
    values = Values(declared, faults, {"seq", *declared.params, *declared.sizes, *nodes})
    found = {
        name: values.sizes(node.value) if name in declared.sizes else values.value(node.value)
        for name, node in nodes.items()
    }
    for name in found.keys() & declared.sizes:
        _check_lists(name, nodes[name], found[name], declared.stars(name), faults)
    used = {name for expression in found.values() for name in names_in(expression)}
    for name, node in nodes.items():
        if name not in known:
            _check_helper(name, node, name in used, declared, faults)
    return _sorted(found, nodes, faults)


def _check_lists(name: str, node: syntax.Size, value: Expr, stars: int, faults: Faults) -> None:
    """A size has a list for each star around it, or fewer."""
    lists = nesting(value)
    if lists > stars == 0:
        faults.error(
            "too-many-lists",
            f"nothing repeats `{name}`",
            node.value.span,
            "a list",
            "write a number, or `*` behind the name of the region or of a group around it",
        )
    elif lists > stars:
        faults.error(
            "too-many-lists",
            f"lists of `{name}` nest {stars} deep, one for each `*` around it",
            node.value.span,
            f"{lists} deep",
            "write a list with an entry per instance" + " of the outermost group" * (stars > 1),
        )


def _check_helper(
    name: str, node: syntax.Size, used: bool, declared: Declared, faults: Faults
) -> None:
    kind = declared.kinds.get(name)
    if kind in ("region", "group"):
        faults.error(
            "fixed-size",
            f"the size of the {kind} `{name}` is not called `{name}`",
            node.name.span,
            "has no size of this name",
            "leave it out: it follows from its axes, its fixed size or its parts",
        )
    elif kind == "parameter":
        faults.error(
            "param-in-sizes",
            f"`{name}` is a parameter",
            node.name.span,
            "not a size",
            f"give its default where it is declared: `param {name} = ...`",
        )
    elif kind is not None:
        message = f"the {kind} `{name}` has no size"
        faults.error("fixed-size", message, node.name.span, "not a size", "leave it out")
    elif not used:
        close = difflib.get_close_matches(name, declared.sizes, n=1)
        faults.error(
            "unknown-size",
            f"`{name}` is no size of this mask, and nothing uses it",
            node.name.span,
            "not a size",
            f"did you mean `{close[0]}`?" if close else "remove it",
        )


def _sorted(
    found: dict[str, Expr], nodes: dict[str, syntax.Size], faults: Faults
) -> tuple[tuple[str, Expr], ...]:
    done: dict[str, Expr] = {}
    waiting = dict(found)
    while waiting:
        ready = [n for n, e in waiting.items() if not (names_in(e) & waiting.keys())]
        if not ready:
            circle = (n for n in waiting if n in _reached(n, waiting))
            name = min(circle, key=lambda n: nodes[n].span.start)
            faults.error(
                "size-cycle",
                f"the size `{name}` depends on itself",
                nodes[name].span,
                "in a circle",
                "express one of the sizes by `seq`",
            )
            return tuple(found.items())
        for name in ready:
            done[name] = waiting.pop(name)
    return tuple(done.items())


def _reached(name: str, found: dict[str, Expr]) -> set[str]:
    """The sizes that a size depends on."""
    reached, pending = set[str](), [name]
    while pending:
        needed = names_in(found[pending.pop()]) & found.keys()
        pending += needed - reached
        reached |= needed
    return reached
