"""The command: without a GPU, and with portable kernels under Triton's interpreter for one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cmask.cli.bench.case import Case
from cmask.cli.bench.measure import Clock, Runner
from cmask.cli.bench.problem import make_problem
from cmask.cli.bench.settings import Direction
from cmask.cli.tune import gpu, settings, space
from cmask.cli.tune import tune as tuning
from cmask.cli.tune.agreement import row_difference
from cmask.cli.tune.run import Device
from cmask.cli.tune.settings import Settings
from cmask.cli.values import ValueFault
from cmask.grammar.source import Source
from cmask.runtime import attention
from cmask.runtime.kernels.budget import Budget
from cmask.runtime.kernels.config import KernelConfig
from cmask.runtime.kernels.measured import measured_configs
from cmask.runtime.mask import load
from support.attending import DEVICE
from support.command import run_cmask

OWN = "mask own { region text; text sees text: window(8, 0) }\n"
BARE = ("tune", "own.cmask", "--size", "text=20", "--heads", "2/1", "--tokens", "20")
SMALL = (*BARE, "--head-dim", "16", "--dtype", "fp32", "--rounds", "3")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.cmask").write_text(OWN)


@pytest.fixture
def _without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


# ------------------------------------------------------------------ without a GPU
@pytest.mark.usefixtures("_without_gpu")
def test_without_a_gpu_the_artifact_carries_what_ships_and_says_so() -> None:
    done = run_cmask("tune", "causal", "--seq", "1k")
    assert (done.code, done.err) == (0, "")
    first, *lines, last = done.out.splitlines()
    assert first.startswith("no CUDA device here: nothing is measured")
    assert "sm_90   forward  bfloat16  head_dim 128  128 × 128, 8 warps, 2 stages, gluon" in lines
    assert len(lines) == 3 + 2 + 1 + 2, "on Hopper, one kernel makes all gradients"
    assert last.endswith("bytes, not measured here")
    assert load("causal.cmaskc").bind().measured == ()
    assert "not measured" in run_cmask("inspect", "causal.cmaskc").out


@pytest.mark.usefixtures("_without_gpu")
def test_it_is_the_same_artifact_as_that_of_compile() -> None:
    run_cmask("tune", "causal", "--out", "tuned.cmaskc")
    run_cmask("compile", "causal", "-o", "compiled.cmaskc")
    assert Path("tuned.cmaskc").read_bytes() == Path("compiled.cmaskc").read_bytes()


@pytest.mark.usefixtures("_without_gpu")
def test_json_gives_every_candidate_its_reason() -> None:
    found = run_cmask("tune", "causal", "--target", "sm_80", "--json").json
    assert (found["machine"], found["is_interrupted"]) == (None, False)
    forward, backward = found["groups"]
    assert (forward["target"], forward["is_measured"]) == ("sm_80", False)
    status = {each["detail"][:30] for each in forward["candidates"]}
    assert "there is no such GPU here" in status
    assert any(detail.startswith("needs 2") for detail in status)
    assert [config["direction"] for config in backward["winner"]] == ["dkdv", "dq"]
    assert {c.target for c in load("causal.cmaskc").body.configs} == {"sm_80"}


@pytest.mark.usefixtures("_without_gpu")
def test_compile_can_tune_too() -> None:
    done = run_cmask("compile", "causal", "--seq", "256", "--tune")
    assert done.code == 0
    assert "no CUDA device here" in done.out
    assert "density" in done.out
    found = run_cmask("compile", "causal", "--seq", "256", "--tune", "--json").json
    assert found["facts"]["q_len"] == 256
    assert len(found["tuning"]["groups"]) == 6


@pytest.mark.usefixtures("_without_gpu")
def test_sizes_without_values_are_no_hindrance_where_nothing_is_measured() -> None:
    done = run_cmask("tune", "own.cmask", "--symbolic")
    assert done.code == 0
    assert load("own.cmaskc").facts is None


def test_compiling_loads_torch_only_to_tune() -> None:
    code = """
import sys
from cmask.cli.main import app
try:
    app(["compile", "causal", "--seq", "256"])
except SystemExit:
    pass
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("casual",), "did you mean `causal`"),
        (("causal", "--target", "sm_70"), "`sm_70` is no target; there are sm_80, sm_90, sm_100"),
        (("causal", "--dtype", "fp8"), "`fp8` is no dtype"),
        (("causal", "--kernels", "cute"), "`cute` is no kernel; there are gluon, triton"),
        (("causal", "--head-dim", "192/128"), "the same for q, k and v"),
        (("causal", "--head-dim", "512"), "at most 256"),
        (("causal", "--heads", "16/5"), "5 key heads do not divide 16 query heads"),
        (("causal", "--rounds", "1"), "--rounds"),
        (("causal", "--out", "nowhere/x.cmaskc"), "cannot be written"),
    ],
)
@pytest.mark.usefixtures("_without_gpu")
def test_a_wrong_command_says_what_to_give(arguments: tuple[str, ...], words: str) -> None:
    done = run_cmask("tune", *arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.err


@pytest.mark.usefixtures("_without_gpu")
def test_a_wrong_mask_is_shown_in_place() -> None:
    Path("wrong.cmask").write_text("mask wrong { region text; txt sees text: all }\n")
    done = run_cmask("tune", "wrong.cmask")
    assert done.code == 1
    assert "wrong.cmask:1:" in done.err
    assert not Path("wrong.cmaskc").exists()


def test_options_are_read_as_people_write_them() -> None:
    assert settings.parse_dtypes("bf16, float32,bf16") == ("bfloat16", "float32")
    assert settings.parse_head_dims("64, 128,64") == (64, 128)
    with pytest.raises(ValueFault, match="no head dimensions"):
        settings.parse_head_dims("64,")


# ------------------------------------------------------------------ with kernels that run here
MACHINE = {
    "gpu": "Interpreter", "driver": "none", "torch": "2.11", "triton": "3.6", "cmask": "0.1",
    "date": "2026-12-02 10:00 UTC",
}  # fmt: skip
Times = Callable[[tuple[KernelConfig, ...]], float]


class Recorder:
    """Attention that remembers by which configurations it ran last; and a clock by them.

    times  configurations -> time [ms]
    spoil  configurations -> whether the result is to be wrong
    """

    def __init__(self, times: Times, spoil: Callable[[tuple[KernelConfig, ...]], bool]) -> None:
        self._times, self._spoil = times, spoil
        self.last: tuple[KernelConfig, ...] = ()
        self.bursts = 0
        self.interrupt_after = 10**6

    def attention(self, *tensors: Any, configs: tuple[KernelConfig, ...], **more: Any) -> Any:
        self.last = configs
        made = attention(*tensors, configs=configs, kernel="triton", **more)
        if not self._spoil(configs):
            return made
        return (made[0] * 1.1, made[1]) if isinstance(made, tuple) else made * 1.1

    def capture(self, runner: Runner) -> Runner:
        ms = self._times(self.last)
        return Runner(lambda: ms)

    def burst(self, runner: Runner, length_ms: float) -> float:
        self.bursts += 1
        if self.bursts > self.interrupt_after:
            raise KeyboardInterrupt
        return float(runner.call())

    def host_us(self, runner: Runner) -> float | None:
        return None

    def pause(self, seconds: float) -> None:
        pass

    def recover(self) -> None:
        pass


class HostStand:
    """Says that it is a GPU of compute capability 8.0; tensors lie where kernels run here."""

    recorder: Recorder

    def __init__(self, source: Source, settings: Settings, forward_shape: tuple[int, int]) -> None:
        self.forward_shape, self.inputs = forward_shape, ""
        self.device = Device("Interpreter", 80, 163 << 10)
        self.clock: Clock = self.recorder
        self._case = Case(source.name, source, settings.seq, sizes=settings.sizes)
        self._settings = settings

    def bench(self, budget: Budget, way: Direction) -> gpu.MaskBench:
        problem = make_problem(
            self._case, self._settings.of_bench(budget.dtype, budget.head_dim), DEVICE
        )
        self.inputs = gpu.inputs_of(problem)
        return gpu.MaskBench(problem, budget, way)


def is_small(configs: tuple[KernelConfig, ...]) -> bool:
    return any(config.block_n == 16 for config in configs)


def by_size(configs: tuple[KernelConfig, ...]) -> float:
    """Small key blocks in dQ and the forward take 0.8 of the time."""
    last = configs[-1]
    return 0.8 if last.direction != "dkdv" and last.block_n == 16 else 1.0


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recorder]:
    """Puts the recorder of these times in place of the GPU's clock."""

    def install(
        times: Times = by_size, spoil: Callable[[tuple[KernelConfig, ...]], bool] = lambda c: False
    ) -> Recorder:
        recorder = Recorder(times, spoil)
        axes = ((16,), (16, 32), (4,), (1,))
        monkeypatch.setattr(space, "_AXES", dict.fromkeys(("forward", "dkdv", "dq"), axes))
        monkeypatch.setattr(gpu, "attention", recorder.attention)
        monkeypatch.setattr(HostStand, "recorder", recorder, raising=False)
        monkeypatch.setattr(gpu, "GpuStand", HostStand)
        monkeypatch.setattr(tuning, "_why_not", lambda settings: "")
        monkeypatch.setattr(tuning.machine, "describe", lambda: MACHINE)
        monkeypatch.setattr(tuning.Reporter, "watch", lambda self: None)  # needs a real stderr
        return recorder

    return install


BUDGET = Budget(
    dtype="float32", head_dim=16, v_head_dim=16, shared_memory_limit=163 << 10, architecture=80
)


def test_winners_go_from_the_clock_to_the_calls_of_a_loaded_mask(record: Any) -> None:
    record()
    done = run_cmask(*SMALL, "--json")
    assert done.code == 0, done.err
    found = done.json
    assert found["machine"] == MACHINE
    forward, backward = found["groups"]
    assert forward["inputs"] == "1 × 20 tokens, 2/1 heads"
    assert forward["verdict"].startswith("1.250 × as fast as the default: ")
    statuses = {each["status"] for group in found["groups"] for each in group["candidates"]}
    assert statuses == {"ok"}
    assert all(each["difference"] < 1e-4 for each in forward["candidates"][1:])
    measured = measured_configs(load("own.cmaskc").bind(text=7).measured, BUDGET)
    assert set(measured) == {"forward", "dkdv", "dq"}
    assert (measured["forward"].block_n, measured["dq"].block_n) == (16, 16)
    assert [c["block_m"] for c in backward["winner"]] == [
        measured["dkdv"].block_m, measured["dq"].block_m,
    ]  # fmt: skip


def test_the_artifact_says_what_was_measured_where_and_when(record: Any) -> None:
    record()
    done = run_cmask(*SMALL, "--direction", "fwd")
    assert done.code == 0
    assert "forward, float32, head_dim 16, sm_80: 1 × 20 tokens, 2/1 heads" in done.out
    assert "1.250 × as fast as the default: " in done.out
    assert "round 3 of 3" in done.err
    (stored,) = load("own.cmaskc").bind().measured
    assert stored.measured == {
        "latency_ms": 0.8,
        "default_ms": 1.0,
        "inputs": "1 × 20 tokens, 2/1 heads",
        "device": "Interpreter",
        "versions": "cmask 0.1, torch 2.11, triton 3.6, driver none",
        "date": "2026-12-02 10:00 UTC",
    }
    said = run_cmask("inspect", "own.cmaskc").out
    assert "0.8 ms (default 1 ms)" in said
    assert "Interpreter, 1 × 20 tokens, 2/1 heads, cmask 0.1" in said
    assert "not measured" not in said


def test_a_wrong_candidate_is_reported_and_not_chosen(record: Any) -> None:
    record(spoil=is_small)
    done = run_cmask(*SMALL, "--direction", "fwd")
    assert done.code == 0
    assert "WRONG: " in done.out
    assert "a row of O differs from the default's by 0.1" in done.out
    assert "the default stays: " in done.out
    (stored,) = load("own.cmaskc").bind().measured
    assert stored.block_n != 16


def test_wrong_gradients_are_found(record: Any) -> None:
    record(spoil=lambda configs: configs[-1].block_n == 16)
    done = run_cmask(*SMALL, "--direction", "bwd")
    assert "a row of dV differs from the default's by 0.1" in done.out


def test_a_default_that_is_wrong_ends_with_1(record: Any) -> None:
    record(spoil=lambda configs: True)
    done = run_cmask(*SMALL, "--direction", "fwd")
    assert done.code == 1
    assert "not measured (O is " in done.out
    assert load("own.cmaskc").bind().measured == ()


def test_ctrl_c_keeps_the_groups_that_were_measured(record: Any) -> None:
    whole = record()
    run_cmask(*SMALL, "--direction", "fwd")
    record().interrupt_after = whole.bursts + 1
    done = run_cmask(*SMALL, "--out", "cut.cmaskc")
    assert done.code == 130
    assert "interrupted" in done.err
    (stored,) = load("cut.cmaskc").bind().measured
    assert stored.direction == "forward"


def test_what_was_measured_before_stays_for_other_calls(record: Any) -> None:
    record()
    run_cmask(*SMALL, "--direction", "fwd")
    record(times=lambda configs: 1.0)
    done = run_cmask(*SMALL, "--direction", "bwd")
    assert "held 1 measured configurations" in done.out
    kept = measured_configs(load("own.cmaskc").bind().measured, BUDGET)
    assert set(kept) == {"forward", "dkdv", "dq"}
    assert kept["forward"].block_n == 16
    run_cmask(*SMALL, "--direction", "fwd")
    anew = load("own.cmaskc").bind().measured
    assert [c.measured["latency_ms"] for c in anew if c.direction == "forward" and c.measured] == [
        1.0
    ]
    Path("own.cmask").write_text(OWN.replace("8", "9"))
    run_cmask(*SMALL, "--direction", "fwd")
    assert len(load("own.cmaskc").bind().measured) == 1, "of another mask nothing stays"


def test_no_room_for_the_inputs_is_said(record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record()

    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 40 GiB")

    monkeypatch.setattr(HostStand, "bench", full)
    done = run_cmask(*SMALL, "--json")
    assert done.code == 1
    assert "40 GiB" in done.json["groups"][0]["verdict"]
    assert json.loads(done.out)["groups"][1]["is_measured"] is False


# ------------------------------------------------------------------ comparison
def test_a_row_differs_by_its_length_or_by_that_of_a_usual_row() -> None:
    expected = torch.zeros(1, 1, 4, 8)
    expected[0, 0, :, 0] = torch.tensor([4.0, 4.0, 4.0, 0.0])
    found = expected.clone()
    assert row_difference(found, expected) == 0
    found[0, 0, 3, 1] = 0.3
    assert row_difference(found, expected) == pytest.approx(0.1), "by the mean length, 3"
    found[0, 0, 0, 0] = 2.0
    assert row_difference(found, expected) == 0.5
    found[0, 0, 1, 5] = torch.nan
    assert row_difference(found, expected) != row_difference(found, expected), "NaN"
    assert row_difference(expected[:, :, 3:] + 1, expected[:, :, 3:]) == float("inf")
