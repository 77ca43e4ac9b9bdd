"""Results as text, no wider than 100 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cmask.cli.bench.rows import CEILING_FLOPS, REGIMES, Binding, Group, Result, names_of
from cmask.cli.bench.settings import OURS

WIDTH = 100
NOTHING = "–"
LEGEND = (
    "Pairs of figures: rested / sustained.  TFLOP/s: work that the mask needs, by time.  Of dense:",
    "share of a product of 8192³ in the same run.  cmask ÷ it: how many times as fast cmask is.",
    "Spread: longest time by shortest.  Error: sampled vectors against float64.  *: no graph.",
)
_WIDTHS = (16, 9, 11, 11, 11, 13, 8, 9, 9)
_HEADING = (
    "implementation",
    "ms",
    "TFLOP/s",
    "eager",
    "of dense",
    "cmask ÷ it",
    "spread",
    "error",
    "host µs",
)
_DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
# the paper's figures: times as fast as FlexAttention (FA4); on causal, share of native FA4
PAPER = {"hstu": "1.44", "shared_prompt": "2.13", "clear_r16": "2.87"}
PAPER_CAUSAL = "0.85 to 0.89"


def group_lines(group: Group) -> list[str]:
    """One mask in one direction: a line an implementation, and what there is to say of them."""
    lines = ["", _title(group), _columns(_HEADING)]
    lines += [_line(group, result) for result in group.results]
    lines += _notes((r.name, r.spelling) for r in group.results)
    lines += _notes((r.name, r.detail) for r in group.results if r.is_ok)
    lines += _notes((r.name, r.no_graph and f"no graph: {r.no_graph}") for r in group.results)
    lines += binding_lines(group.binding) if group.binding else []
    lines += _ceiling_lines(group.ceiling) if group.ceiling else []
    if group.before or group.after:
        lines.append(cut(f"  before {group.before}; after {group.after}"))
    return lines


def _notes(said: Iterable[tuple[str, str]]) -> list[str]:
    """What there is to say, once, behind the names of those of whom it is true."""
    names: dict[str, list[str]] = {}
    for name, text in said:
        if text:
            names.setdefault(text, []).append(name)
    return [cut(f"  {', '.join(those)}: {text}") for text, those in names.items()]


def _ceiling_lines(ceiling: Result) -> list[str]:
    if not ceiling.is_ok:
        return [cut(f"  matrix product of 8192³: {ceiling.status} {ceiling.detail}")]
    times = [ceiling.times.median(regime) for regime in REGIMES]
    speeds = pair(CEILING_FLOPS / ms / 1e9 if ms else None for ms in times)
    return [f"  matrix product of 8192³: {speeds} TFLOP/s"]


def _title(group: Group) -> str:
    heads, dims = ("/".join(map(str, dict.fromkeys(x))) for x in (group.heads, group.dims))
    return cut(
        f"{group.mask}  {group.place}  {_DIRECTIONS[group.direction]}  {group.pairs:,} pairs  "
        f"density {group.density:.4f}  heads {heads}  head_dim {dims}"
    )


def _columns(cells: Sequence[str]) -> str:
    first, *others = zip(cells, _WIDTHS, strict=True)
    return "  " + f"{first[0]:{first[1]}}" + "".join(f"{text:>{width}}" for text, width in others)


def _line(group: Group, result: Result) -> str:
    if not result.times.rested:
        head = f"  {result.name:{_WIDTHS[0]}}{result.status:>{_WIDTHS[1]}}"
        return cut(f"{head}  {result.detail}")
    times, ms = result.times, result.times.median("rested")
    mark = "" if result.mode == "graph" else "*"
    cells = (
        result.name + mark,
        NOTHING if ms is None else f"{ms:.3f}",
        pair(group.tflops(times, r) for r in REGIMES),
        pair(group.tflops(result.eager, r) for r in REGIMES),
        pair((group.share(result, r) for r in REGIMES), percent=True),
        pair((group.ratio(result, r) for r in REGIMES), digits=2),
        _number(times.spread("rested"), 2),
        NOTHING if result.error is None else f"{result.error:.1e}",
        _number(result.host_us, 0),
    )
    return cut(_columns(cells))


def binding_lines(binding: Binding) -> list[str]:
    """Time, memory and bytes of making the mask known."""
    lines = [
        f"  bind for new lengths: {binding.ours_ms:.1f} ms, "
        f"{size_text(binding.ours_bytes)} of block lists{_peak(binding.ours_peak)}"
    ]
    lines += _on_device(binding)
    said = []
    for name in ("compiled", "eager"):
        ms, why = getattr(binding, f"{name}_ms"), getattr(binding, f"{name}_why")
        if ms is not None:
            said.append(f"{name} {ms:.1f} ms{_peak(getattr(binding, f'{name}_peak'))}")
        elif why:
            said.append(f"{name} {why.partition(':')[0]}")
    if said:
        size = binding.block_mask_bytes
        kept = "" if size is None else f", {size_text(size)}"
        lines.append(cut(f"  create_block_mask: {'; '.join(said)}{kept}"))
    return lines


def _on_device(binding: Binding) -> list[str]:
    """Of `bind_`; nothing where it was not tried."""
    said = binding.device_why
    if binding.device_ms is not None:
        host = _number(binding.device_host_us, 0)
        said = f"{binding.device_ms * 1e3:.1f} µs of GPU, {host} µs of host"
        if binding.device_trained_ms is not None:
            said += f", {binding.device_trained_ms * 1e3:.1f} µs with gradients"
        said += _peak(binding.device_peak)
    return [cut(f"  bind_ on the device: {said}")] if said else []


def _peak(size: int | None) -> str:
    return "" if size is None else f" ({size_text(size)} at most)"


def size_text(size: int) -> str:
    """Bytes as people say them.

    >>> size_text(16896), size_text(12)
    ('16.5 KiB', '12 bytes')
    """
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def summary_lines(groups: Sequence[Group]) -> list[str]:
    """A line a mask, length and direction; a column an implementation, then cmask by each peer."""
    names = names_of(groups)
    columns = [(name, [_speed(group, name) for group in groups]) for name in names]
    columns += [
        (f"÷ {name}", [_ratio(group, name) for group in groups])
        for name in names
        if name != OURS and any(_ratio(group, name) != NOTHING for group in groups)
    ]
    heads = [f"{g.mask}  {g.place}  {g.direction}" for g in groups]
    width = max((len(head) for head in heads), default=0)
    lines: list[str] = []
    for part in _fitting(columns, WIDTH - width):
        widths = [_width(name, cells) for name, cells in part]
        lines += ["", " " * width + _row([name for name, _ in part], widths)]
        for index, head in enumerate(heads):
            cells = [cells[index] for _, cells in part]
            lines.append(f"{head:{width}}" + _row(cells, widths))
    return lines


def _fitting(
    columns: Sequence[tuple[str, list[str]]], room: int
) -> Iterable[list[tuple[str, list[str]]]]:
    """As many columns at a time as there is room for."""
    part: list[tuple[str, list[str]]] = []
    used = 0
    for name, cells in columns:
        width = _width(name, cells)
        if part and used + width > room:
            yield part
            part, used = [], 0
        part.append((name, cells))
        used += width
    if part:
        yield part


def _width(name: str, cells: Sequence[str]) -> int:
    return 2 + max(len(text) for text in (name, *cells))


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f"{text:>{width}}" for text, width in zip(cells, widths, strict=True))


def _of(group: Group, name: str) -> Result | None:
    return next((result for result in group.results if result.name == name), None)


def _speed(group: Group, name: str) -> str:
    result = _of(group, name)
    if result is None or not result.times.rested:
        return NOTHING if result is None else result.status
    return pair(group.tflops(result.times, r) for r in REGIMES)


def _ratio(group: Group, name: str) -> str:
    result = _of(group, name)
    ratios = [None if result is None else group.ratio(result, r) for r in REGIMES]
    return NOTHING if ratios == [None, None] else pair(ratios, digits=2)


def paper_lines(groups: Sequence[Group]) -> list[str]:
    """The forward's ratios next to those that the paper gives."""
    lines = ["", "forward, cmask ÷ peer, rested / sustained; the paper's figures without regimes"]
    for group in groups:
        found = paper_figure(group.mask)
        if found is not None and group.direction == "fwd":
            peer, figure = found
            head = f"  {group.mask:14}{group.place:>10}  ÷ {peer:9}"
            lines.append(f"{head}{_ratio(group, peer):>14}   paper {figure}")
    return lines


def paper_figure(mask: str) -> tuple[str, str] | None:
    """(peer, how many times as fast the paper is), if the mask is the paper's."""
    if mask == "causal":
        return "fa4", PAPER_CAUSAL
    return ("flex-fa4", PAPER[mask]) if mask in PAPER else None


def pair(values: Iterable[float | None], *, digits: int = 0, percent: bool = False) -> str:
    """Rested / sustained.

    >>> pair((763.4, None)), pair((0.957, 0.9), percent=True)
    ('763 / –', '96% / 90%')
    """
    unit, factor = ("%", 100) if percent else ("", 1)
    return " / ".join(
        NOTHING if value is None else f"{value * factor:.{digits}f}{unit}" for value in values
    )


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def cut(text: str) -> str:
    """No wider than the table."""
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
