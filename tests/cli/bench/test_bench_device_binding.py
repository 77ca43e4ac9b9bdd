"""What binding on the device costs: lengths of a case, refusals, and where figures are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cmask.cli.bench import device_binding
from cmask.cli.bench.binding import binding_of, with_device
from cmask.cli.bench.case import Case, compiled
from cmask.cli.bench.cases import CASES
from cmask.cli.bench.device_binding import DeviceCost, Timer, device_cost
from cmask.cli.bench.device_plan import difference, plan_for
from cmask.cli.bench.measure import Call
from cmask.cli.bench.page import made
from cmask.cli.bench.problem import Problem, make_problem
from cmask.cli.bench.rows import Binding
from cmask.cli.bench.saved import read_run
from cmask.cli.bench.settings import Settings
from cmask.cli.bench.table import binding_lines
from cmask.grammar.source import Source
from support.attending import DEVICE
from support.bench_groups import group_of, timed, write_run

if not torch.cuda.is_available():
    from support.interpreter import mend_interpreter

    mend_interpreter()

SMALL = Settings(tokens=256, heads=(4, 2), dims=(32, 32))
GRIDS = ("clear_r16", "natten_2d", "clear24_r8", "clear24_r16", "clear24_r32")
SHARED = """mask shared {
    group sample* {
        region prompt
        region answer*
        answer sees prompt: all
        answer sees answer: same(answer) & causal
    }
    sizes { prompt = 3 }
}
"""
FIGURES = DeviceCost(0.0834, 141.2, 1258291, trained_ms=0.0987)
REFUSED = DeviceCost(why="refused: `image` is a grid")


class FakeTimer:
    """Writes down what it is asked, in which order."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def timer(self) -> Timer:
        return Timer(self._host_us, self._gpu_ms)

    def _host_us(self, _: Call) -> float:
        self.asked.append("host")
        return 150.0

    def _gpu_ms(self, _: Call) -> float:
        self.asked.append("gpu")
        return 0.08


def problem_of(case: Case) -> Problem:
    return replace(make_problem(case, SMALL, DEVICE), compiles=False)


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_bound_on_the_device_or_refused_in_words(name: str) -> None:
    fake = FakeTimer()
    found = device_cost(problem_of(CASES[name](256)), fake.timer())
    if name in GRIDS:
        assert (found.ms, found.host_us, found.peak) == (None, None, None)
        assert found.why.startswith("refused: `")
        assert found.why.endswith("is a grid")
        return
    assert found.why == ""
    assert (found.ms, found.host_us) == (0.08, 150.0)
    assert (found.peak is None) == (DEVICE == "cpu")
    assert fake.asked == ["host", "gpu", "gpu"]  # a call that a graph holds copies more than others


def test_lengths_are_those_of_the_case() -> None:
    case = Case("shared", Source("shared.cmask", SHARED), 64, sizes={"answer": [[5, 7], [], [1]]})
    mask = compiled(case)
    bound = mask.bind().bound
    plan, lengths = plan_for(mask, bound, torch.device(DEVICE))
    assert {name: x.tolist() for name, x in lengths.items()} == {
        "prompt": 3,
        "answer": [[5, 7], [0, 0], [1, 0]],
    }
    assert plan.room.tokens == (bound.q_len, bound.kv_len) == (22, 22)
    assert (plan.room.instances, plan.room.intervals) == ({"sample": 3, "answer": 2}, 2)
    plan.bind_(**lengths)
    assert difference(plan, bound) == ""


def test_another_mask_than_the_hosts_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = compiled(CASES["documents"](512))
    bound = mask.bind().bound
    plan, lengths = plan_for(mask, bound, torch.device(DEVICE))
    plan.bind_(**lengths)
    lists = plan.device_descriptor(*plan.forward_shape)
    lists.fill_by_key()
    assert difference(plan, bound) == ""
    lists.by_key.entries[:, 1] -= 1
    assert difference(plan, bound) == "the blocks are not those of the host's plan"
    plan.bounds[1, 3] += 1
    assert difference(plan, bound) == "the rows are not those of the host's plan"
    monkeypatch.setattr(device_binding, "difference", lambda *_: "it differs")
    found = device_cost(problem_of(CASES["causal"](256)), FakeTimer().timer())
    assert found == DeviceCost(why="DIFFERS: it differs")


def test_no_fault_ends_a_run() -> None:
    def full(_: Call) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    found = device_cost(problem_of(CASES["causal"](256)), Timer(gpu_ms=full, host_us=full))
    assert found.ms is None
    assert found.why.startswith("memory: OutOfMemoryError")
    text = "mask own { table rows[row]; region t; t sees t: rows(rows) }"
    case = Case("own", Source("own.cmask", text), 4, sizes={"t": 4, "rows": [[1, 2, 3, 4]]})
    found = device_cost(problem_of(case), FakeTimer().timer())
    assert found.why == "refused: it has a table, `rows`"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["causal", "documents", "hstu"])
def test_a_gpu_times_it(name: str) -> None:
    problem = make_problem(CASES[name](4096), Settings(tokens=4096), DEVICE)
    found = binding_of(replace(problem, compiles=False))
    assert found.device_why == ""
    assert found.device_ms is not None
    assert 0 < found.device_ms < found.ours_ms
    assert found.device_host_us is not None
    assert found.device_host_us > 0
    assert found.device_peak is not None
    assert 0 < found.device_peak < 2**24


@pytest.mark.skipif(DEVICE != "cpu", reason="there is a GPU")
def test_without_a_gpu_it_is_left_out() -> None:
    found = binding_of(make_problem(CASES["causal"](256), SMALL))
    assert (found.device_ms, found.device_why) == (None, "")


def test_a_line_of_the_terminal_says_it() -> None:
    plain = Binding(12.0, 2**20, 4096, compiled_ms=1.0)
    figures, refused, long = (
        binding_lines(with_device(plain, cost))
        for cost in (FIGURES, REFUSED, DeviceCost(why="failed: " + "x" * 200))
    )
    assert figures[1] == (
        "  bind_ on the device: 83.4 µs of GPU, 141 µs of host, 98.7 µs with gradients "
        "(1.2 MiB at most)"
    )
    assert refused[1] == "  bind_ on the device: refused: `image` is a grid"
    assert max(map(len, long)) == 100
    assert binding_lines(plain) == [figures[0], figures[2]]


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows_of(*costs: DeviceCost | None) -> list[list[str]]:
    """Cells of the page's table for masks of these costs, and what stands below it."""
    plain = Binding(12.0, None, 4096, 2.0, compiled_ms=1.0)
    groups = [
        group_of(
            timed("cmask", 1.0), mask=f"m{i}", binding=with_device(plain, cost) if cost else plain
        )
        for i, cost in enumerate(costs)
    ]
    run = read_run(write_run(Path("a.json"), *groups))
    assert run.groups == tuple(groups)
    text = "<!-- bench: binding a.json -->\n<!-- end -->"
    lines = made(Path("page.md"), text).text.splitlines()[1:-1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.usefixtures("_elsewhere")
def test_a_page_has_its_columns_where_some_mask_has_figures() -> None:
    head, _, first, refused, without, _, *notes = rows_of(FIGURES, REFUSED, None)
    assert head[1:6] == [
        "cmask bind, ms (peak)",
        "cmask bind_, GPU µs (peak)",
        "with gradients, GPU µs",
        "host µs",
        "create_block_mask compiled, ms (peak)",
    ]
    assert first[1:6] == ["12.0", "83.4 (1.2 MiB)", "98.7", "141", "1.0"]
    assert refused[2:5] == ["refused¹"] * 3
    assert without[2:5] == ["–²"] * 3
    assert notes[:2] == [["¹ \\`image\\` is a grid."], ["² Not measured."]]


@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize("cost", [None, REFUSED])
def test_a_page_without_figures_is_as_it_was(cost: DeviceCost | None) -> None:
    head, *_ = rows_of(cost, None)
    assert head[1:3] == ["cmask bind, ms (peak)", "create_block_mask compiled, ms (peak)"]
