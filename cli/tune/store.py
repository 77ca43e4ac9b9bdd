"""Winners into an artifact, beside what it holds of other devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from cmask.cli.tune.run import Group
from cmask.runtime.artifact import ArtifactError, read_artifact, write_artifact
from cmask.runtime.schema import StoredConfig


def with_winners(
    artifact: bytes,
    groups: Iterable[Group],
    machine: Mapping[str, str],
    before: Iterable[StoredConfig] = (),
) -> bytes:
    """The artifact with what was measured in place of what ships.

    before: measured configurations of an older artifact; what was measured now takes their place.
    """
    body = read_artifact(artifact)
    configs = {_key(config): config for config in body.configs}
    groups = [group for group in groups if group.found.winner is not None]
    anew = {_call(group.target, group.dtype, group.head_dim, group.way) for group in groups}
    for config in before:
        way = "fwd" if config.direction == "forward" else "bwd"
        if _call(config.target, config.dtype, config.head_dim, way) not in anew:
            configs[_key(config)] = config
    for group in groups:
        configs |= {_key(config): config for config in measured(group, machine)}
    return write_artifact(replace(body, configs=tuple(configs.values())))


def measured(group: Group, machine: Mapping[str, str]) -> list[StoredConfig]:
    """The winner of a group as an artifact has it; nothing where there is none."""
    winner, default = group.found.winner, group.found.default
    if winner is None or winner.ms is None or default.ms is None:
        return []
    versions = ("cmask", "torch", "triton", "driver")
    found: dict[str, str | float] = {
        "latency_ms": winner.ms,
        "default_ms": default.ms,
        "inputs": group.inputs,
        "device": machine["gpu"],
        "versions": ", ".join(f"{name} {machine[name]}" for name in versions),
        "date": machine["date"],
    }
    fields = [
        config.to_fields(
            target=group.target, dtype=group.dtype, head_dim=group.head_dim, measured=found
        )
        for config in winner.candidate.configs
    ]
    return [StoredConfig(**each) for each in fields]


def measured_before(path: Path, artifact: bytes) -> tuple[StoredConfig, ...]:
    """What an older artifact of the same mask holds; nothing if there is none."""
    try:
        older = read_artifact(path.read_bytes())
    except (OSError, ArtifactError):
        return ()
    if older.source_sha256 != read_artifact(artifact).source_sha256:
        return ()
    return tuple(config for config in older.configs if config.measured is not None)


def _key(config: StoredConfig) -> tuple[str, str, str, int]:
    return config.target, config.direction, config.dtype, config.head_dim


def _call(target: str, dtype: str, head_dim: int, way: str) -> tuple[str, str, int, str]:
    return target, dtype, head_dim, way
