"""Every example in a docstring runs."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# listed by hand: pkgutil finds nothing in an editable namespace, and pytest's own collector
# would import each file by its bare name, a second copy of every class
MODULES = sorted(
    "cmask." + ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for part in ("cli", "grammar", "compiler", "runtime", "masks")
    for file in (ROOT / part).rglob("*.py")
    if ">>>" in file.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_every_example_in_a_docstring_runs(name: str) -> None:
    failed, tried = doctest.testmod(import_module(name))
    assert tried
    assert not failed
