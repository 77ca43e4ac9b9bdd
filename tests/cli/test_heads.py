"""Commands on a mask with rules for some heads: each set of heads, or the one asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import run_cmask

DUO = """mask duo {
    param left = 2
    region text

    text sees text: window(left, 0)
    heads 0..3 { text sees text: causal }

    sizes { text = seq }
}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("duo.cmask").write_text(DUO)
    return "duo.cmask"


@pytest.mark.parametrize("command", ["show", "explain"])
def test_a_picture_of_no_head_is_refused(file: str, command: str) -> None:
    done = run_cmask(command, file, "--seq", "5")
    assert (done.code, done.out) == (2, "")
    assert "rules for some heads (heads 0..3; heads 4 and up): give --head H" in done.err


def test_show_draws_the_head_that_is_asked_for(file: str) -> None:
    assert "■ ■ ■ ■ ■" in run_cmask("show", file, "--seq", "5", "--head", "3").out
    assert "· · ■ ■ ■" in run_cmask("show", file, "--seq", "5", "--head", "4").out


def test_show_takes_any_head_of_a_mask_without_such_rules() -> None:
    shown = [run_cmask("show", "causal", "--seq", "8", *head) for head in ((), ("--head", "9"))]
    assert shown[0].out == shown[1].out


def test_explain_tells_the_rules_of_a_head(file: str) -> None:
    local = run_cmask("explain", file, "--seq", "64", "--head", "7").out
    assert "line 5: text sees text: window(left, 0)" in local
    assert "heads 0..3" not in local
    found = run_cmask("explain", file, "--seq", "64", "--head", "0", "--row", "5", "--json").json
    assert [rule["rule"] for rule in found["rules"]] == [
        "5: text sees text: window(left, 0)",
        "6: heads 0..3 { text sees text: causal }",
    ]
    assert [r["intervals"] for r in found["row"]["by_rule"]] == [[[3, 6]], [[0, 6]]]


@pytest.mark.parametrize("command", ["check", "compile"])
def test_facts_are_told_of_each_set_of_heads(file: str, command: str) -> None:
    told = run_cmask(command, file, "--seq", "64").out
    assert told.index("heads 0..3\n") < told.index("(2,080 visible pairs)")
    assert told.index("(2,080 visible pairs)") < told.index("heads 4 and up\n")
    assert told.index("heads 4 and up\n") < told.index("(189 visible pairs)")
    found = run_cmask(command, file, "--seq", "64", "--json").json
    assert found["facts"] is None
    assert [v["heads"] for v in found["variants"]] == [[[0, 4]], [[4, None]]]
    assert [v["facts"]["visible_pairs"] for v in found["variants"]] == [2080, 189]


def test_heads_that_no_rule_is_for_are_told_as_that(file: str) -> None:
    text = DUO.replace("    text sees text: window(left, 0)\n", "").replace("param left = 2", "")
    Path(file).write_text(text)
    done = run_cmask("check", file, "--seq", "64")
    assert done.err == ""
    assert done.out.endswith("heads 4 and up\nno rule is for them: they see nothing\n")


def test_inspect_tells_of_each_set_of_heads(file: str) -> None:
    run_cmask("compile", file, "--seq", "64")
    told = run_cmask("inspect", "duo.cmaskc")
    assert told.code == 0
    for words in ("heads 0..3", "heads 4 and up", "2 verified", "(2,080 visible", "(189 visible"):
        assert words in told.out
    found = run_cmask("inspect", "duo.cmaskc", "--json").json
    assert [v["facts"]["visible_pairs"] for v in found["variants"]] == [2080, 189]


def test_tune_refuses(file: str) -> None:
    done = run_cmask("tune", file, "--seq", "64")
    assert done.code == 2
    assert "`duo` has rules for some heads" in done.err
