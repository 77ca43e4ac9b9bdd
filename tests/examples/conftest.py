"""Examples, imported as when they are run: beside their neighbours."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """An example's module by its name; neither it nor its neighbours outlive the test."""
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module
    for file in FOLDER.glob("*.py"):
        sys.modules.pop(file.stem, None)
