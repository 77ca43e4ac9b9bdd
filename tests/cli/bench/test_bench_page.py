"""Pages that are made of saved runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cmask.cli.bench.page import made, with_parts_for
from cmask.cli.bench.rows import Binding, Group, Result, Samples
from cmask.cli.bench.saved import read_run
from support.bench_groups import group_of, timed, write_run
from support.command import run_cmask

HERE = Path(__file__).parent
PEERS = (timed("cmask", 1.0, 2.0, error=1e-3), timed("flex-fa4", 2.0, 3.0), timed("fa4", 1.5, 2.5))


@pytest.fixture(autouse=True)
def _in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def _part(mark: str) -> list[str]:
    """What is made of one mark, line by line."""
    page = made(Path("page.md"), f"<!-- bench: {mark} -->\n<!-- end -->\n")
    return page.text.splitlines()[1:-1]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_real_run_makes_its_page() -> None:
    shutil.copy(HERE / "smoke.json", "smoke.json")
    text = with_parts_for([Path("smoke.json")], Path("smoke.md"), "")
    assert made(Path("smoke.md"), text).text == (HERE / "smoke.md").read_text(encoding="utf-8")


def test_a_run_is_read_as_it_was_written() -> None:
    group = group_of(*PEERS, Result("sdpa", "memory", "not enough", error=float("inf")),
                     ceiling=timed("matmul", 1.0), binding=Binding(1.0, eager_why="failed: so"),
                     sizes={"left": 7})  # fmt: skip
    run = read_run(write_run(Path("a.json"), group, left_out=("hstu 4k",)))
    assert run.groups == (group,)
    assert run.left_out == ("hstu 4k",)
    assert run.machine["gpu"] == "a GPU"


def test_only_what_stands_between_marks_is_made_anew() -> None:
    write_run(Path("a.json"), group_of(*PEERS))
    mark, later = "<!-- bench: speed a.json -->", "<!-- bench later: speed b.json -->\nkept"
    text = f"before\n{mark}\nold\n<!-- end -->\nbetween\n{later}\n<!-- end -->"
    page = made(Path("page.md"), text).text
    assert page.startswith(f"before\n{mark}\n| mask |")
    assert page.endswith(f"<!-- end -->\nbetween\n{later}\n<!-- end -->")
    assert "old" not in page
    assert made(Path("page.md"), page).text == page


def test_speeds_ratios_errors_and_where_they_were_measured() -> None:
    hstu = group_of(*PEERS[:2], mask="hstu", seq=1024, batch=32)
    write_run(Path("a.json"), group_of(*PEERS), hstu)
    head, _, causal, hstu_line, *rest = _part("speed a.json forward")
    assert _cells(head) == [
        "mask", "batch × tokens", "cmask", "Flex-FA4", "native FA4", "cmask ÷ Flex-FA4",
        "cmask ÷ native FA4", "error",
    ]  # fmt: skip
    assert _cells(causal)[2:] == [
        "1000 / 500", "500 / 333", "667 / 400", "2.00 / 1.50", "1.50 / 1.25", "1.0e-03"
    ]  # fmt: skip
    assert _cells(hstu_line)[:2] == ["HSTU", "32 × 1k"]
    assert (_cells(hstu_line)[4], _cells(hstu_line)[6]) == ("–¹", "–¹")
    assert "¹ Not run on this mask." in rest
    said = "\n".join(rest)
    assert "a GPU, driver 1.2, PyTorch 2.11, cuDNN 9.19.0; 2026-01-02 03:04 UTC." in said
    assert "bfloat16, 16 heads of 128; rested / sustained, medians of 4 and 2 rounds." in said
    assert said.endswith("[a.json](a.json).")


def test_rows_and_columns_are_those_that_are_asked_for() -> None:
    masks = ("causal", "full", "hstu")
    write_run(Path("a.json"), *(group_of(*PEERS, mask=mask) for mask in masks))
    head, _, *rows = _part("speed a.json masks=hstu,causal columns=fa4,÷fa4")
    assert _cells(head) == ["mask", "native FA4", "cmask ÷ native FA4"]
    assert [_cells(row)[0] for row in rows[:3]] == ["HSTU", "causal", ""]


def test_a_cell_without_a_figure_says_why() -> None:
    eager = Result("flex", eager=Samples((4.0,), (4.0,)), no_graph="RuntimeError: no <graph>")
    fa4 = Result("fa4", "missing", "no module flash_attn")
    cudnn = Result("cudnn", "–", "knows no windows.")
    group = group_of(timed("cmask", 1.0, 2.0), eager, fa4, cudnn)
    write_run(Path("a.json"), group, left_out=("hstu 32k", "full 32k"))
    _, _, row, *rest = _part(
        "speed a.json masks=causal,hstu columns=cmask,flex,÷flex,fa4,÷fa4,cudnn"
    )
    assert _cells(row)[2:] == ["250 / 250¹", "4.00 / 2.00¹", "missing²", "missing²", "–³"]
    said = "\n".join(rest)
    assert "¹ Eager calls, for no graph could be captured: RuntimeError: no &lt;graph&gt;." in said
    assert "² native FA4: no module flash\\_attn.\n³ cuDNN: knows no windows." in said
    assert "The run's time did not suffice: without hstu 32k." in said


def test_lengths_stand_beside_each_other_and_files_are_joined() -> None:
    def at(seq: int, mask: str = "causal") -> Group:
        peers = (timed("cmask", 1.0), timed("flex", 2.0), timed("sdpa", seq / 512))
        return group_of(*peers, mask=mask, seq=seq, batch=32768 // seq)

    write_run(Path("a.json"), at(8192), at(1024), at(1024, "hstu"))
    write_run(Path("b.json"), at(2048))
    head, _, causal, hstu, *rest = _part("lengths a.json,b.json against=sdpa")
    assert _cells(head) == [
        "mask", "32 × 1k", "÷ SDPA, dense mask", "16 × 2k", "÷ SDPA, dense mask", "4 × 8k",
        "÷ SDPA, dense mask",
    ]  # fmt: skip
    assert _cells(causal)[2::2] == ["2.00 / –", "4.00 / –", "16.00 / –"]
    assert _cells(hstu)[3:] == ["–¹"] * 4
    assert rest[-1] == "Figures: [a.json](a.json), [b.json](b.json)."


def test_eager_calls_and_host_time() -> None:
    ours = Result("cmask", graph=Samples((1.0,)), eager=Samples((2.0,)), host_us=17.2)
    flex = Result("flex-fa4", graph=Samples((1.0,)), eager=Samples((5.0,)))
    write_run(Path("a.json"), group_of(ours, flex))
    head, _, row, *_ = _part("eager a.json")
    assert _cells(head)[3:] == ["cmask ÷ Flex-FA4", "host µs, cmask", "host µs, Flex-FA4"]
    assert _cells(row)[1:] == ["500 / –", "200 / –", "2.50 / –", "17", "–¹"]


def test_binding_beside_create_block_mask() -> None:
    binding = Binding(
        12.0, 2**20, 4096, 30.0, 10 * 2**30, "", None, None, "memory: too much", 16896
    )
    write_run(Path("a.json"), group_of(*PEERS, binding=binding), group_of(*PEERS, mask="full"))
    _, _, row, gap, note, *_ = _part("binding a.json")
    assert _cells(row) == [
        "causal", "12.0 (1.0 MiB)", "memory¹", "30.0 (10.0 GiB)", "4.0 KiB", "16.5 KiB",
    ]  # fmt: skip
    assert (gap, note) == ("", "¹ too much.")


def test_the_papers_figures_stand_beside_ours_by_length() -> None:
    runs = [
        group_of(*PEERS, mask=m, seq=s) for m in ("causal", "full", "hstu") for s in (1024, 4096)
    ]
    write_run(Path("a.json"), *runs)
    head, _, causal, hstu, *rest = _part("paper a.json")
    assert _cells(head) == ["cmask ÷ peer", "paper", "8 × 1k", "8 × 4k"]
    assert _cells(causal) == ["causal ÷ native FA4", "0.85 to 0.89", "1.50 / 1.25", "1.50 / 1.25"]
    assert _cells(hstu) == ["HSTU ÷ Flex-FA4", "1.44", "2.00 / 1.50", "2.00 / 1.50"]
    assert any("quoted from it" in line for line in rest)


def test_how_far_two_runs_agree() -> None:
    write_run(Path("a.json"), group_of(*PEERS))
    other = (timed("cmask", 1.0, 2.0), timed("flex-fa4", 2.1, 3.0), timed("fa4", 1.5, 2.5))
    write_run(Path("b.json"), group_of(*other))
    first, second, *_ = _part("agreement a.json,b.json")
    assert first.startswith("Of 4 ratios")
    assert first.endswith("is 5.0%:")
    assert second.startswith("2.00 and 2.10 for causal  8 × 4k  fwd  16 heads of 128 ÷ Flex-FA4")


def test_a_plot_lies_beside_its_run_and_is_embedded() -> None:
    Path("docs/runs").mkdir(parents=True)
    runs = [group_of(*PEERS, seq=seq, direction="bwd") for seq in (1024, 2048)]
    write_run(Path("docs/runs/a.json"), *runs)
    Path("docs/page.md").write_text("<!-- bench: plot runs/a.json backward -->\n<!-- end -->\n")
    done = run_cmask("bench", "--report", "docs/page.md")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "docs/page.md: parts made 1, left for later 0", "docs/runs/a-backward.svg"
    ]  # fmt: skip
    assert "![TFLOP/s by length, backward: causal](runs/a-backward.svg)" in Path(
        "docs/page.md"
    ).read_text(encoding="utf-8")
    assert "Attention backward on a GPU" in Path("docs/runs/a-backward.svg").read_text("utf-8")


def test_a_page_gets_parts_for_runs_that_it_does_not_name() -> None:
    write_run(Path("a.json"), group_of(*PEERS), paper=True)
    write_run(Path("b.json"), group_of(*PEERS), group_of(*PEERS, seq=1024))
    assert run_cmask("bench", "a.json", "--report", "page.md").code == 0
    first = Path("page.md").read_text(encoding="utf-8")
    assert "<!-- bench: speed a.json forward -->\n| mask |" in first
    assert "<!-- bench: paper a.json forward -->\n| cmask ÷ peer |" in first
    assert run_cmask("bench", "a.json", "b.json", "--report", "page.md").code == 0
    second = Path("page.md").read_text(encoding="utf-8")
    assert second.startswith(first)
    assert second.count("## b\n") == 1
    assert "(b-forward.svg)" in second


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("speeds a.json", "`speeds` is no part of a page; there are speed, lengths"),
        ("speed", "`speed` names no JSON file"),
        ("speed a.json sideways", "`sideways` says nothing; there are forward, backward, masks="),
        ("speed a.json masks=", "`masks=` says nothing"),
        ("speed b.json", "b.json cannot be read"),
        ("speed broken.json", "broken.json is no JSON"),
        ("speed survey.json", "survey.json holds no times"),
        ("speed other.json", "other.json is not as `cmask bench --json` writes it: KeyError"),
        ("speed a.json backward", "a.json: nothing there that the part asks for"),
        ("speed a.json,a.json", "causal 8 × 4k is there twice"),
        ("speed a.json columns=fa5", "`fa5` is in none of the runs"),
        ("agreement a.json", "agreement takes two files"),
        ("agreement a.json,full.json", "the two files have no ratio in common"),
        ("binding a.json", "no mask was bound"),
        ("paper full.json", "none of the paper's masks"),
    ],
)
def test_a_wrong_mark_says_what_to_write_and_leaves_the_page(mark: str, words: str) -> None:
    write_run(Path("a.json"), group_of(*PEERS))
    write_run(Path("full.json"), group_of(*PEERS, mask="full"))
    Path("broken.json").write_text("{")
    Path("survey.json").write_text('{"surveys": []}')
    Path("other.json").write_text('{"groups": [{}], "machine": {}, "settings": {}}')
    text = f"\n<!-- bench: {mark} -->\n<!-- end -->\n"
    Path("page.md").write_text(text)
    done = run_cmask("bench", "--report", "page.md")
    assert (done.code, done.out) == (2, "")
    assert f"line 2: {words}" in done.err
    assert Path("page.md").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--report", "page.md"), "there is no page.md; name JSON files"),
        (("causal", "--report", "page.md"), "`causal` is no JSON file"),
        (("a.json", "--report", "page.md"), "a.json cannot be read"),
        (("--report", "page.md", "--compare"), "not both"),
    ],
)
def test_a_wrong_command_says_what_to_give(arguments: tuple[str, ...], words: str) -> None:
    done = run_cmask("bench", *arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.err


def test_a_part_that_does_not_end_is_said() -> None:
    Path("page.md").write_text(
        "<!-- bench: speed a.json -->\n<!-- bench: speed b.json -->\n<!-- end -->\n"
    )
    done = run_cmask("bench", "--report", "page.md")
    assert "line 1: a part that does not end with <!-- end -->" in done.err


def test_a_page_is_made_without_torch() -> None:
    write_run(Path("a.json"), group_of(*PEERS))
    code = "import sys\nfrom cmask.cli.bench.saved_runs import report\nfrom pathlib import Path\n"
    code += "report(Path('page.md'), ['a.json'])\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
