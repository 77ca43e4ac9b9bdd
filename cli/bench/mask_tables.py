"""Tables of a page with a line a mask: speeds, eager calls, what binding costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from cmask.cli.bench import cells, titles
from cmask.cli.bench.markdown import Notes, plain, table
from cmask.cli.bench.parts import Part
from cmask.cli.bench.rows import Binding, Group
from cmask.cli.bench.settings import OURS
from cmask.cli.bench.table import NOTHING, size_text
from cmask.cli.report import CommandFault

FASTEST = ("flex-fa4", "fa4")  # whom a ratio stands beside unless a part says otherwise
_BY = "÷"

Column = tuple[str, Callable[[Group, Notes], str]]


def speed_lines(part: Part, groups: Sequence[Group]) -> list[str]:
    """Masks × implementations, then cmask by its peers, then errors."""
    names = part.columns or _usual(groups)
    return [*_table(groups, [_column(name, groups) for name in names]), *_errors(groups)]


def eager_lines(part: Part, groups: Sequence[Group]) -> list[str]:
    """Calls as Python makes them, and what each costs the host."""
    names = [name for name in part.columns or cells.with_figures(groups) if name != OURS]
    columns: list[Column] = [_eager_speed(name) for name in (OURS, *names)]
    columns += [_eager_ratio(name) for name in names]
    columns += [_host(name) for name in (OURS, *names)]
    return _table(groups, columns)


def binding_lines(_: Part, groups: Sequence[Group]) -> list[str]:
    """Time to make a mask known, and memory, next to create_block_mask."""
    bound = [group for group in groups if group.binding is not None]
    if not bound:
        raise CommandFault("no mask was bound in this run")
    columns: list[Column] = [
        ("cmask bind, ms (peak)", _ours),
        *(_ON_DEVICE if any(_binding(g).device_ms is not None for g in bound) else ()),
        ("create_block_mask compiled, ms (peak)", lambda g, n: _theirs(g, "compiled", n)),
        ("eager, ms (peak)", lambda g, n: _theirs(g, "eager", n)),
        ("cmask's block lists", lambda g, _: size_text(_binding(g).ours_bytes)),
        ("BlockMask", lambda g, _: _optional_size(_binding(g).block_mask_bytes)),
    ]
    return _table(bound, columns)


def _table(groups: Sequence[Group], columns: Sequence[Column]) -> list[str]:
    notes = Notes()
    heads, words = cells.labels(groups)
    rows = [
        [*row, *(cell(group, notes) for _, cell in columns)]
        for row, group in zip(words, groups, strict=True)
    ]
    head = [*heads, *(name for name, _ in columns)]
    return [*table(head, rows, words=len(heads)), *notes.lines()]


def _usual(groups: Sequence[Group]) -> list[str]:
    names = cells.with_figures(groups)
    peers = [name for name in names if name != OURS]
    fastest = [name for name in peers if name in FASTEST]
    return [*names, *(f"{_BY}{name}" for name in fastest or peers), "error"]


def _column(name: str, groups: Sequence[Group]) -> Column:
    if name == "error":
        return "error", cells.error
    base = name.removeprefix(_BY)
    if all(cells.of(group, base) is None for group in groups):
        raise CommandFault(f"`{base}` is in none of the runs")
    title = titles.of_implementation(base)
    if name.startswith(_BY):
        return f"cmask ÷ {title}", lambda group, notes: cells.ratio(group, base, notes)
    return title, lambda group, notes: cells.speed(group, base, notes)


def _eager_speed(name: str) -> Column:
    title = titles.of_implementation(name)
    return title, lambda group, notes: cells.speed(group, name, notes, eager=True)


def _eager_ratio(name: str) -> Column:
    title = f"cmask ÷ {titles.of_implementation(name)}"
    return title, lambda group, notes: cells.ratio(group, name, notes, eager=True)


def _host(name: str) -> Column:
    title = f"host µs, {titles.of_implementation(name)}"
    return title, lambda group, notes: cells.host(group, name, notes)


def _errors(groups: Sequence[Group]) -> list[str]:
    """The largest of each implementation."""
    results = list(chain.from_iterable(group.results for group in groups))
    said = _largest((result.name, result.error) for result in results)
    lines = ["", f"Largest error against float64: {said}."] if said else []
    logs = _largest((result.name, result.lse_error) for result in results)
    return [*lines, f"Of a log-sum-exp, absolute: {logs}."] if logs else lines


def _largest(errors: Iterable[tuple[str, float | None]]) -> str:
    found: dict[str, float] = {}
    for name, error in errors:
        if error is not None:
            # NaN is larger than anything; `max` would keep what stands first
            found[name] = error if error != error else max(found.get(name, 0.0), error)
    return ", ".join(
        f"{plain(titles.of_implementation(name))} {error:.1e}" for name, error in found.items()
    )


def _binding(group: Group) -> Binding:
    assert group.binding is not None
    return group.binding


def _ours(group: Group, _: Notes) -> str:
    binding = _binding(group)
    return _cost(binding.ours_ms, binding.ours_peak)


def _theirs(group: Group, name: str, notes: Notes) -> str:
    binding = _binding(group)
    ms, why = getattr(binding, f"{name}_ms"), getattr(binding, f"{name}_why")
    if ms is not None:
        return _cost(ms, getattr(binding, f"{name}_peak"))
    return _why(why, notes)


def _device(group: Group, notes: Notes) -> str:
    binding = _binding(group)
    if binding.device_ms is not None:
        return f"{binding.device_ms * 1e3:.1f}" + _in_brackets(binding.device_peak)
    return _why(binding.device_why, notes)


def _device_trained(group: Group, notes: Notes) -> str:
    binding = _binding(group)
    if binding.device_trained_ms is not None:
        return f"{binding.device_trained_ms * 1e3:.1f}"
    return _why(binding.device_why, notes)


def _device_host(group: Group, notes: Notes) -> str:
    binding = _binding(group)
    if binding.device_host_us is not None:
        return f"{binding.device_host_us:.0f}"
    return _why(binding.device_why, notes)


# without figures of it, as in runs that were made before it was measured, no columns
_ON_DEVICE: tuple[Column, ...] = (
    ("cmask bind_, GPU µs (peak)", _device),
    ("with gradients, GPU µs", _device_trained),
    ("host µs", _device_host),
)


def _why(why: str, notes: Notes) -> str:
    """A word, and the rest below the table."""
    word, _, detail = why.partition(": ")
    return (word or NOTHING) + notes.mark(detail or word or "Not measured")


def _cost(ms: float, peak: int | None) -> str:
    digits = 1 if ms >= 1 else 2
    return f"{ms:.{digits}f}" + _in_brackets(peak)


def _in_brackets(peak: int | None) -> str:
    return "" if peak is None else f" ({size_text(peak)})"


def _optional_size(size: int | None) -> str:
    return NOTHING if size is None else size_text(size)
