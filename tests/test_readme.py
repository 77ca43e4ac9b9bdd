"""The README's Python example and its picture; its commands are run in test_docs.py."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from cmask import masks
from support.command import run_cmask

TEXT = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    """The fenced blocks of one language, "" for those of none."""
    pieces = TEXT.split("```")[1::2]
    return [text.partition("\n")[2] for text in pieces if text.partition("\n")[0] == language]


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = _blocks("python")
    monkeypatch.chdir(tmp_path)
    assert run_cmask("compile", "shared_prompt", "--seq", "1k").code == 0
    names: dict[str, object] = {}
    exec(example, names)
    out, q = names["out"], names["q"]
    assert out.isfinite().all()  # type: ignore[attr-defined]
    assert q.grad.isfinite().all()  # type: ignore[attr-defined]


def test_the_mask_is_the_one_that_ships() -> None:
    shipped = masks.path("shared_prompt").read_text(encoding="utf-8")
    mask, _ = _blocks("")
    assert shipped.endswith(mask)


def test_the_picture_is_what_the_command_draws() -> None:
    _, session = _blocks("")
    command, _, picture = session.partition("\n")
    assert run_cmask(*shlex.split(command.removeprefix("$ cmask "))).out == picture


def test_the_number_of_masks_is_right() -> None:
    assert f"\n{len(masks.names())} of them" in TEXT
