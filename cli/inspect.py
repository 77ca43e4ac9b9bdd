"""cmask inspect: what an artifact holds, and whether this runtime agrees with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cmask.cli.options import Json
from cmask.cli.report import MASK_IS_WRONG, CommandFault, reports_faults

if TYPE_CHECKING:
    from cmask.runtime.derive.facts import Facts
    from cmask.runtime.mask import Mask
    from cmask.runtime.schema import StoredBlocks, StoredConfig


@reports_faults
def inspect_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An artifact (.cmaskc).")],
    show_source: Annotated[bool, typer.Option("--source", help="Print the mask's text.")] = False,
    as_json: Json = False,
) -> None:
    """Inspect an artifact: what it holds, and whether this runtime agrees with it."""
    from cmask.cli.report import print_json
    from cmask.runtime.artifact import ArtifactError
    from cmask.runtime.mask import load

    if not file.is_file():
        raise CommandFault(f"there is no file {file}")
    try:
        data = file.read_bytes()
        mask = load(data)
        verified = mask.verify()
    except OSError as error:
        raise CommandFault(f"{file} cannot be read: {error.strerror}") from None
    except ArtifactError as error:
        raise CommandFault(f"{file}: {error}", MASK_IS_WRONG) from None
    if show_source and not as_json:
        typer.echo(mask.body.source, nl=False)
    elif as_json:
        print_json(_as_json(mask, len(data), verified))
    else:
        _print(mask, file, len(data), verified)


def _print(mask: Mask, file: Path, size: int, verified: int) -> None:
    from cmask.cli.report import console, print_facts, print_pairs
    from cmask.runtime.variants import heads_in_words

    body = mask.body
    console().print(f"{file}  {size:,} bytes  mask {mask.name}", style="bold")
    pairs = [
        ("source", f"{len(body.source):,} characters, sha256 {body.source_sha256.hex()[:16]}…"),
        ("sizes", "as below" if mask.sizes else "bound at run time"),
        *((f"  {name}", _short(value)) for name, value in mask.sizes.items()),
    ]
    pairs += [_blocks(blocks) for blocks in body.descriptors]
    for variant, stored in zip(mask.variants, body.variants, strict=False):
        pairs.append((heads_in_words(variant.heads), ""))
        pairs += [(f"  {name}", found) for name, found in map(_blocks, stored.descriptors)]
    pairs.append(("kernel configurations", f"{len(body.configs)} for {_targets(mask)}"))
    pairs += _measured(body.configs)
    pairs += [("Hopper forward", f"blocks of {m} × {n}") for m, n in _hopper_shapes(mask)]
    pairs.append(("golden vectors", f"{verified} verified by this runtime"))
    print_pairs(pairs)
    facts = _all_facts(mask)
    if facts:
        print_facts(mask.variants, facts)


def _all_facts(mask: Mask) -> list[Facts]:
    """Of each variant; none where something is unbound."""
    return [v.facts for v in mask.body.variants] or [f for f in (mask.facts,) if f is not None]


def _blocks(blocks: StoredBlocks) -> tuple[str, str]:
    runs = len(blocks.full_runs) + len(blocks.bounds_runs)
    return (
        f"{blocks.block_m} × {blocks.block_n} blocks",
        f"{runs:,} runs, {len(blocks.pattern_blocks):,} blocks masked by "
        f"{len(blocks.patterns):,} patterns",
    )


def _targets(mask: Mask) -> str:
    return ", ".join(dict.fromkeys(config.target for config in mask.body.configs)) or "no target"


def _hopper_shapes(mask: Mask) -> list[tuple[int, int]]:
    """The block shape that the cost model chose, at head_dim 128."""
    key = ("gluon", "forward", 128, None)
    configs = [
        c for c in mask.body.configs if (c.kernel, c.direction, c.head_dim, c.measured) == key
    ]
    return list(dict.fromkeys((c.block_m, c.block_n) for c in configs))


def _measured(configs: Sequence[StoredConfig]) -> list[tuple[str, str]]:
    """What tuning found, a line each, and where."""
    measured = [(config, config.measured) for config in configs if config.measured is not None]
    if not measured:
        return [("  not measured", "chosen by budget and cost model; `cmask tune` measures")]
    places = [_listed(found, "device", "inputs", "versions", "date") for _, found in measured]
    return [
        *((f"  {c.target} {c.dtype} {c.head_dim}", _words(c, found)) for c, found in measured),
        *(("  measured on", place) for place in dict.fromkeys(places)),
    ]


def _words(config: StoredConfig, found: Mapping[str, str | float]) -> str:
    from cmask.cli.tune.space import words
    from cmask.runtime.kernels.config import KernelConfig

    took = [_ms(found.get(name)) for name in ("latency_ms", "default_ms")]
    said = f"{config.direction} {words(KernelConfig.from_fields(asdict(config)))}"
    said += f": {took[0]}" if took[0] else ""
    return said + (f" (default {took[1]})" if took[1] else "")


def _ms(value: str | float | None) -> str:
    """A time that an artifact tells; empty where it tells none."""
    return f"{value:.4g} ms" if isinstance(value, float) else ""


def _listed(found: Mapping[str, str | float], *names: str) -> str:
    return ", ".join(str(found[name]) for name in names if name in found)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _as_json(mask: Mask, size: int, verified: int) -> dict[str, Any]:
    from cmask.cli.report import all_facts_as_json

    body = mask.body
    return {
        "mask": mask.name,
        "bytes": size,
        "source": body.source,
        "source_sha256": body.source_sha256.hex(),
        "sizes": dict(mask.sizes),
        **all_facts_as_json(mask.variants, _all_facts(mask)),
        "descriptors": [
            {"block_m": d.block_m, "block_n": d.block_n, "patterns": len(d.patterns)}
            for d in body.descriptors
        ],
        "configs": [asdict(config) for config in body.configs],
        "golden_vectors_verified": verified,
    }
