"""What a call of the Hopper forward hands over, on a machine without such a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cmask.runtime.kernels import gluon_forward_launch
from cmask.runtime.kernels.launch import Launch
from cmask.runtime.kernels.prepare import CallKind, prepare
from support import dense
from support.compiled import planned
from support.dense import DensePlan

GRID = """
    region text
    region image[height, width] order tile(8, 16)
    all sees all: all
"""


@dataclass
class Launches:
    """What was launched: (stream, tensor maps, pointers, scale), or Triton's arguments."""

    again: list[tuple[int, list[int], list[int], float]] = field(default_factory=list)
    by_triton: list[tuple[Any, ...]] = field(default_factory=list)
    compiled: int = 0


@pytest.fixture(params=["again", "by Triton"])
def launches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Launches are written down."""
    found = Launches()

    class Compiled:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *arguments, stream: found.by_triton.append(arguments)

    def warmup(*arguments: Any, **options: Any) -> Compiled:
        found.compiled += 1
        return Compiled()

    def of(*_: Any) -> Any:
        record = lambda *what: found.again.append(what)  # noqa: E731
        return record if request.param == "again" else None

    processor = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(gluon_forward_launch.attention_forward, "warmup", warmup)
    monkeypatch.setattr(gluon_forward_launch, "Relaunch", SimpleNamespace(of=of))
    monkeypatch.setattr(gluon_forward_launch, "_launchers", {})
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 5, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: processor)
    return found


def launch_of(plan: Any, *, reorders: bool = False) -> Launch:
    """The launch that a plan prepares on a Hopper GPU, made on the host."""
    cpu = torch.device("cpu")
    kind = CallKind(1, 4, 2, 64, 64, torch.bfloat16, cpu, False, "gluon", None, reorders, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cmask.runtime.kernels.prepare.check_kernel", lambda *_: None)
        prepared = prepare(plan, kind)
    assert not prepared.reorders
    return prepared.launches[0]


def inputs(tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, out = (torch.zeros(1, 4, tokens, 64, dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.zeros(1, 2, tokens, 64, dtype=torch.bfloat16) for _ in range(2))
    return q, k, v, out


def maps_and_lse(launches: Launches) -> tuple[list[int], int]:
    """Addresses behind the last launch's descriptors, and of its log-sum-exp."""
    if launches.again:
        _, maps, pointers, _ = launches.again[-1]
        return maps, pointers[0]
    arguments = launches.by_triton[-1]
    maps = [d.base.data_ptr() for d in arguments[:9] if d is not None]
    lse = arguments[9]
    return maps, lse if isinstance(lse, int) else lse.data_ptr()


def test_a_call_hands_over_its_own_addresses(launches: Launches) -> None:
    launch = launch_of(DensePlan(dense.causal(300, 300)))
    for _ in range(3):
        q, k, v, out = inputs(300)
        lse = gluon_forward_launch.forward(q, k, v, (launch,), 0.5, out=out)
        maps, lse_address = maps_and_lse(launches)
        assert maps == [x.data_ptr() for x in (q, k, v, out, launch.patterns)]
        assert lse_address == lse.data_ptr()
    assert launches.compiled == 1


def test_a_log_sum_exp_that_nobody_wants_has_no_address(launches: Launches) -> None:
    launch = launch_of(DensePlan(dense.causal(300, 300)))
    q, k, v, _ = inputs(300)
    ready = gluon_forward_launch.ready_call(q, k, v, (launch,), 0.5)
    assert ready is not None
    out = ready(q, k, v, False)
    maps, lse = maps_and_lse(launches)
    assert isinstance(out, Tensor)
    assert (maps[3], lse) == (out.data_ptr(), 0)
    out, lse_found = ready(q, k, v, True)
    assert maps_and_lse(launches)[1] == lse_found.data_ptr()


def test_a_grid_lies_behind_the_text(launches: Launches) -> None:
    plan = planned(GRID, "cpu", text=100, height=16, width=32)
    launch = launch_of(plan, reorders=True)
    q, k, v, out = inputs(612)
    gluon_forward_launch.forward(q, k, v, (launch,), 0.5, out=out)
    maps, _ = maps_and_lse(launches)
    lines = [x.data_ptr() for x in (q, k, v, out)]
    grids = [address + 100 * 64 * 2 for address in lines]
    assert maps == [*lines, *grids, launch.patterns.data_ptr()]


def test_what_cannot_be_read_in_place_is_copied_and_written_back(launches: Launches) -> None:
    launch = launch_of(DensePlan(dense.causal(300, 300)))
    q, k, v, _ = inputs(300)
    odd = torch.full((1, 4, 300, 67), 7.0, dtype=torch.bfloat16)[..., :64]
    gluon_forward_launch.forward(q, k, v, (launch,), 0.5, out=odd)
    maps, _ = maps_and_lse(launches)
    assert maps[:3] == [x.data_ptr() for x in (q, k, v)]
    assert maps[3] != odd.data_ptr()
    assert (odd == 0).all()  # what stands in the copy, for nothing has run


def test_a_copy_has_strides_of_its_own(launches: Launches) -> None:
    """Shapes and strides as in the call before, but rows between aligned addresses."""
    launch = launch_of(DensePlan(dense.causal(300, 300)))
    _, k, v, _ = inputs(300)
    wide = torch.zeros(1, 300, 4, 128, dtype=torch.bfloat16).transpose(1, 2)
    ready = gluon_forward_launch.ready_call(wide[..., :64], k, v, (launch,), 0.5)
    assert ready is not None
    for start in (0, 8, 4, 2, 16):
        q = wide[..., start : start + 64]
        ready(q, k, v, False)
        maps, _ = maps_and_lse(launches)
        assert (maps[0] == q.data_ptr()) == (start % 8 == 0)
        assert launches.compiled == (1 if start in (0, 8) else 2)


def test_batches_that_share_keys_and_values_are_not_copied(launches: Launches) -> None:
    launch = launch_of(DensePlan(dense.causal(300, 300)))
    q, k, v, out = inputs(300)
    q, out = q.repeat(3, 1, 1, 1), out.repeat(3, 1, 1, 1)
    shared = (k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1))
    gluon_forward_launch.forward(q, *shared, (launch,), 0.5, out=out)
    maps, _ = maps_and_lse(launches)
    assert maps[1:3] == [k.data_ptr(), v.data_ptr()]


def test_values_that_nobody_reads_become_zeros(launches: Launches) -> None:
    visible = dense.causal(300, 300)
    visible[:, 10:20] = False
    launch = launch_of(DensePlan(visible))
    q, k, v, out = inputs(300)
    gluon_forward_launch.forward(q, k, v, (launch,), 0.5, out=out)
    assert maps_and_lse(launches)[0][2] != v.data_ptr()
    assert gluon_forward_launch.ready_call(q, k, v, (launch,), 0.5) is None
