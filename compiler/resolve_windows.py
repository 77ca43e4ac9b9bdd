"""Windows as written -> windows of a coordinate, plain or moved at the edge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cmask.compiler import ir
from cmask.compiler.faults import did_you_mean
from cmask.compiler.resolve_coordinates import Coordinates
from cmask.grammar import syntax
from cmask.runtime.expressions import ONE, Expr, Literal

WINDOW = "`window(left, right)`, inclusive distances: `window(15, 0)` is the 16 nearest keys"

SHIFTED = "write `window(axis, left, right, edge=shift)`, with or without `stride=s`"


@dataclass(frozen=True, slots=True)
class Windows:
    """Resolves the windows of one rule."""

    rule: Coordinates

    def resolve(self, node: syntax.Application) -> ir.Pattern | None:
        """The window; None if it is reported."""
        plain = [a for a in node.arguments if not isinstance(a, syntax.Keyword)]
        keywords = {a.name.text: a for a in node.arguments if isinstance(a, syntax.Keyword)}
        half = len(plain) == 2 and plain[0] in (syntax.Reference("pos"), syntax.Reference("offset"))
        if half or len(plain) not in (2, 3) or not set(keywords) <= {"edge", "stride"}:
            self.misused_window(node, plain)
            return None
        if len(plain) + len(keywords) < len(node.arguments):
            self.misused(node, "`window` takes each keyword once", SHIFTED)
            return None
        if len(plain) == 2:
            self.warn_of_axes(plain[0])
            self.rule.need_positions(node)
            coordinate: ir.Coordinate | None = ir.Coordinate("pos")
        else:
            coordinate = self.rule.coordinate(plain[0])
        left, right = (self.rule.values.number(a) for a in plain[-2:])
        self.not_empty(node, left, right)
        if coordinate is None:
            return None
        if keywords:
            return self.shifted(node, coordinate, left, right, keywords)
        return ir.Window(coordinate, left, right)

    def misused_window(self, node: syntax.Application, plain: Sequence[syntax.Expression]) -> None:
        """`window(16)` elsewhere means 16 keys, or 17: say how each is written here."""
        match node.arguments:
            case [syntax.Number(value=int(count))] if count > 0:
                help = f"write `window({count - 1}, 0)` for the {count} keys up to the query's own"
                self.misused(node, "`window` takes left and right, not 1 argument", help)
            case [syntax.Reference(name="pos" | "offset" as name), _]:
                help = f"write `window({name}, left, right)`, such as `window({name}, 15, 0)`"
                self.misused(node, f"a window along `{name}` takes left and right", help)
            case _ if len(plain) in (2, 3):
                self.misused(node, "`window` takes no keywords but `edge` and `stride`", SHIFTED)
            case _:
                self.misused(node, f"`window` takes left and right, not {len(plain)} arguments")

    def warn_of_axes(self, left: syntax.Expression) -> None:
        """`window(h, 2)` reads as `window(pos, h, 2)`, and may have been meant along `h`."""
        match left:
            case syntax.Reference(name=name) if name in self.rule.declared.axes:
                self.rule.faults.warning(
                    "axis-as-distance",
                    f"the size of `{name}` is taken as a distance in `pos`",
                    left.span,
                    "an axis",
                    f"write `window({name}, left, right)` for a window along it, or "
                    f"`window(pos, {name}, ...)` if this is meant",
                )

    def not_empty(self, node: syntax.Application, left: Expr, right: Expr) -> None:
        ends = [e.value for e in (left, right) if isinstance(e, Literal)]
        if -math.inf in ends or (len(ends) == 2 and sum(ends) < 0):
            self.rule.faults.error(
                "empty-window",
                "a window holds no key",
                node.span,
                "left + right is below zero",
                "`window(0, 0)` is the query itself alone",
            )

    def shifted(
        self,
        node: syntax.Application,
        coordinate: ir.Coordinate,
        left: Expr,
        right: Expr,
        keywords: dict[str, syntax.Keyword],
    ) -> ir.Pattern | None:
        edge = keywords.get("edge")
        if edge is None:
            self.rule.faults.error(
                "bad-edge",
                "neighbours share a window only if it is moved at the edge",
                keywords["stride"].span,
                "stands without `edge=shift`",
                "add `edge=shift`",
            )
            return None
        if edge.value != syntax.Reference("shift"):
            self.rule.faults.error(
                "bad-edge",
                "a window is cut off at the edge, or moved there",
                edge.span,
                "neither",
                "write `edge=shift` to move it, or leave it out to cut it off",
            )
            return None
        if (
            coordinate.name not in self.rule.declared.axes
            or coordinate.divisor
            or coordinate.modulus
        ):
            self.rule.faults.error(
                "shift-needs-axis",
                "only a window along an axis of a grid can be moved at the edge",
                next(a.span for a in node.arguments if a not in keywords.values()),
                "not an axis",
                did_you_mean(coordinate.name, self.rule.declared.axes)
                or "give the region axes: `region image[h, w]`",
            )
            return None
        ends = [e.value for e in (left, right) if isinstance(e, Literal)]
        if math.inf in ends:
            self.rule.faults.error(
                "infinite-shift",
                "a window that is moved at the edge has a finite length",
                node.span,
                "reaches to infinity",
                "give both distances, or leave out `edge=shift`",
            )
        return ir.ShiftedWindow(coordinate.name, left, right, self.stride(keywords.get("stride")))

    def stride(self, keyword: syntax.Keyword | None) -> Expr:
        stride = ONE if keyword is None else self.rule.values.number(keyword.value)
        if keyword and isinstance(stride, Literal) and not 1 <= stride.value < math.inf:
            self.rule.faults.error(
                "bad-stride",
                f"{stride.value} neighbours cannot share a window",
                keyword.span,
                "not a positive number",
                "write `stride=1`, or leave it out: each query has its own",
            )
        return stride

    def misused(
        self, node: syntax.Application, message: str, help: str = f"write {WINDOW}"
    ) -> None:
        self.rule.faults.error("bad-argument", message, node.span, "here", help)
