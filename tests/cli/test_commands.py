"""The commands as people and programs use them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cmask import masks
from cmask.runtime.mask import load
from support.command import run_cmask

WRONG_MASK = "mask wrong { region text; txt sees text: window(16) }\n"
WITHOUT_SIZES = "mask bare { region text; text sees text: causal }\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def artifact(here: Path) -> Path:
    assert run_cmask("compile", "shared_prompt", "--seq", "256").code == 0
    return here / "shared_prompt.cmaskc"


def test_compile_writes_an_artifact_here_and_says_what_is_in_it(here: Path) -> None:
    done = run_cmask("compile", "causal", "--seq", "1k")
    assert (done.code, done.err) == (0, "")
    assert load(here / "causal.cmaskc").sizes["text"] == 1024
    size = (here / "causal.cmaskc").stat().st_size
    assert done.out.startswith(f"causal.cmaskc  {size:,} bytes")
    for words in ("density", "at most 1", "28 full, 8 partial, 28 empty", "useful share"):
        assert words in done.out


def test_a_shipped_name_is_the_same_as_its_path(here: Path) -> None:
    run_cmask("compile", "hstu", "-o", "by_name.cmaskc")
    run_cmask("compile", str(masks.path("hstu")), "-o", "by_path.cmaskc")
    assert (here / "by_name.cmaskc").read_bytes() == (here / "by_path.cmaskc").read_bytes()


def test_a_file_here_wins_over_a_shipped_name(here: Path) -> None:
    shutil.copy(masks.path("full"), here / "causal.cmask")
    facts = run_cmask("check", "causal.cmask", "--seq", "128", "--json").json["facts"]
    assert facts["density"] == 1.0


def test_compile_prints_json_for_programs(here: Path) -> None:
    done = run_cmask("compile", "padding", "--seq", "256", "--json")
    assert done.json["path"] == "padding.cmaskc"
    assert done.json["bytes"] == (here / "padding.cmaskc").stat().st_size
    assert done.json["facts"]["empty_rows"][0]["region"] == "pad"
    assert "empty-rows" in [warning["code"] for warning in done.json["warnings"]]


def test_a_warning_names_the_empty_rows_on_stderr(here: Path) -> None:
    done = run_cmask("compile", "padding", "--seq", "256")
    assert done.code == 0
    assert "16 of 16 queries of `pad` see nothing" in done.err
    assert "warning" not in done.out


def test_sizes_and_parameters_override_the_defaults(here: Path) -> None:
    run_cmask(
        "compile", "clear_r8", "--size", "height=16", "--size", "width=32", "--param", "radius=3"
    )
    sizes = load(here / "clear_r8.cmaskc").sizes
    assert (sizes["height"], sizes["width"], sizes["radius"]) == (16, 32, 3)


def test_a_list_of_lists_gives_every_sample_its_answers() -> None:
    arguments = ("--size", "prompt=3,2", "--size", "answer=[[2,3],[2,1,2]]")
    done = run_cmask("check", "shared_prompt_packed", *arguments, "--json")
    assert done.json["facts"]["q_len"] == 15


def test_symbolic_leaves_the_sizes_to_the_runtime(here: Path) -> None:
    assert run_cmask("compile", "causal", "--symbolic").code == 0
    assert load(here / "causal.cmaskc").facts is None


def test_a_mask_without_sizes_compiles_symbolically(here: Path) -> None:
    (here / "bare.cmask").write_text(WITHOUT_SIZES)
    done = run_cmask("compile", "bare.cmask")
    assert done.code == 0
    assert "bound at run time" in done.out
    assert load(here / "bare.cmaskc").bind(text=7).q_len == 7


def test_what_has_no_value_stays_to_be_bound_beside_what_has(here: Path) -> None:
    text = "mask m { table cut[row] region a region b a sees a, b: until(cut[row]) b sees b: all }"
    (here / "part.cmask").write_text(text)
    done = run_cmask("compile", "part.cmask", "--size", "a=2", "--size", "b=1")
    assert done.code == 0
    assert "table `cut` has no value" in done.out
    mask = load(here / "part.cmaskc")
    assert mask.facts is None
    assert mask.bind(cut=[1, 3]).bound.visible([0, 1, 2], [0, 1, 2]).sum(1).tolist() == [1, 3, 1]


def test_missing_sizes_are_named_with_what_to_give(here: Path) -> None:
    (here / "bare.cmask").write_text(WITHOUT_SIZES)
    done = run_cmask("show", "bare.cmask")
    assert done.code == 2
    assert "needs `text`" in done.err
    assert "--size" in done.err


def test_a_wrong_mask_shows_every_fault_and_exits_with_1(here: Path) -> None:
    (here / "wrong.cmask").write_text(WRONG_MASK)
    for command in ("compile", "check", "show", "explain"):
        done = run_cmask(command, "wrong.cmask")
        assert done.code == 1, command
        assert "error[unknown-region]" in done.err
        assert "error[bad-argument]" in done.err
        assert done.out == ""
    assert not (here / "wrong.cmaskc").exists()


def test_check_gives_programs_the_faults_with_their_places(here: Path) -> None:
    (here / "wrong.cmask").write_text(WRONG_MASK)
    done = run_cmask("check", "wrong.cmask", "--json")
    assert done.code == 1
    first = done.json["diagnostics"][0]
    assert (first["severity"], first["code"], first["line"]) == ("error", "unknown-region", 1)
    assert done.json["facts"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("compile nowhere.cmask", "there is no file nowhere.cmask"),
        ("compile causl", "did you mean `causal`?"),
        ("compile causal --seq 3x", "3x"),
        ("compile causal --seq 2048M", "2048M"),
        ("compile causal --size tex=4", "did you mean `text`?"),
        ("compile causal --size text", "NAME=VALUE"),
        ("compile causal --size text=4 --size text=5", "given twice"),
        ("compile causal --size text=-4", "`text` must be a size"),
        ("compile causal -o no/such/folder/x.cmaskc", "cannot be written"),
        ("show causal -o causal.gif", "must end in .png or .svg"),
        ("show causal -o no/such/folder/x.png", "cannot be written"),
        ("show causal --size text=0", "nothing to show"),
        ("show causal --stage rules -o x.png", "leave -o out"),
        ("explain causal --seq 64 --row 64", "beyond the 64 queries"),
        ("inspect nowhere.cmaskc", "there is no file"),
        ("explain", "FILE"),
        ("compose causal", "compose"),
    ],
)
def test_a_wrong_command_exits_with_2_and_says_why(arguments: str, words: str, here: Path) -> None:
    done = run_cmask(*arguments.split())
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err


def test_a_file_that_is_no_text_is_a_wrong_mask(here: Path) -> None:
    (here / "noise.cmask").write_bytes(b"\xff\xfe\x00mask")
    done = run_cmask("check", "noise.cmask")
    assert (done.code, "UTF-8" in done.err) == (1, True)


def test_explain_puts_the_rules_in_closed_form() -> None:
    done = run_cmask("explain", "block_diffusion", "--seq", "256")
    assert done.code == 0
    assert "⌊pos(k) / 32⌋ < ⌊pos(q) / 32⌋" in done.out
    assert "descriptor" in done.out


def test_explain_says_which_rule_shows_a_query_what() -> None:
    sizes = ("--size", "prompt=4", "--size", "answer=3,4")
    done = run_cmask("explain", "shared_prompt", *sizes, "--row", "8", "--json")
    row = done.json["row"]
    assert (row["region"], row["count"]) == ("answer[0][1] + 1", 6)
    assert row["intervals"] == [[0, 4], [7, 9]]
    assert [rule["intervals"] for rule in row["by_rule"]] == [[[0, 4]], [[7, 9]]]
    assert "answer sees prompt: all" in row["by_rule"][0]["rule"]


def test_explain_says_who_sees_a_key() -> None:
    done = run_cmask("explain", "sliding_window", "--seq", "64", "--param", "left=3", "--key", "60")
    assert "is seen by 4 queries" in done.out
    assert "[60, 64)" in done.out


def test_inspect_shows_what_an_artifact_holds_and_verifies_it(artifact: Path) -> None:
    done = run_cmask("inspect", str(artifact))
    assert done.code == 0
    assert "mask shared_prompt" in done.out
    assert "1 verified by this runtime" in done.out
    as_json = run_cmask("inspect", str(artifact), "--json").json
    assert as_json["sizes"]["prompt"] == 64
    assert as_json["golden_vectors_verified"] == 1


def test_inspect_gives_the_source_back(artifact: Path) -> None:
    text = masks.path("shared_prompt").read_text(encoding="utf-8")
    assert run_cmask("inspect", str(artifact), "--source").out == text


def test_a_damaged_artifact_is_refused_in_one_line(artifact: Path) -> None:
    data = bytearray(artifact.read_bytes())
    data[len(data) // 2] ^= 1
    artifact.write_bytes(data)
    done = run_cmask("inspect", str(artifact))
    assert done.code == 1
    assert done.err.count("\n") == 1


def test_an_artifact_in_place_of_a_mask_is_pointed_to_inspect(artifact: Path) -> None:
    done = run_cmask("show", str(artifact))
    assert done.code == 2
    assert "cmask inspect" in done.err


def test_list_has_one_line_for_each_mask() -> None:
    lines = run_cmask("list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(masks.names())
    assert set(run_cmask("list", "--json").json) == set(masks.names())


def test_the_version_is_the_package_s() -> None:
    assert run_cmask("--version").out.startswith("cmask 0.")
