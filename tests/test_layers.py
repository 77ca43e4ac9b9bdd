"""Imports run one way: cli -> compiler -> grammar; compiler, cli -> runtime; cli -> masks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "grammar": {"grammar"},
    "runtime": {"runtime"},
    "compiler": {"compiler", "grammar", "runtime"},
    "masks": {"masks"},
    "cli": {"cli", "compiler", "grammar", "runtime", "masks"},
}
PEOPLES_TOOLS = {"lark", "typer", "rich", "pydantic"}
FILES = [
    pytest.param(layer, file, id=str(file.relative_to(ROOT)))
    for layer in MAY_IMPORT
    for file in sorted((ROOT / layer).rglob("*.py"))
]


@pytest.mark.parametrize(("layer", "file"), FILES)
def test_a_layer_imports_only_what_lies_below_it(layer: str, file: Path) -> None:
    used = {module.split(".")[1] for module in _imports(file) if module.startswith("cmask.")}
    assert used <= MAY_IMPORT[layer]


@pytest.mark.parametrize(("layer", "file"), FILES)
def test_no_layer_is_imported_by_its_bare_name(layer: str, file: Path) -> None:
    assert not {module.split(".")[0] for module in _imports(file)} & set(MAY_IMPORT)


@pytest.mark.parametrize("file", sorted((ROOT / "runtime").rglob("*.py")), ids=lambda f: f.stem)
def test_the_runtime_needs_none_of_the_tools_for_people(file: Path) -> None:
    assert not {module.split(".")[0] for module in _imports(file)} & PEOPLES_TOOLS


def _imports(file: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module="cmask", names=names):
                yield from (f"cmask.{alias.name}" for alias in names)
            case ast.ImportFrom(module=str(module)):
                yield module
