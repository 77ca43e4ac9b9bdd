"""What a plan has room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cmask.runtime.closed_form import ClosedForm, Group, Item
from cmask.runtime.derive.layout import MAX_TOKENS
from cmask.runtime.derive.sizes import BindError


@dataclass(frozen=True)
class Room:
    """What a plan has room for.

    tokens          queries and keys
    instances       starred region or group -> instances within one instance of what it lies in
    intervals       of a row: 1, 2 or 4
    runs_per_block  full runs, and as many partial ones, that a block has on average
    """

    tokens: tuple[int, int]
    instances: Mapping[str, int]
    intervals: int = 4
    runs_per_block: int = 8


def starred(items: tuple[Item, ...]) -> list[Item]:
    """The starred regions and groups."""
    found: list[Item] = []
    for item in items:
        found += [item] if item.level is not None else []
        found += starred(item.items) if isinstance(item, Group) else []
    return found


def check_room(form: ClosedForm, room: Room) -> None:
    """Raise `BindError` where room is missing, or none that a plan can have."""
    if min(room.tokens) < 1 or max(room.tokens) > MAX_TOKENS:
        raise BindError(f"tokens must be 1 to {MAX_TOKENS:,}, got {room.tokens}")
    if room.intervals not in (1, 2, 4):
        raise BindError(f"intervals must be 1, 2 or 4, got {room.intervals}")
    if room.runs_per_block < 1:
        raise BindError(f"runs_per_block must be at least 1, got {room.runs_per_block}")
    names = [item.name for item in starred(form.layout)]
    missing = [name for name in names if room.instances.get(name, 0) < 1]
    if missing:
        example = ", ".join(f'"{name}": 64' for name in missing)
        raise BindError(f"room is needed for each starred item: instances={{{example}}}")
    unknown = sorted(set(room.instances) - set(names))
    if unknown:
        raise BindError(f"`{unknown[0]}` is no starred region or group")
