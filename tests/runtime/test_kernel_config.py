"""What a launch is made of: configurations by budget, the schedule, the arrays on the device."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch

from cmask.runtime.descriptor import unpack_pattern
from cmask.runtime.kernels.budget import ITEMSIZE, SMALLEST_SHARED_MEMORY
from cmask.runtime.kernels.config import (
    DIRECTIONS,
    MAX_HEAD_DIM,
    Direction,
    KernelConfig,
    choose_config,
)
from cmask.runtime.kernels.device import DeviceDescriptor
from cmask.runtime.kernels.launch import Launch
from cmask.runtime.kernels.schedule import heads_in_flight, work_items
from support import dense
from support.dense import Bools, Masking, descriptor_of

KIB = 1024
LIMITS = (SMALLEST_SHARED_MEMORY, 163 * KIB, 227 * KIB)
# compute capability as one number, and the shared memory that one program may have [bytes]
DEVICES = (
    (80, 163 * KIB),
    (86, SMALLEST_SHARED_MEMORY),
    (89, SMALLEST_SHARED_MEMORY),
    (90, 227 * KIB),
    (100, 227 * KIB),
    (120, SMALLEST_SHARED_MEMORY),
)


# ------------------------------------------------------------------ configurations
@pytest.mark.parametrize(
    ("direction", "m", "n", "warps", "stages", "head_dim", "architecture", "allocated"),
    [
        ("forward", 128, 128, 16, 6, 32, 90, 264_704),
        ("forward", 128, 128, 16, 4, 32, 80, 198_144),
        ("dkdv", 64, 64, 8, 3, 32, 80, 87_552),
        ("forward", 64, 128, 8, 4, 16, 80, 86_272),
    ],
)
def test_large_blocks_of_float32_take_what_triton_allocates(
    direction: Direction, m: int, n: int, warps: int, stages: int, head_dim: int,
    architecture: int, allocated: int,
) -> None:  # fmt: skip
    """By compilers ahead of time (Triton 3.9); believed smaller, they could not be launched."""
    config = KernelConfig(
        direction=direction, block_m=m, block_n=n, num_warps=warps, num_stages=stages
    )
    estimate = config.shared_memory_bytes(
        head_dim=head_dim, v_head_dim=head_dim, itemsize=4, architecture=architecture
    )
    assert allocated <= estimate <= 1.3 * allocated


@pytest.mark.parametrize(("architecture", "limit"), DEVICES)
@pytest.mark.parametrize("dtype", ITEMSIZE)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_head_dim_has_a_configuration_that_fits(
    direction: Direction, dtype: str, architecture: int, limit: int
) -> None:
    for head_dim in range(1, MAX_HEAD_DIM + 1, 5):
        for v_head_dim in (1, head_dim, MAX_HEAD_DIM):
            shape = {"head_dim": head_dim, "v_head_dim": v_head_dim}
            config = choose_config(
                direction,
                dtype=dtype,
                **shape,
                shared_memory_limit=limit,
                architecture=architecture,
            )
            needed = config.shared_memory_bytes(
                **shape, itemsize=ITEMSIZE[dtype], architecture=architecture
            )
            assert config.direction == direction
            assert needed <= limit


@pytest.mark.parametrize(
    ("dims", "dtype", "limit", "kernel"),
    [
        ((128, 128), "bfloat16", 227 * KIB, "gluon"),
        ((64, 64), "float16", 227 * KIB, "gluon"),
        ((64, 128), "bfloat16", 227 * KIB, "triton"),
        ((96, 96), "bfloat16", 227 * KIB, "triton"),
        ((128, 128), "bfloat16", SMALLEST_SHARED_MEMORY, "triton"),
    ],
)
def test_the_backward_of_a_hopper_forward(
    dims: tuple[int, int], dtype: str, limit: int, kernel: str
) -> None:
    shape = {"head_dim": dims[0], "v_head_dim": dims[1]}
    config = choose_config(
        "dkdv", dtype=dtype, **shape, shared_memory_limit=limit, architecture=90, kernel="gluon"
    )
    assert config.kernel == kernel
    assert config.shared_memory_bytes(**shape, itemsize=2, architecture=90) <= limit


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_same_question_has_the_same_answer(direction: Direction) -> None:
    first, second = (
        choose_config(direction, dtype="bfloat16", head_dim=96, v_head_dim=128) for _ in range(2)
    )
    assert first == second


def test_less_shared_memory_never_makes_a_block_larger() -> None:
    for direction in DIRECTIONS:
        sizes = [
            config.block_m * config.block_n
            for config in (
                choose_config(
                    direction,
                    dtype="float16",
                    head_dim=128,
                    v_head_dim=128,
                    shared_memory_limit=limit,
                )
                for limit in LIMITS
            )
        ]
        assert sizes == sorted(sizes)


def test_what_fits_nowhere_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"no configuration of the dq kernel fits 4096 bytes"):
        choose_config(
            "dq", dtype="float32", head_dim=256, v_head_dim=256, shared_memory_limit=4 * KIB
        )


@pytest.mark.parametrize("measured", [None, {"device": "NVIDIA H200", "tflops": 497.5}])
def test_a_configuration_survives_its_fields(measured: dict[str, str | float] | None) -> None:
    config = KernelConfig(direction="dq", block_m=64, block_n=32, num_warps=4, num_stages=1)
    fields = config.to_fields(target="sm_90", dtype="float16", head_dim=80, measured=measured)
    assert KernelConfig.from_fields(fields) == config
    assert fields.items() >= asdict(config).items()
    assert (fields["target"], fields["dtype"], fields["head_dim"]) == ("sm_90", "float16", 80)
    assert fields["measured"] == measured


# ------------------------------------------------------------------ the schedule
def scheduled(
    costs: list[float], num_heads: int, group: int, processors: int = 1
) -> list[tuple[int, int]]:
    array = np.array(costs, float)
    order = np.argsort(-array, kind="stable").astype(np.int32)
    items = work_items(array, order, num_heads, group, processors)
    assert items.dtype == np.int32
    return [(int(head), int(block)) for head, block in items]


@pytest.mark.parametrize("group", [1, 2, 3, 7])
@pytest.mark.parametrize("processors", [1, 4, 132])
def test_every_head_does_every_block_once(group: int, processors: int) -> None:
    items = scheduled([3, 0, 50, 1, 1], 7, group, processors)
    assert sorted(items) == [(head, block) for head in range(7) for block in range(5)]


def test_heads_that_fit_in_the_cache_together_work_together_longest_block_first() -> None:
    items = scheduled([1, 3, 2], num_heads=4, group=2)
    assert items == [
        *((0, 1), (1, 1), (0, 2), (1, 2), (0, 0), (1, 0)),
        *((2, 1), (3, 1), (2, 2), (3, 2), (2, 0), (3, 0)),
    ]


def test_a_block_too_long_for_its_share_goes_first_for_all_heads() -> None:
    """Group of 1: 103 blocks on 4 processors, a share of 25.75; 100 is more than half of it."""
    items = scheduled([1, 100, 1, 1], num_heads=3, group=1, processors=4)
    assert items[:3] == [(0, 1), (1, 1), (2, 1)]
    assert items[3:6] == [(0, 0), (0, 2), (0, 3)]


def test_no_heads_and_no_blocks_make_no_work() -> None:
    assert scheduled([1, 2], num_heads=0, group=heads_in_flight(0, 1, 100)) == []
    assert scheduled([], num_heads=4, group=2) == []


def test_as_many_heads_are_in_flight_as_the_cache_holds() -> None:
    mib = 1 << 20
    assert heads_in_flight(16, heads_per_walk=1, bytes_per_walk=16 * mib) == 2
    assert heads_in_flight(16, heads_per_walk=4, bytes_per_walk=16 * mib) == 8
    assert heads_in_flight(16, heads_per_walk=1, bytes_per_walk=mib) == 16, "no more than there are"
    assert heads_in_flight(16, heads_per_walk=4, bytes_per_walk=99 * mib) == 4, "one walk at least"
    assert heads_in_flight(16, heads_per_walk=1, bytes_per_walk=0) == 16


# ------------------------------------------------------------------ the arrays on the device
FORWARD = KernelConfig(direction="forward", block_m=16, block_n=16, num_warps=4, num_stages=2)
DKDV = KernelConfig(direction="dkdv", block_m=16, block_n=16, num_warps=4, num_stages=2)

MASKS: dict[str, tuple[Bools, Masking]] = {
    "causal": (dense.causal(70, 70), "pattern"),
    "causal by bounds": (dense.causal(70, 70), "bounds"),
    "window": (dense.window(70, 90, 40), "pattern"),
    "scattered": (dense.scattered(90, 130), "pattern"),
    "four intervals": (dense.holes(50, 60, 4), "bounds"),
    "full": (dense.full(64, 64), "pattern"),
    "nothing": (np.zeros((40, 40), bool), "pattern"),
}


def launch_of(visible: Bools, masking: Masking, config: KernelConfig) -> Launch:
    host = descriptor_of(visible, config.block_m, config.block_n, masking)
    return DeviceDescriptor.from_host(host, "cpu").launch(
        config, num_heads=3, heads_per_walk=1, bytes_per_walk=100
    )


def walked(launch: Launch, shape: tuple[int, int], *, by_key: bool) -> Bools:
    """bool[q_len, kv_len] of what a kernel would visit; a block visited twice is an error."""
    size = launch.block_m
    assert launch.block_n == size, "square blocks keep this helper short"
    seen = np.zeros([-(-length // size) * size for length in shape], bool)
    visits = np.zeros([length // size for length in seen.shape], int)
    offsets, entries = launch.offsets.numpy(), launch.entries.numpy()
    patterns = unpack_pattern(launch.patterns.numpy(), size)
    bounds = launch.bounds.numpy()
    keys = np.arange(seen.shape[1])
    inside = np.zeros_like(seen)
    for i in range(launch.num_intervals):
        start, stop = bounds[2 * i, :, None], bounds[2 * i + 1, :, None]
        inside |= (keys >= start) & (keys < stop)
    for owner in range(offsets.shape[1] - 1):
        for kind, of in enumerate(offsets):
            for a, b in entries[of[owner] : of[owner + 1]]:
                for other in range(a, b) if kind < 2 else (a,):
                    q, k = (other, owner) if by_key else (owner, other)
                    at = np.s_[q * size : (q + 1) * size, k * size : (k + 1) * size]
                    if kind < 2:
                        seen[at] = inside[at] if kind == 1 else True
                    else:
                        seen[at] = patterns[b].T if by_key else patterns[b]
                    visits[q, k] += 1
    assert visits.max(initial=0) <= 1
    return seen[: shape[0], : shape[1]]


@pytest.mark.parametrize("mask", MASKS)
def test_what_a_launch_walks_is_the_mask_from_either_side(mask: str) -> None:
    visible, masking = MASKS[mask]
    by_query = walked(launch_of(visible, masking, FORWARD), visible.shape, by_key=False)
    by_key = walked(launch_of(visible, masking, DKDV), visible.shape, by_key=True)
    assert np.array_equal(by_query, visible)
    assert np.array_equal(by_key, visible)


@pytest.mark.parametrize("mask", MASKS)
def test_a_launch_says_whether_rows_are_empty_and_keys_unread(mask: str) -> None:
    visible, masking = MASKS[mask]
    launch = launch_of(visible, masking, FORWARD)
    assert launch.has_empty_rows == int(not visible.any(axis=1).all())
    assert launch.has_unread_keys == int(not visible.any(axis=0).all())


@pytest.mark.parametrize("mask", MASKS)
def test_a_launch_says_between_which_keys_its_rows_read(mask: str) -> None:
    visible, masking = MASKS[mask]
    launch = launch_of(visible, masking, FORWARD)
    read = np.flatnonzero(visible.any(axis=0))
    if len(read):
        assert (launch.first_key, launch.stop_key) == (read[0], read[-1] + 1)
    size = launch.block_n
    blocks = {*range(visible.shape[1])} & {k // size * size + i for k in read for i in range(size)}
    between = {k for k in blocks if launch.first_key <= k < launch.stop_key}
    assert launch.has_holes == int(between != set(read.tolist()))


def test_short_full_runs_stand_beside_patterns_and_long_ones_do_not() -> None:
    launch = launch_of(dense.window(400, 400, 40), "pattern", FORWARD)
    full, _, pattern = launch.offsets.diff(dim=1).sum(dim=1).tolist()
    assert full == 0, "a window of 40 leaves runs of one full block"
    assert pattern > 0
    launch = launch_of(dense.causal(400, 400), "pattern", FORWARD)
    runs = launch.entries[launch.offsets[0, 0] : launch.offsets[0, -1]]
    assert ((runs[:, 1] - runs[:, 0]) >= 4).all()


def test_launches_survive_the_operators_flat_lists() -> None:
    launches = [launch_of(*MASKS["window"], config) for config in (FORWARD, DKDV)]
    tensors = [tensor for launch in launches for tensor in launch.tensors()]
    integers = [integer for launch in launches for integer in launch.integers()]
    assert all(tensor.dtype == torch.int32 for tensor in tensors)
    assert (len(tensors), len(integers)) == (2 * Launch.NUM_TENSORS, 2 * Launch.NUM_INTEGERS)
    for index, launch in enumerate(launches):
        again = Launch.nth(index, tensors, integers)
        assert again.integers() == launch.integers()
        assert all(map(torch.equal, again.tensors(), launch.tensors()))


def test_a_schedule_is_made_once_for_a_number_of_heads() -> None:
    device = DeviceDescriptor.from_host(
        descriptor_of(dense.causal(70, 70), 16, 16, "bounds"), "cpu"
    )
    heads = {"heads_per_walk": 1, "bytes_per_walk": 100}
    first, second = (device.launch(FORWARD, num_heads=3, **heads) for _ in range(2))
    assert first.items is second.items
    assert len(device.launch(FORWARD, num_heads=4, **heads).items) == 4 * 5
