"""Two runs beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmask.cli.bench.compare import compare
from cmask.cli.bench.saved import read_run
from support.bench_groups import group_of, timed, write_run
from support.command import run_cmask


@pytest.fixture(autouse=True)
def _in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def _run(name: str, flex: float, *, ours: float = 1.0, **more: object) -> Path:
    group = group_of(timed("cmask", ours, ours), timed("flex", flex, 1.5), **more)
    return write_run(Path(name), group)


@pytest.mark.parametrize(
    ("second", "percent", "verdict", "code"),
    [(2.0, "0.0%", "within 3%", 0), (2.05, "2.5%", "within 3%", 0), (1.9, "5.3%", "above 3%", 1)],
)
def test_the_largest_difference_decides(
    second: float, percent: str, verdict: str, code: int
) -> None:
    _run("a.json", 2.0)
    _run("b.json", second)
    done = run_cmask("bench", "--compare", "a.json", "b.json")
    assert (done.code, done.err) == (code, "")
    _, rested, sustained, largest, _ = done.out.splitlines()
    assert rested.split()[-3:] == ["2.000", f"{second:.3f}", percent] or code
    assert sustained.split()[-3:] == ["1.500", "1.500", "0.0%"]
    assert largest == f"largest difference of 2 ratios: {percent}, {verdict}"
    assert rested.endswith(" !") == (code == 1)
    assert max(map(len, done.out.splitlines())) <= 102


def test_times_may_differ_where_ratios_do_not() -> None:
    _run("a.json", 2.0)
    group = group_of(timed("cmask", 2.0, 2.0), timed("flex", 4.0, 3.0))
    write_run(Path("b.json"), group)
    assert run_cmask("bench", "--compare", "a.json", "b.json").code == 0


def test_what_only_one_run_has_is_said_and_decides_nothing() -> None:
    both = group_of(timed("cmask", 1.0), timed("flex", 2.0))
    more = group_of(timed("cmask", 1.0), timed("flex", 2.0), timed("fa4", 9.0))
    found = compare(
        read_run(write_run(Path("a.json"), both)),
        read_run(write_run(Path("b.json"), more, group_of(*both.results, mask="hstu"))),
    )
    assert found.agrees
    assert found.alone == (
        "causal  8 × 4k  fwd  16 heads of 128 ÷ fa4, rested (b.json)",
        "hstu  8 × 4k  fwd  16 heads of 128 ÷ flex, rested (b.json)",
    )


def test_runs_of_other_heads_or_types_are_not_compared() -> None:
    _run("a.json", 2.0)
    _run("b.json", 2.0, heads=(64, 8))
    done = run_cmask("bench", "--compare", "a.json", "b.json")
    assert (done.code, done.out) == (2, "")
    assert "a.json and b.json have no ratio in common" in done.err
    write_run(Path("c.json"), group_of(timed("cmask", 1.0)), dtype="float16")
    done = run_cmask("bench", "--compare", "a.json", "c.json")
    assert "the runs differ in dtype: bfloat16 and float16" in done.err


@pytest.mark.parametrize("names", [(), ("a.json",), ("a.json", "b.json", "c.json")])
def test_two_files_are_compared(names: tuple[str, ...]) -> None:
    done = run_cmask("bench", "--compare", *names)
    assert (done.code, done.out) == (2, "")
    assert f"--compare takes two JSON files, not {len(names)}" in done.err
