"""The command as people type it, on a machine without a GPU; the watchdog."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cmask.cli.bench import settings as given
from cmask.cli.values import ValueFault
from support.command import run_cmask

OWN = "mask own {\n    region text\n    text sees text: window(64, 0)\n}\n"


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wherever this runs."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.chdir(tmp_path)


def test_without_a_gpu_there_are_facts_and_the_time_to_bind() -> None:
    done = run_cmask("bench", "causal", "natten_2d", "--seq", "512,1k", "--json", "out.json")
    assert (done.code, done.err) == (0, "")
    first, _, *lines = done.out.splitlines()
    assert first.startswith("no CUDA device here: nothing is timed but binding")
    assert [line.split()[:2] for line in lines] == [
        ["causal", "512"],
        ["natten_2d", "512"],
        ["causal", "1k"],
        ["natten_2d", "1k"],
    ]
    assert lines[0].split()[2:7] == ["131,328", "6", "4", "6", "80.2%"]
    assert max(map(len, done.out.splitlines())) <= 100
    found = json.loads(Path("out.json").read_text())["surveys"]
    assert [each["mask"] for each in found] == ["causal", "natten_2d"] * 2
    assert found[0]["facts"]["visible_pairs"] == 512 * 513 // 2
    assert found[0]["bind_ms"] > 0


def test_a_mask_of_ones_own_takes_sizes() -> None:
    Path("own.cmask").write_text(OWN)
    done = run_cmask("bench", "own.cmask", "--size", "text=640")
    assert done.code == 0
    assert done.out.splitlines()[-1].split()[:2] == ["own", "640"]


def test_a_plot_without_speeds_is_not_written() -> None:
    done = run_cmask("bench", "causal", "--seq", "128", "--plot", "out.svg")
    assert done.code == 0
    assert "no speed to draw" in done.err
    assert not Path("out.svg").exists()


def test_a_shipped_name_is_that_of_its_case() -> None:
    done = run_cmask("bench", "sliding_window", "--seq", "256")
    assert done.out.splitlines()[-1].split()[:2] == ["window", "256"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("casual",), "did you mean `causal`"),
        (("--against", "flex,fa3"), "`fa3` is no peer; there are flex-fa4, fa4, cudnn, flex, sdpa"),
        (("--heads", "16/5"), "5 key heads do not divide 16 query heads"),
        (("--heads", "many"), "write 16 or 64/8"),
        (("--seq", "0"), "0 tokens"),
        (("--seq", "1k,lots"), "`lots` is no number of tokens"),
        (("--direction", "up"), "`up` is no direction; there are fwd, bwd"),
        (("--dtype", "fp8"), "`fp8` is no dtype"),
        (("--kernels", "new=cuda"), "reference, triton, gluon"),
        (("--kernels", "flex=triton"), "`flex` is a column already"),
        (("--rounds", "4"), "write 4,2"),
        (("--calls", "warm"), "there are graph, eager"),
        (("causal", "--size", "text=64"), "`causal` has sizes of its own here"),
        (("--json", "nowhere/out.json"), "there is no folder nowhere for out.json"),
    ],
)
def test_a_wrong_command_says_what_to_give(arguments: tuple[str, ...], words: str) -> None:
    done = run_cmask("bench", *arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.err


def test_a_wrong_mask_is_shown_in_place() -> None:
    Path("wrong.cmask").write_text("mask wrong { region text; txt sees text: all }\n")
    done = run_cmask("bench", "wrong.cmask")
    assert done.code == 1
    assert "wrong.cmask:1:" in done.err


def test_a_mask_that_needs_sizes_says_so() -> None:
    Path("own.cmask").write_text(OWN)
    done = run_cmask("bench", "own.cmask")
    assert done.code == 2
    assert "--size" in done.err


def test_options_are_read_as_people_write_them() -> None:
    assert given.parse_directions("bwd, fwd") == ("fwd", "bwd")
    assert given.parse_peers("none") == ()
    assert given.parse_peers("sdpa,flex") == ("flex", "sdpa")
    assert given.parse_kernels(("a=triton,b=gluon", "c=reference")) == {
        "a": "triton", "b": "gluon", "c": "reference",
    }  # fmt: skip
    assert given.parse_dtype("fp16") == "float16"
    with pytest.raises(ValueFault, match="names nothing"):
        given.parse_directions(",")


def test_a_watchdog_ends_a_process_that_hangs_but_no_other() -> None:
    code = """
import time
from cmask.cli.bench.progress import Watchdog
dog = Watchdog({silence})
for _ in range(3):
    time.sleep(0.1)
    dog.is_alive()
dog.stop() if {stops} else time.sleep(60)
"""
    for silence, stops, expected in ((0.25, False, 3), (0.25, True, 0)):
        command = [sys.executable, "-c", code.format(silence=silence, stops=stops)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == expected, done.stderr
        assert ("given up" in done.stderr) == (expected == 3)


def test_a_mask_with_rules_for_some_heads_is_refused_as_that() -> None:
    """It was told that a size had no value."""
    Path("own.cmask").write_text(OWN.replace("}", "    heads 0..3 { text sees text: causal }\n}"))
    done = run_cmask("bench", "own.cmask", "--seq", "128")
    assert done.code == 2
    assert "rules for some heads" in done.err
