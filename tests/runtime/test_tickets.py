"""No two launches that may run side by side draw from the same counters."""

from __future__ import annotations

import pytest
import torch

from cmask.runtime.kernels.tickets import Tickets

CPU = torch.device("cpu")


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Set ["on"] while a graph is captured."""
    state = {"on": False}
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state["on"])
    return state


def test_a_stream_keeps_its_tickets_and_shares_them_with_none(capture: dict[str, bool]) -> None:
    tickets = Tickets(CPU)
    first = tickets.take(1)
    assert tickets.take(1).data_ptr() == first.data_ptr()
    assert tickets.take(2).data_ptr() != first.data_ptr()


def test_each_captured_launch_has_tickets_of_its_own(capture: dict[str, bool]) -> None:
    tickets = Tickets(CPU)
    tickets.take(1)
    capture["on"] = True
    captured = [tickets.take(1) for _ in range(300)]  # more than are ready
    assert len({pair.data_ptr() for pair in captured}) == 300
    assert all(len(pair) == 4 and not pair.any() for pair in captured)


def test_zeros_of_a_capture_serve_no_other_launch(capture: dict[str, bool]) -> None:
    """Nothing is set to zero while a graph is captured, only when it runs."""
    tickets = Tickets(CPU)
    capture["on"] = True
    captured = tickets.take(1)
    capture["on"] = False
    eager = [tickets.take(stream) for stream in range(4)]
    memory = captured.untyped_storage().data_ptr()
    assert all(pair.untyped_storage().data_ptr() != memory for pair in eager)
