"""Masks as peers write them, and results against float64, on the CPU at short lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from cmask.cli.bench import exact
from cmask.cli.bench.binding import binding_of
from cmask.cli.bench.case import Case, compiled, dense
from cmask.cli.bench.cases import CASES
from cmask.cli.bench.directions import contender
from cmask.cli.bench.exact_gradients import exact_dkdv
from cmask.cli.bench.file_case import of_file
from cmask.cli.bench.gpu import Checks, GpuBench
from cmask.cli.bench.measure import Contender, Entry, NotApplicable
from cmask.cli.bench.ours import ours
from cmask.cli.bench.problem import Problem, make_problem
from cmask.cli.bench.settings import DIRECTIONS, Direction, Settings
from cmask.grammar.source import Source

SMALL = Settings(tokens=256, heads=(4, 2), dims=(32, 16), against=("flex", "sdpa"))
SHORT = tuple(name for name in CASES if not name.startswith("clear24"))
OWN = """mask own {
    region prompt
    region answer*
    prompt sees prompt: all
    answer sees prompt: all
    answer sees answer: same(answer) & causal
}
"""


@pytest.mark.parametrize("seq", [512])
@pytest.mark.parametrize("name", SHORT)
def test_every_spelling_is_the_mask(name: str, seq: int) -> None:
    case = CASES[name](seq)
    mask = compiled(case)
    bound = mask.bind().bound
    seen = bound.visible(np.arange(bound.q_len), np.arange(bound.kv_len))
    assert mask.facts is not None
    assert mask.facts.visible_pairs == seen.sum()
    assert (bound.q_len, bound.kv_len) == (case.seq, case.seq)
    for spelling in case.spellings:
        shown = dense(spelling.make("cpu"), torch.arange(case.seq), torch.arange(case.seq))
        assert np.array_equal(shown.numpy(), seen), spelling.words


def test_documents_come_in_both_spellings() -> None:
    assert [s.name for s in CASES["documents"](4096).spellings] == ["", "numbers"]


def test_long_grids_agree_on_some_rows() -> None:
    case = CASES["clear24_r32"](1024)
    bound = compiled(case).bind().bound
    rows = np.array([0, 511, 512, 20_000, bound.q_len - 1])
    mod = case.spellings[0].make("cpu")
    shown = dense(mod, torch.from_numpy(rows), torch.arange(bound.kv_len))
    assert np.array_equal(shown.numpy(), bound.visible(rows, np.arange(bound.kv_len)))


def _own(text: str = OWN, **sizes: object) -> Case:
    return of_file(Source("folder/own.cmask", text), 1024, sizes)


def test_a_mask_of_ones_own_is_spelled_by_its_intervals() -> None:
    case = _own(prompt=100, answer=[50, 60, 70])
    bound = compiled(case).bind().bound
    (spelling,) = case.spellings
    rows, keys = torch.arange(bound.q_len), torch.arange(bound.kv_len)
    assert case.name == "own"
    assert "2 ×" in spelling.words
    assert np.array_equal(
        dense(spelling.make("cpu"), rows, keys).numpy(), bound.visible(rows.numpy(), keys.numpy())
    )


def test_a_mask_without_intervals_has_no_spelling_but_a_dense_mask() -> None:
    grid = "mask own {\n region image[height, width]\n image sees image: disc(4)\n}\n"
    case = _own(grid, height=16, width=16)
    problem = make_problem(case, SMALL)
    assert not case.spellings
    assert torch.equal(
        problem.dense_mask()[0, 0],
        torch.from_numpy(problem.plan.bound.visible(np.arange(256), np.arange(256))),
    )
    with pytest.raises(NotApplicable, match="rows are no intervals"):
        _entries(problem, "fwd")[1].make()


def _entries(problem: Problem, direction: Direction) -> list[Entry]:
    return GpuBench(problem, SMALL).entries(direction)[:-1]  # without the matrix product


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_cmask_and_its_peers_are_right(direction: Direction) -> None:
    problem = make_problem(CASES["documents"](128), SMALL)
    entries = _entries(problem, direction)
    if direction == "bwd":  # FlexAttention has none on a CPU
        entries = [entry for entry in entries if not entry.name.startswith("flex")]
    for entry in entries:
        verdict = entry.check(entry.make())
        assert verdict.is_right, (entry.name, verdict)
        assert verdict.error is not None
        assert 1e-5 < verdict.error < 1e-2
        assert (verdict.lse_error is not None) == (entry.name == "cmask" and direction == "fwd")
        assert (verdict.difference is None) == (entry.name == "cmask")
        assert not verdict.detail


def test_gradients_that_repeat_are_a_column_of_the_backward_alone() -> None:
    problem = make_problem(CASES["causal"](128), SMALL)
    settings = replace(SMALL, deterministic=True, against=())
    forward, backward = (GpuBench(problem, settings).entries(d)[:-1] for d in DIRECTIONS)
    assert [entry.name for entry in forward] == ["cmask"]
    assert [entry.name for entry in backward] == ["cmask", "deterministic"]
    contender = backward[1].make()
    assert backward[1].check(contender).is_right
    (kind,) = problem.plan.prepared
    assert kind.is_deterministic


def _zero(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


def _nan(x: Tensor) -> Tensor:
    return x.masked_fill(torch.ones_like(x, dtype=torch.bool), torch.nan)


def _off(x: Tensor) -> Tensor:
    return 1.05 * x


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[Checks, tuple[Tensor, ...]]]:
    """What to check with, and right results, of both directions."""
    problem = make_problem(CASES["hstu"](256), SMALL)
    found: dict[str, tuple[Checks, tuple[Tensor, ...]]] = {}
    for direction in DIRECTIONS:
        good = contender(problem, ours(problem, None), direction)
        found[direction] = Checks(problem, direction), good.results(good.call())
    return found


@pytest.mark.parametrize("spoil", [_zero, _nan, _off])
@pytest.mark.parametrize(("direction", "which"), [("fwd", 0), ("bwd", 0), ("bwd", 1), ("bwd", 2)])
def test_a_wrong_result_is_found(
    answers: dict[str, tuple[Checks, tuple[Tensor, ...]]],
    spoil: Callable[[Tensor], Tensor],
    direction: Direction,
    which: int,
) -> None:
    checks, good = answers[direction]
    bad = tuple(spoil(x) if i == which else x for i, x in enumerate(good))
    verdict = checks.result(Contender(lambda: bad))
    assert not verdict.is_right
    assert verdict.detail.startswith("errors ")
    assert checks.result(Contender(lambda: good)).is_right


def test_exact_gradients_are_those_of_autograd() -> None:
    """In float64 without sampling error, grouped heads and unequal dimensions included."""
    problem = make_problem(CASES["shared_prompt"](256), SMALL)
    p, seen = problem, torch.from_numpy(problem.plan.bound.visible(np.arange(256), np.arange(256)))
    q, k, v = (x.double().requires_grad_() for x in (p.q, p.k, p.v))
    keys, values = (x.repeat_interleave(p.shape.group, 1) for x in (k, v))
    scores = (q @ keys.mT / p.shape.head_dim**0.5).masked_fill(~seen, -torch.inf)
    out = scores.softmax(-1) @ values
    grads = torch.autograd.grad(out, (q, k, v), p.grad_out.double())
    rows = exact.sample_rows(p)
    truth = (exact.exact_out(p, rows), exact.exact_dq(p, rows), *exact_dkdv(p))
    for vectors, whole in zip(truth, (out, *grads), strict=True):
        assert vectors.error(whole) < 1e-12
        assert len(vectors.exact) >= 7


def test_rows_and_keys_that_see_nothing_must_be_exactly_zero() -> None:
    zeros = torch.zeros(1, 1, 4, 8)
    vectors = exact.Vectors(
        tuple(torch.zeros(1, dtype=torch.int64) for _ in range(3)),  # type: ignore[arg-type]
        torch.zeros(1, 8, dtype=torch.float64),
        torch.zeros(1, dtype=torch.float64),
    )
    assert vectors.error(zeros) == 0
    assert vectors.error(zeros + 1e-9) == float("inf")


def test_keys_of_a_grid_are_those_that_few_queries_see() -> None:
    from cmask.cli.bench import exact_gradients

    problem = make_problem(CASES["natten_2d"](1024), SMALL)
    keys, seen = exact_gradients._sample_keys(problem, np.random.default_rng(0), 400)
    assert 1 <= len(keys) <= 8
    assert seen.any(1).sum() <= 400


def test_binding_is_timed_next_to_create_block_mask() -> None:
    found = binding_of(make_problem(CASES["causal"](256), SMALL))
    assert found.ours_ms > 0
    assert found.eager_ms is not None
    assert found.block_mask_bytes == 2 * 2 * (2 + 4) * 4  # full and partial, both directions


def test_a_compiler_that_does_not_end_is_not_called() -> None:
    """torch 2.11 compiles create_block_mask for 16,384 keys for ever, and cannot be interrupted."""
    problem = make_problem(CASES["causal"](256), SMALL)
    for tokens, compiles in ((256, True), (16384, False)):
        plan = SimpleNamespace(q_len=tokens, kv_len=tokens)
        changed = replace(problem, compiles=True, plan=cast(Any, plan))
        assert changed.compiles_block_mask == compiles
