"""Options of the test run, and which tests this machine can run."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    # read when triton is imported, which torch's compiler does, too: before any test module
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite golden files with what is printed now; then read the diff",
    )
    parser.addoption("--slow", action="store_true", help="run the tests that need minutes, too")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if for_gpu and not torch.cuda.is_available():
        for item in for_gpu:
            item.add_marker(pytest.mark.skip(reason="this machine has no CUDA device"))
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="needs minutes; run with --slow"))
