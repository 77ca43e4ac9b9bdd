"""The product's host code told that there is a Hopper GPU: its calls run on CPU tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest import mock

import torch
from torch import Tensor

from cmask.runtime.kernels import gluon_backward_launch, gluon_forward_launch, prepare
from cmask.runtime.kernels.device import DeviceDescriptor
from support.hopper.kernels import Kernel, source_of
from support.hopper.shared import CAPACITY

_HOME = "cmask.runtime.kernels."


@contextmanager
def calls_run_here(
    programs: int = 2, seed: int = 0, edits: dict[str, tuple[str, str]] | None = None
) -> Iterator[None]:
    """Within, `attention(..., kernel="gluon")` takes CPU tensors.

    programs: how many processors the GPU has; seed: of the order in which things happen;
    edits: of "forward", "backward" or "backward_dq", see `source_of`.
    """
    seeds = itertools.count(seed)
    properties = SimpleNamespace(multi_processor_count=programs)
    launchers: dict[object, object] = {}
    tickets = torch.zeros(4, dtype=torch.int32)

    def take(_device: torch.device) -> Tensor:
        assert not tickets.any(), "the launch before has left its counters"
        return tickets

    with ExitStack() as stack:

        def replace(where: object, name: str, value: object) -> None:
            stack.enter_context(mock.patch.object(where, name, value))

        homes = {
            "forward": gluon_forward_launch,
            "backward": gluon_backward_launch,
            "backward_dq": gluon_backward_launch,
        }
        for direction, home in homes.items():
            edit = (edits or {}).get(direction, ("", ""))
            module = source_of(f"{_HOME}gluon_{direction}_sm90", edit)
            kernel: Callable[..., None] = getattr(module, f"attention_{direction}")
            replace(home, f"attention_{direction}", Kernel(kernel, seeds))
        replace(gluon_forward_launch, "_launchers", launchers)
        replace(gluon_forward_launch, "tickets_of", lambda _: SimpleNamespace(take=take))
        replace(gluon_backward_launch, "current_tickets", take)
        replace(torch.cuda, "get_device_properties", lambda *_: properties)
        stack.enter_context(
            mock.patch.object(torch._C, "_cuda_getCurrentRawStream", create=True, return_value=0)
        )
        replace(prepare, "check_kernel", lambda *_: None)
        replace(prepare, "_resources", lambda _: (CAPACITY, 90))
        replace(DeviceDescriptor, "_processors", programs)
        yield
