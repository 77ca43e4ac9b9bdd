"""What each door loads, seen from fresh processes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

FOR_PEOPLE = ("lark", "typer", "rich", "pydantic", "cmask.compiler", "cmask.grammar", "cmask.cli")
SECONDS_TO_HELP = 0.4  # the bound


def _run(code: str, *arguments: str) -> list[str]:
    """The modules that are loaded once `code` has run, without those that it puts in `before`."""
    code = f"before = set()\n{code}\nimport json, sys"
    code += "\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    modules: list[str] = json.loads(result.stdout.splitlines()[-1])
    return modules


def _loaded(modules: list[str], names: tuple[str, ...]) -> list[str]:
    return [m for m in modules if any(m == name or m.startswith(f"{name}.") for name in names)]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from cmask.compiler.options import CompileOptions
    from cmask.compiler.pipeline import compile_source
    from cmask.grammar.source import Source
    from cmask.masks import path

    text = path("shared_prompt").read_text(encoding="utf-8")
    target = tmp_path_factory.mktemp("cold") / "shared_prompt.cmaskc"
    options = CompileOptions(seq=256)
    target.write_bytes(compile_source(Source("shared_prompt.cmask", text), options).artifact)
    return target


def test_importing_the_runtime_loads_neither_torch_nor_the_compiler() -> None:
    assert not _loaded(_run("import cmask.runtime"), ("torch", "triton", *FOR_PEOPLE))


def test_a_program_with_only_the_runtime_attends_without_the_compiler(artifact: Path) -> None:
    code = """
import sys
import torch
before = set(sys.modules)  # rich, where torch brings it along, says nothing about cmask
from cmask.runtime import attention, load
plan = load(sys.argv[1]).bind()
q, k, v = torch.randn(3, 1, 2, plan.q_len, 32).unbind(0)
assert attention(q, k, v, plan).isfinite().all()
"""
    assert not _loaded(_run(code, str(artifact)), FOR_PEOPLE)


def test_attention_and_the_integration_load_no_transformers(artifact: Path) -> None:
    code = """
import sys, torch
from cmask.runtime import attention, load
from cmask.runtime.integrations.transformers import register
plan = load(sys.argv[1]).bind()
attention(*torch.randn(3, 1, 2, plan.q_len, 32).unbind(0), plan)
"""
    assert not _loaded(_run(code, str(artifact)), ("transformers", *FOR_PEOPLE))


def test_without_transformers_registering_says_what_to_install(artifact: Path) -> None:
    code = """
import sys
sys.modules["transformers"] = None  # as if it were not installed
from cmask.runtime.integrations.transformers import register
try:
    register("x", sys.argv[1])
except ImportError as error:
    assert "pip install 'cmask[transformers]'" in str(error), error
else:
    raise AssertionError("it was registered")
"""
    _run(code, str(artifact))


def test_compiling_does_not_load_torch() -> None:
    code = """
from cmask.compiler.pipeline import compile_source
from cmask.grammar.source import Source
from cmask.compiler.options import CompileOptions
from cmask.masks import path
text = path("shared_prompt").read_text(encoding="utf-8")
compile_source(Source("shared_prompt.cmask", text), CompileOptions(seq=1024))
"""
    assert not _loaded(_run(code), ("torch", "triton"))


def test_the_command_line_starts_without_torch() -> None:
    assert not _loaded(_run("import cmask.cli.main"), ("torch", "triton", "numpy", "lark"))


def _seconds(command: list[str]) -> float:
    """Processor time of a command, the best of five."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_help_comes_at_once() -> None:
    """A slow or busy machine is not cmask's fault: there, as soon as that of an empty command."""
    seconds = _seconds([sys.executable, "-m", "cmask.cli", "--help"])
    if seconds > SECONDS_TO_HELP:
        empty = "import typer; app = typer.Typer(); app.command()(lambda: None); app()"
        assert seconds <= 1.5 * _seconds([sys.executable, "-c", empty, "--help"])
