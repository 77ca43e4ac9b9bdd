"""Every example in a docstring runs, and so does every command of the README."""

from __future__ import annotations

import doctest
import os
import shlex
import subprocess
import sys
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


def test_every_command_of_the_readme_runs(tmp_path: Path) -> None:
    for command in _commands(ROOT / "README.md"):
        words = shlex.split(command, comments=True)
        if words[0].startswith(".ci/"):
            # these set up an environment of their own: .ci/run and people run them
            assert os.access(ROOT / words[0], os.X_OK), command
        elif words[0] == "cmask":
            call = [sys.executable, "-m", "cmask.cli", *words[1:]]
            result = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=120)
            assert result.returncode == 0, f"{command}: {result.stderr}"


def _commands(file: Path) -> list[str]:
    """The lines of fenced `sh` blocks, in order: later ones use what earlier ones made."""
    commands, inside = [], False
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            inside = line.strip() == "```sh"
        elif inside and line.strip():
            commands.append(line.strip())
    return commands
