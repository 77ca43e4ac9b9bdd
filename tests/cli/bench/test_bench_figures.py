"""What follows from times, and how it is printed, drawn and kept."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from cmask.cli.bench import table
from cmask.cli.bench.command import conclude
from cmask.cli.bench.plot import svg
from cmask.cli.bench.problem import Shape
from cmask.cli.bench.record import write
from cmask.cli.bench.rows import CEILING_FLOPS, Binding, Group, Result, Samples
from cmask.cli.bench.run import Outcome
from cmask.cli.bench.settings import Settings
from support.bench_groups import group_of, timed

SVG = "{http://www.w3.org/2000/svg}"


FULL = group_of(
    timed("cmask", 1.5, 1.75, error=1.2e-3, host_us=17.0),
    timed("flex-fa4", 2.0, 2.5, spelling="q >= k", error=2e-3, difference=3e-3),
    Result("fa4", "missing", "ModuleNotFoundError: No module named 'flash_attn'"),
    Result("sdpa", eager=Samples((15.0,), (16.0,)), spelling="dense", no_graph="RuntimeError: no"),
    ceiling=timed("matmul", CEILING_FLOPS / 1e12, CEILING_FLOPS / 8e11),
    binding=Binding(12.0, 2**20, 4096, 30.0, 10 * 2**30, "", 1.0, 2**24, "", 1052672),
    before="345 MHz, 79 W, 40",
    after="1900 MHz, 680 W, 62",
)


def test_median_and_spread_of_known_times() -> None:
    samples = Samples((3.0, 1.0, 2.0), (4.0, 1.0))
    assert (samples.median("rested"), samples.median("sustained")) == (2.0, 2.5)
    assert (samples.spread("rested"), samples.spread("sustained")) == (3.0, 4.0)
    assert Samples().median("rested") is Samples().spread("rested") is None


def test_speed_ratio_and_share_of_known_times() -> None:
    ours, flex, missing, eager = FULL.results
    assert FULL.tflops(ours.times, "rested") == pytest.approx(1000 / 1.5)
    assert FULL.ratio(flex, "rested") == pytest.approx(2 / 1.5)
    assert FULL.ratio(flex, "sustained") == pytest.approx(2.5 / 1.75)
    assert FULL.ratio(ours, "rested") == 1.0
    assert FULL.ratio(missing, "rested") is None
    assert FULL.ratio(eager, "rested") == pytest.approx(10)
    assert FULL.share(ours, "rested") == pytest.approx(1000 / 1.5 / 1000)
    assert FULL.share(ours, "sustained") == pytest.approx(1000 / 1.75 / 800)


def test_useful_flops_count_visible_pairs_and_both_dimensions() -> None:
    shape = Shape(2, 64, 8, 192, 128)
    assert shape.flops(1000, "fwd") == 2 * 64 * 2 * (192 + 128) * 1000
    assert shape.flops(1000, "bwd") == 2.5 * shape.flops(1000, "fwd")
    assert shape.group == 8


def test_a_group_is_printed_in_100_columns() -> None:
    lines = table.group_lines(FULL)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 100
    assert "causal  8 × 4k  forward  8,390,656 pairs" in text
    assert [line.split()[0] for line in lines[3:7]] == ["cmask", "flex-fa4", "fa4", "sdpa*"]
    for words in (
        "667 / 571", "1.33 / 1.43", "67% / 71%", "missing  ModuleNotFoundError", "flex-fa4: q >= k",
        "sdpa: no graph: RuntimeError: no", "bind for new lengths: 12.0 ms, 4.0 KiB",
        "compiled 1.0 ms (16.0 MiB at most); eager 30.0 ms (10.0 GiB at most), 1.0 MiB",
        "before 345 MHz, 79 W, 40; after 1900 MHz", "8192³: 1000 / 800 TFLOP/s",
    ):  # fmt: skip
        assert words in text


def test_extreme_figures_keep_their_columns() -> None:
    wide = timed("flex-fa4:numbers", 12345.678, 12345.678, error=1e-300, host_us=123456.0)
    lines = table.group_lines(group_of(timed("cmask", 0.001, 0.001), wide, mask="x" * 120))
    assert max(map(len, lines)) <= 100


def test_the_summary_wraps_where_there_are_many_columns() -> None:
    names = ("cmask", "portable", "flex-fa4", "flex-fa4:numbers", "fa4", "cudnn", "flex", "sdpa")
    groups = [
        group_of(*(timed(name, 1.0 + i, 2.0 + i) for i, name in enumerate(names)), mask=mask)
        for mask in ("shared_prompt_packed", "causal")
    ]
    lines = table.summary_lines(groups)
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    for name in names:
        assert name in text
        assert (f"÷ {name}" in text) == (name != "cmask")
    assert table.summary_lines([]) == []


def test_what_has_no_time_says_why_in_the_summary() -> None:
    text = "\n".join(table.summary_lines([FULL]))
    assert "missing" in text
    assert "÷ flex-fa4" in text
    assert "÷ fa4" not in text


def test_papers_figures_stand_beside_ours() -> None:
    text = "\n".join(table.paper_lines([FULL, group_of(*FULL.results, mask="hstu")]))
    assert "÷ flex-fa4    1.33 / 1.43   paper 1.44" in text
    assert "paper 0.85 to 0.89" in text


def _drawn(groups: list[Group]) -> ET.Element:
    return ET.fromstring(svg(groups, "Attention on <a GPU>"))


def test_the_plot_has_a_panel_a_mask_and_direction_and_a_line_an_implementation() -> None:
    groups = [
        group_of(
            *(timed(name, 4096 / seq + i) for i, name in enumerate(("cmask", "flex"))),
            mask=mask, direction=direction, seq=seq,
        )
        for mask in ("causal", "hstu") for direction in ("fwd", "bwd") for seq in (1024, 32768)
    ]  # fmt: skip
    root = _drawn(groups)
    texts = [element.text for element in root.iter(f"{SVG}text")]
    for title in ("causal, forward", "causal, backward", "HSTU, forward", "HSTU, backward"):
        assert texts.count(title) == 1
    assert texts.count("1k") == texts.count("32k") == 4
    lines = [p for p in root.iter(f"{SVG}path") if p.get("stroke-dasharray")]
    assert len(lines) == 2 * 4 + 2  # and the legend's
    assert len({p.get("stroke-dasharray") for p in lines}) == 2


def test_all_marks_lie_inside_the_picture() -> None:
    names = [f"variant{i}" for i in range(12)]
    groups = [group_of(*(timed(n, 1.0 + i) for i, n in enumerate(names)), seq=s) for s in (64, 128)]
    root = _drawn(groups)
    width, height = map(float, str(root.get("viewBox")).split()[2:])
    panel = next(root.iter(f"{SVG}g"))
    for circle in panel.iter(f"{SVG}circle"):
        assert 0 <= float(str(circle.get("cx"))) <= 250
        assert 0 <= float(str(circle.get("cy"))) <= 170
    for text in root.findall(f"{SVG}text"):
        assert 0 <= float(str(text.get("x"))) <= width
        assert 0 <= float(str(text.get("y"))) <= height


@pytest.mark.parametrize("groups", [[FULL], [group_of(Result("cmask", "memory"), flops=0.0)]])
def test_a_plot_of_one_length_or_of_nothing_is_still_one(groups: list[Group]) -> None:
    assert _drawn(groups).find(f"{SVG}title") is not None


def test_json_has_every_sample_and_what_follows(tmp_path: Path) -> None:
    outcome = Outcome([FULL], ["hstu 32k"], True)
    write(tmp_path / "out.json", {"gpu": "a GPU"}, Settings(json=tmp_path / "out.json"), outcome)
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["left_out"], found["is_interrupted"]) == (["hstu 32k"], True)
    (group,) = found["groups"]
    flex = group["results"][1]
    assert flex["graph"] == {"rested": [2.0], "sustained": [2.5]}
    assert flex["cmask_ratio_rested"] == pytest.approx(4 / 3)
    assert flex["mode"] == "graph"
    assert group["binding"]["block_mask_bytes"] == 1052672
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_errors_that_are_no_numbers_are_json_all_the_same(tmp_path: Path) -> None:
    wrong = group_of(Result("cmask", "WRONG", error=float("nan")), sizes={"cut": np.arange(2)})
    write(tmp_path / "out.json", {}, Settings(), Outcome([wrong]))
    (group,) = json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)["groups"]
    assert group["results"][0]["error"] == "nan"
    assert group["sizes"] == {"cut": [0, 1]}


def test_the_end_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(plot=tmp_path / "out.svg", paper=True)
    assert conclude(settings, Outcome([FULL]), "a GPU") == 0
    assert (tmp_path / "out.svg").read_text().startswith("<svg")
    assert "paper 0.85 to 0.89" in capsys.readouterr().out
    assert conclude(settings, Outcome([FULL], ["hstu 4k"], True), "a GPU") == 130
    said = capsys.readouterr()
    assert "left out: hstu 4k" in said.err
    assert "causal  8 × 4k" in said.out
    assert conclude(settings, Outcome([group_of(Result("cmask", "WRONG"))]), "a GPU") == 1
