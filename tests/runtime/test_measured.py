"""What tuning measured, from an artifact to the launches of a call."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from cmask.runtime.artifact import ArtifactError, read_artifact, write_artifact
from cmask.runtime.kernels import prepare as preparing
from cmask.runtime.kernels.budget import Budget, shortage
from cmask.runtime.kernels.config import (
    DIRECTIONS,
    GLUON_BACKWARD,
    GLUON_BACKWARD_DQ,
    KernelConfig,
    choose_config,
)
from cmask.runtime.kernels.device import DeviceDescriptor
from cmask.runtime.kernels.launch import Launch
from cmask.runtime.kernels.measured import kernel_of, measured_configs, of_kernel
from cmask.runtime.kernels.prepare import CallKind, prepare
from cmask.runtime.mask import load
from cmask.runtime.schema import StoredConfig
from support import dense
from support.compiled import compiled
from support.dense import DensePlan, descriptor_of

HOPPER = Budget(
    dtype="bfloat16",
    head_dim=128,
    v_head_dim=128,
    shared_memory_limit=227 << 10,
    architecture=90,
)
FOUND: dict[str, str | float] = {"latency_ms": 1.25, "device": "NVIDIA H200", "date": "2026-12-02"}
FORWARD = KernelConfig(
    direction="forward", block_m=64, block_n=64, num_warps=4, num_stages=2, kernel="gluon"
)
PORTABLE = KernelConfig(direction="forward", block_m=64, block_n=128, num_warps=4, num_stages=2)
DKDV = KernelConfig(direction="dkdv", block_m=64, block_n=64, num_warps=8, num_stages=2)
DQ = KernelConfig(direction="dq", block_m=64, block_n=64, num_warps=8, num_stages=2)


def stored(config: KernelConfig, *, is_measured: bool = True, **fields: Any) -> StoredConfig:
    """As an artifact has it, for the tensors and the device of `HOPPER`."""
    where: dict[str, Any] = {"target": "sm_90", "dtype": "bfloat16", "head_dim": 128, **fields}
    return StoredConfig(**config.to_fields(**where, measured=FOUND if is_measured else None))


# ------------------------------------------------------------------ which of them fit
def test_a_measured_configuration_is_that_of_its_direction() -> None:
    found = measured_configs([stored(FORWARD), stored(DKDV), stored(DQ)], HOPPER)
    assert found == {"forward": FORWARD, "dkdv": DKDV, "dq": DQ}


@pytest.mark.parametrize(
    "other",
    [
        {"target": "sm_100"},
        {"target": "sm_80"},
        {"dtype": "float16"},
        {"head_dim": 64},
        {"is_measured": False},
    ],
)
def test_what_was_not_measured_for_such_a_call_is_left_out(other: dict[str, Any]) -> None:
    assert measured_configs([stored(FORWARD, **other)], HOPPER) == {}


def test_values_of_another_head_dim_were_not_measured() -> None:
    assert measured_configs([stored(FORWARD)], replace(HOPPER, v_head_dim=64)) == {}


@pytest.mark.parametrize(
    "unfit",
    [
        replace(FORWARD, block_m=128, block_n=128, num_warps=8, num_stages=3),  # shared memory
        replace(PORTABLE, block_m=128, num_warps=4),  # registers
        replace(PORTABLE, block_m=8),
        replace(FORWARD, block_n=128),
        replace(FORWARD, num_stages=1),
        replace(FORWARD, num_stages=4),
        replace(GLUON_BACKWARD, num_stages=3),
        replace(FORWARD, num_warps=16),
        replace(FORWARD, kernel="cute"),
        replace(GLUON_BACKWARD, direction="dq"),
    ],
)
def test_what_the_device_cannot_run_is_left_out(unfit: KernelConfig) -> None:
    assert measured_configs([stored(unfit)], HOPPER) == {}


def test_dq_of_hopper_is_left_out_beside_portable_dkdv() -> None:
    """No kernel has the pair: every training call was refused, though its caller chose nothing."""
    wide = replace(HOPPER, head_dim=128, v_head_dim=128)
    both = [stored(GLUON_BACKWARD_DQ), stored(DKDV)]
    assert measured_configs(both, wide) == {"dkdv": DKDV}
    assert measured_configs([stored(GLUON_BACKWARD_DQ)], wide) == {"dq": GLUON_BACKWARD_DQ}


def test_a_hopper_kernel_runs_nowhere_else() -> None:
    blackwell = replace(HOPPER, architecture=100)
    assert measured_configs([stored(FORWARD, target="sm_100")], blackwell) == {}
    assert measured_configs([stored(PORTABLE, target="sm_100")], blackwell)


def test_the_hopper_backward_serves_its_head_dims_only() -> None:
    narrow = replace(HOPPER, head_dim=96, v_head_dim=96)
    assert measured_configs([stored(GLUON_BACKWARD)], HOPPER) == {"dkdv": GLUON_BACKWARD}
    assert measured_configs([stored(GLUON_BACKWARD, head_dim=96)], narrow) == {}


def test_a_measured_forward_chooses_the_kernel() -> None:
    assert kernel_of({}, needs_grad=True) is None
    assert kernel_of({"dkdv": DKDV}, needs_grad=True) is None
    assert kernel_of({"forward": PORTABLE}, needs_grad=True) == "triton"
    mixed = {"forward": PORTABLE, "dkdv": GLUON_BACKWARD}
    assert kernel_of(mixed, needs_grad=False) == "triton"
    assert kernel_of(mixed, needs_grad=True) == "gluon"
    assert of_kernel(mixed, "gluon") == {"dkdv": GLUON_BACKWARD}
    assert of_kernel(mixed, "triton") == {"forward": PORTABLE}


def test_a_shortage_is_said_in_numbers() -> None:
    wide = KernelConfig(direction="forward", block_m=128, block_n=128, num_warps=8, num_stages=3)
    ampere = replace(HOPPER, architecture=80, shared_memory_limit=163 << 10)
    assert shortage(wide, HOPPER) == ""
    assert shortage(wide, ampere) == ("needs 232,192 bytes of shared memory, there are 166,912")
    assert shortage(replace(wide, num_warps=4, num_stages=2), HOPPER) == (
        "needs 256 registers a thread for scores and results, there are 200"
    )


# ------------------------------------------------------------------ the launches of a call
@dataclass(frozen=True, eq=False)
class HopperPlan(DensePlan):
    """A plan that says it is on a Hopper GPU; its lists stay on the host."""

    device: str = "cuda:0"
    measured: tuple[StoredConfig, ...] = ()

    def device_descriptor(self, block_m: int, block_n: int) -> DeviceDescriptor:
        descriptor = descriptor_of(self.visible, block_m, block_n, self.masking)
        return DeviceDescriptor.from_host(descriptor, "cpu")


@pytest.fixture
def _hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "_resources", lambda device: (227 << 10, 90))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))


def launches(*measured: StoredConfig, **kind: Any) -> tuple[str, tuple[Launch, ...]]:
    """Kernel and launches of a call with gradients by a plan that holds these."""
    fields: dict[str, Any] = {
        "batch": 1, "num_q_heads": 4, "num_kv_heads": 4, "head_dim": 128, "v_head_dim": 128,
        "dtype": torch.bfloat16, "device": torch.device("cuda", 0), "needs_grad": True,
        "kernel": None, "configs": None, "reorders": False, "is_deterministic": False,
    }  # fmt: skip
    plan = HopperPlan(dense.causal(512, 512), measured=measured)
    prepared = prepare(plan, CallKind(**{**fields, **kind}))
    return prepared.kernel, prepared.launches


def shapes(found: tuple[str, tuple[Launch, ...]]) -> tuple[str, list[tuple[int, int, int]]]:
    return found[0], [(x.block_m, x.block_n, x.num_warps) for x in found[1]]


SHIPPED = ("gluon", [(128, 128, 8), (64, 128, 8)])


@pytest.mark.usefixtures("_hopper")
def test_a_call_takes_what_was_measured() -> None:
    assert shapes(launches()) == SHIPPED
    assert shapes(launches(stored(FORWARD))) == ("gluon", [(64, 64, 4), (64, 128, 8)])
    portable = (stored(FORWARD), stored(DKDV), stored(DQ))
    expected = ("gluon", [(64, 64, 4), (64, 64, 8), (64, 64, 8)])
    assert shapes(launches(*portable)) == expected


@pytest.mark.usefixtures("_hopper")
def test_what_is_not_measured_changes_nothing() -> None:
    assert shapes(launches(stored(FORWARD, is_measured=False))) == SHIPPED
    assert shapes(launches(stored(FORWARD), dtype=torch.float16)) == SHIPPED


@pytest.mark.usefixtures("_hopper")
def test_the_caller_decides_over_what_was_measured() -> None:
    assert shapes(launches(stored(FORWARD), configs=())) == SHIPPED
    kernel, found = shapes(launches(stored(FORWARD), kernel="triton"))
    assert (kernel, found[0]) == ("triton", (128, 128, 8))
    wide = replace(FORWARD, block_m=128, num_warps=8)
    assert shapes(launches(stored(FORWARD), configs=(wide,)))[1][0] == (128, 64, 8)


@pytest.mark.usefixtures("_hopper")
def test_a_portable_forward_that_was_faster_runs_where_the_backward_allows() -> None:
    both = (stored(PORTABLE), stored(GLUON_BACKWARD))
    assert shapes(launches(*both, needs_grad=False)) == ("triton", [(64, 128, 4)])
    assert shapes(launches(*both)) == SHIPPED


@pytest.mark.usefixtures("_hopper")
def test_gradients_with_the_same_bits_have_a_dq_of_their_own() -> None:
    both = (stored(GLUON_BACKWARD), stored(DQ))
    assert len(launches(*both)[1]) == 2
    assert shapes(launches(*both, is_deterministic=True))[1][2] == (64, 64, 8)


@pytest.mark.usefixtures("_hopper")
def test_a_budget_of_l2_decides_how_many_heads_work_together() -> None:
    (usual,) = launches(stored(FORWARD), needs_grad=False, num_q_heads=64, num_kv_heads=64)[1]
    small = replace(FORWARD, l2_mib=1)  # 512 keys and values of 128 are 256 KiB: 4 heads
    (few,) = launches(stored(small), needs_grad=False, num_q_heads=64, num_kv_heads=64)[1]
    assert usual.items[:64, 0].unique().numel() == 64
    assert few.items[: 4 * 8, 0].unique().numel() == 4
    assert np.array_equal(np.sort(few.items.numpy(), 0), np.sort(usual.items.numpy(), 0))


# ------------------------------------------------------------------ the artifact
TEXT = "region text; text sees text: causal"


def test_an_artifact_carries_what_was_measured_to_its_plans() -> None:
    body = read_artifact(compiled(TEXT, text=64).artifact)
    assert load(write_artifact(body)).bind().measured == ()
    wide = replace(FORWARD, block_m=128, num_warps=8, l2_mib=8)
    tuned = replace(body, configs=(stored(wide), *body.configs))
    mask = load(write_artifact(tuned))
    for plan in (mask.bind(), mask.bind(text=100), mask.bind(rows=(3, 4))):
        (found,) = plan.measured
        assert found == tuned.configs[0]
        assert found.measured == FOUND
        assert plan.forward_shape == (64, 64), "the cost model's, for what is not measured"


@pytest.mark.parametrize(
    ("field", "value"),
    [("block_m", 48), ("block_n", 0), ("num_warps", 3), ("num_stages", 0), ("l2_mib", 0)],
)
def test_numbers_that_no_kernel_takes_are_refused(field: str, value: int) -> None:
    body = read_artifact(compiled(TEXT, text=64).artifact)
    broken = replace(stored(FORWARD), **{field: value})  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match="malformed"):
        read_artifact(write_artifact(replace(body, configs=(broken,))))


def test_an_older_artifact_has_the_usual_budget_of_l2() -> None:
    fields = {name: value for name, value in asdict(stored(FORWARD)).items() if name != "l2_mib"}
    assert StoredConfig(**fields) == stored(FORWARD)


def test_shipped_configurations_are_those_that_the_runtime_chooses() -> None:
    body = read_artifact(compiled(TEXT, text=2048).artifact)
    for direction in DIRECTIONS:
        chosen = choose_config(
            direction,
            dtype="bfloat16",
            head_dim=128,
            v_head_dim=128,
            shared_memory_limit=HOPPER.shared_memory_limit,
            architecture=90,
            kernel="gluon",
        )
        assert stored(chosen, is_measured=False) in body.configs
