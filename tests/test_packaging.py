"""What lies in the folders is what gets installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PARTS = ("cli", "grammar", "compiler", "runtime", "masks")


def _setuptools() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings: dict[str, Any] = tomllib.load(file)["tool"]["setuptools"]
    return settings


def test_every_folder_with_an_init_is_listed() -> None:
    folders = {
        "cmask." + ".".join(init.parent.relative_to(ROOT).parts)
        for part in PARTS
        for init in (ROOT / part).rglob("__init__.py")
    }
    assert folders == set(_setuptools()["packages"])


def test_every_folder_with_python_has_an_init() -> None:
    folders = {file.parent for part in PARTS for file in (ROOT / part).rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_cmask_is_a_namespace() -> None:
    """Without a file of its own, importing the runtime can run nothing of the compiler."""
    assert set(_setuptools()["package-dir"]) == {f"cmask.{part}" for part in PARTS}
    assert not (ROOT / "__init__.py").exists()


def test_the_wheel_holds_all_that_git_holds(tmp_path: Path) -> None:
    """Building needs setuptools here: no index is asked."""
    pytest.importorskip("setuptools", minversion="77", reason="built by setuptools 77 or newer")
    copy = tmp_path / "source"
    copy.mkdir()
    for name in (*PARTS, "pyproject.toml", "README.md", "LICENSE"):
        _copy(ROOT / name, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path), str(copy)]
    subprocess.run(command, check=True, timeout=300)
    with zipfile.ZipFile(next(tmp_path.glob("cmask-*.whl"))) as wheel:
        inside = {name for name in wheel.namelist() if name.startswith("cmask/")}
    files = {f"cmask/{file.relative_to(copy)}" for part in PARTS for file in _files(copy / part)}
    assert inside == files
    assert any(name.endswith(".lark") for name in inside)
    assert any(name.endswith(".cmask") for name in inside)


def _files(folder: Path) -> list[Path]:
    kinds = (".py", ".lark", ".cmask", ".typed")
    return [file for file in folder.rglob("*") if file.suffix in kinds]


def _copy(source: Path, target: Path) -> None:
    """A file, or the files of a folder that belong to the package."""
    if source.is_file():
        target.write_bytes(source.read_bytes())
        return
    for file in _files(source):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())
