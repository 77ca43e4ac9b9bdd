"""What pages say of speed is what the files in docs/measured give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cmask.cli.bench.page import made
from cmask.cli.bench.parts import marks_of
from cmask.cli.bench.saved import read_run

ROOT = Path(__file__).parent.parent
MEASURED = ROOT / "docs" / "measured"
PAGES = (ROOT / "docs" / "performance.md", ROOT / "README.md")
MOST_BYTES = 300_000


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_what_its_files_give(page: Path) -> None:
    found = made(page, _text(page))
    remedy = f"run `cmask bench --report {page.relative_to(ROOT)}`"
    assert found.text == _text(page), remedy
    for place, drawn in found.pictures.items():
        assert place.is_file(), remedy
        assert _text(place) == drawn, remedy


def test_the_readmes_table_of_speeds_stands_between_marks() -> None:
    section = _text(PAGES[1]).partition("\n## Speed\n")[2].partition("\n## ")[0]
    by_hand = re.sub(r"<!-- bench.*?<!-- end -->", "", section, flags=re.DOTALL)
    assert "|" not in by_hand


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_will_want_has_a_command(page: Path) -> None:
    commands = _text(MEASURED / "README.md")
    for mark in marks_of(_text(page)):
        for name in mark.part.files:
            assert (page.parent / name).parent == MEASURED
            assert f"| {Path(name).name} |" in commands or not mark.is_later


def test_every_run_is_whole_small_and_used() -> None:
    marks = [(page, mark) for page in PAGES for mark in marks_of(_text(page))]
    used = {
        page.parent / name for page, mark in marks if not mark.is_later for name in mark.part.files
    }
    for file in MEASURED.glob("*.json"):
        assert read_run(file).groups
        assert file.stat().st_size < MOST_BYTES, file
        assert file in used, f"{file.name}: no mark names it, or it is still for later"
