"""Which candidates there are, which fit, and why the others do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cmask.cli.bench.settings import DIRECTIONS
from cmask.cli.bench.settings import Direction as Way
from cmask.cli.tune.space import (
    Candidate,
    Walks,
    candidates_of,
    combined,
    default_of,
    schedules,
    words,
)
from cmask.runtime.kernels.budget import ITEMSIZE, Budget, shortage
from cmask.runtime.kernels.config import GLUON_BACKWARD, KernelConfig

KERNELS = ("gluon", "triton")
HOPPER = Budget(
    dtype="bfloat16", head_dim=128, v_head_dim=128, shared_memory_limit=227 << 10, architecture=90
)
AMPERE = replace(HOPPER, architecture=80, shared_memory_limit=163 << 10)
SMALL = replace(HOPPER, architecture=86, shared_memory_limit=99 << 10)


def space(way: Way, budget: Budget, kernels: tuple[str, ...] = KERNELS) -> list[Candidate]:
    """The default, then the others."""
    kernel = "gluon" if budget.architecture == 90 and budget.dtype != "float32" else "triton"
    default = default_of(way, budget, kernel, (128, 128))
    return [default, *candidates_of(way, budget, kernels, default)]


def named(candidates: list[Candidate]) -> dict[str, str]:
    return {str(each): each.reason for each in candidates}


def test_what_does_not_fit_says_by_how_much() -> None:
    found = named(space("fwd", HOPPER))
    assert found["128 × 128, 8 warps, 2 stages, gluon"] == ""
    assert found["128 × 128, 8 warps, 3 stages, gluon"] == (
        "needs 269,312 bytes of shared memory, there are 232,448"
    )
    assert found["128 × 128, 4 warps, 2 stages, triton"] == (
        "needs 256 registers a thread for scores and results, there are 200"
    )
    assert found["128 × 64, 8 warps, 3 stages, triton"] == ""


def test_a_hopper_kernel_is_tried_with_the_stages_that_it_has() -> None:
    """Of a fourth, whose barriers were others', it never ended."""
    stages = {each.configs[0].num_stages for each in space("fwd", HOPPER, ("gluon",))}
    assert stages == {2, 3}


def test_a_smaller_device_has_fewer_that_fit() -> None:
    counts = [
        sum(not each.reason for each in space(way, budget))
        for way in DIRECTIONS
        for budget in (HOPPER, AMPERE, SMALL)
    ]
    assert counts[:3] == sorted(counts[:3], reverse=True)
    assert counts[3:] == sorted(counts[3:], reverse=True)
    assert min(counts) >= 2


@pytest.mark.parametrize("way", DIRECTIONS)
@pytest.mark.parametrize("budget", [HOPPER, AMPERE, SMALL])
@pytest.mark.parametrize("dtype", ITEMSIZE)
@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
def test_every_space_has_a_default_that_fits_and_no_candidate_twice(
    way: Way, budget: Budget, dtype: str, head_dim: int
) -> None:
    budget = replace(budget, dtype=dtype, head_dim=head_dim, v_head_dim=head_dim)
    default, *others = space(way, budget)
    assert not any(shortage(config, budget) for config in default.configs)
    configs = [each.configs for each in (default, *others)]
    assert len(set(configs)) == len(configs)
    for each in others:
        assert bool(each.reason) == any(shortage(config, budget) for config in each.configs)


def test_only_hopper_has_candidates_of_its_own() -> None:
    assert any("gluon" in str(each) for each in space("bwd", HOPPER))
    for budget in (AMPERE, SMALL, replace(HOPPER, dtype="float32")):
        assert not any("gluon" in str(each) for each in space("fwd", budget)[1:])
    narrow = replace(HOPPER, head_dim=96, v_head_dim=96)
    assert not any("gluon" in str(each) for each in space("bwd", narrow))


def test_candidates_are_of_the_kernels_that_were_asked_for() -> None:
    assert {each.configs[0].kernel for each in space("fwd", HOPPER, ("gluon",))} == {"gluon"}
    assert {each.configs[0].kernel for each in space("fwd", HOPPER, ("triton",))[1:]} == {"triton"}


def test_a_backward_is_one_hopper_kernel_or_two_portable_ones() -> None:
    default, *others = space("bwd", HOPPER)
    assert default.configs == (GLUON_BACKWARD,)
    assert {tuple(c.direction for c in each.configs) for each in others} == {("dkdv", "dq")}
    base = default_of("bwd", HOPPER, "triton", (0, 0)).configs
    assert all(each.configs[0] == base[0] or each.configs[1] == base[1] for each in others)


def test_small_shapes_are_tried_only_where_larger_ones_do_not_fit() -> None:
    def smallest(budget: Budget) -> int:
        return min(each.configs[0].block_m for each in space("fwd", budget))

    assert smallest(HOPPER) == 64
    assert smallest(replace(SMALL, dtype="float32")) == 16


def test_the_best_of_each_kernel_make_a_pair() -> None:
    base = space("bwd", AMPERE)[0]
    dkdv, dq = base.configs
    better_dkdv, better_dq = replace(dkdv, num_stages=1), replace(dq, num_stages=3)
    fastest = [
        Candidate((better_dkdv, dq)),
        Candidate((dkdv, better_dq)),
        base,
        Candidate((replace(dkdv, num_warps=4), dq)),
    ]
    assert combined(fastest, AMPERE) == [Candidate((better_dkdv, better_dq))]
    assert combined([base, *fastest], AMPERE) == []
    assert combined([Candidate((GLUON_BACKWARD,))], HOPPER) == []


def test_orders_of_work_differ_in_how_many_heads_work_together() -> None:
    (default,) = default_of("fwd", HOPPER, "gluon", (128, 128)).configs
    mib = 1 << 20
    walks = {"forward": Walks(16, 1, 4 * mib)}  # the usual 32 MiB hold 8 heads
    found = schedules(Candidate((default,)), walks)  # type: ignore[arg-type]
    assert [each.configs[0].l2_mib for each in found] == [4, 8, 16, 64]
    assert str(found[0]) == "128 × 128, 8 warps, 2 stages, gluon, 4 MiB of L2"
    few = {"forward": Walks(16, 1, mib // 8)}  # all heads work together anyway
    assert schedules(Candidate((default,)), few) == []  # type: ignore[arg-type]


def test_words_name_the_order_of_work_only_where_it_is_unusual() -> None:
    config = KernelConfig(direction="dq", block_m=64, block_n=32, num_warps=4, num_stages=2)
    assert words(config) == "64 × 32, 4 warps, 2 stages, triton"
    assert words(replace(config, l2_mib=8)).endswith(", 8 MiB of L2")
