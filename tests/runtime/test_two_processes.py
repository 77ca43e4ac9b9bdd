"""Training shared by two processes gives the losses and gradients of one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cmask import masks
from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.grammar.source import Source
from support import two_processes
from support.two_processes import LENGTHS, WRAPS, Step, loss_of, seeded


@pytest.fixture(scope="module")
def artifact() -> bytes:
    name = "causal_documents"
    source = Source(name, masks.path(name).read_text(encoding="utf-8"))
    return compile_source(source, CompileOptions(symbolic=True)).artifact


@pytest.fixture(scope="module")
def found(artifact: bytes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Step]:
    """Processes take seconds to start: both ways in one go."""
    return two_processes.run(tmp_path_factory.mktemp("processes"), artifact)


@pytest.fixture(scope="module")
def expected(artifact: bytes) -> tuple[list[Tensor], dict[str, Tensor]]:
    """By one process: each loss, and the gradients of their mean."""
    model = seeded()
    losses = [loss_of(model, artifact, process) for process in range(len(LENGTHS))]
    torch.autograd.backward(torch.stack(losses).mean())
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return [loss.detach() for loss in losses], grads


@pytest.mark.parametrize("way", WRAPS)
def test_losses_and_gradients_are_those_of_one_process(
    way: str, found: dict[str, Step], expected: tuple[list[Tensor], dict[str, Tensor]]
) -> None:
    losses, grads = expected
    torch.testing.assert_close(found[way][0], torch.stack(losses))
    assert found[way][1].keys() == grads.keys()
    for name, grad in grads.items():
        assert grad.any()
        torch.testing.assert_close(found[way][1][name], grad, rtol=1e-5, atol=1e-7)
