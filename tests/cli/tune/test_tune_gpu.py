"""The whole of it on a GPU; the process of its own keeps a watchdog from this one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cmask.runtime import attention, load

pytestmark = pytest.mark.gpu
ARGUMENTS = ("--seq", "1k", "--tokens", "4k", "--heads", "4/2", "--rounds", "3", "--budget", "30")


def test_a_mask_is_tuned_and_its_calls_take_the_winners(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cmask.cli", "tune", "causal", *ARGUMENTS, "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    groups = json.loads(done.stdout)["groups"]
    assert [group["is_measured"] for group in groups] == [True, True]
    assert not [c for group in groups for c in group["candidates"] if c["status"] == "WRONG"]
    plan = load(tmp_path / "causal.cmaskc").bind(device="cuda")
    q, k, v = torch.randn(3, 1, 4, 1024, 128, dtype=torch.bfloat16, device="cuda").unbind(0)
    tuned = attention(q, k, v, plan)
    shipped = attention(q, k, v, plan, configs=())
    torch.testing.assert_close(tuned, shipped, rtol=2e-2, atol=2e-2)
    chosen = groups[0]["winner"][0]
    launch = next(p for kind, p in plan.prepared.items() if kind.configs is None).launches[0]
    assert (launch.block_m, launch.block_n) == (chosen["block_m"], chosen["block_n"])


def test_ctrl_c_ends_with_130_and_a_whole_artifact(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "cmask.cli", "tune", "causal", *ARGUMENTS]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "bwd" in line or "backward" in line:  # the forward has been measured
                break
        time.sleep(2)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=120)
    assert running.returncode == 130, err[-2000:]
    assert "interrupted" in out + err
    assert "Traceback" not in err
    plan = load(tmp_path / "causal.cmaskc").bind(device="cuda")
    assert {stored.direction for stored in plan.measured} == {"forward"}
