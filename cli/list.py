"""cmask list: the masks that ship."""

from __future__ import annotations

from cmask.cli.options import Json
from cmask.cli.report import reports_faults


@reports_faults
def list_command(as_json: Json = False) -> None:
    """List the masks that ship; every command takes their names."""
    from cmask import masks
    from cmask.cli.report import console, print_json

    found = {name: masks.description(name) for name in masks.names()}
    if as_json:
        print_json(found)
        return
    width = max(map(len, found))
    for name, description in found.items():
        console().print(f"{name:{width}}  {description}")
