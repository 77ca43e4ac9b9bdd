"""torch.export, activation checkpointing, autocast and whole graphs around a layer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from cmask.runtime import Plan, attention, decode
from support.attending import CAUSAL, DEVICE, on_every_kernel, plan_of

DOCUMENTS = "group document* { region text; text sees text: causal }"
WIDTH, HEAD_DIM = 32, 16


class Layer(nn.Module):
    """Norm, projections and attention by a plan: [batch, tokens, WIDTH] -> the same."""

    def __init__(self, plan: Plan, kernel: str | None = None) -> None:
        super().__init__()
        self.plan, self.kernel = plan, kernel
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x)).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
        attended = attention(*parts.chunk(3, 1), self.plan, kernel=self.kernel)
        out: Tensor = x + self.out(attended.transpose(1, 2).flatten(2))
        return out


def layer_of(plan: Plan, kernel: str | None = None) -> tuple[Layer, Tensor]:
    """A layer, and what it reads; the same each time."""
    torch.manual_seed(0)
    layer = Layer(plan, kernel).to(DEVICE)
    return layer, torch.randn(2, plan.q_len, WIDTH).to(DEVICE).requires_grad_()


def gradients(layer: Layer, x: Tensor, out: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(out.square().sum(), [x, *layer.parameters()]))


# ------------------------------------------------------------------ torch.export
@pytest.mark.filterwarnings("ignore:No complete tensor found")  # lists lie in one tensor
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch 2.11, on a GPU
@on_every_kernel
def test_an_exported_layer_gives_the_same(kernel: str, tmp_path: Path) -> None:
    """Saved and loaded, too: the program holds the plan's lists."""
    layer, x = layer_of(plan_of(DOCUMENTS, text=[30, 1, 19]), kernel)
    x = x.detach()
    with torch.no_grad():
        expected = layer(x)
        program = torch.export.export(layer, (x,))
    targets = [str(node.target) for node in program.graph.nodes]
    assert targets.count("cmask.attention.default") == 1
    torch.export.save(program, tmp_path / "layer.pt2")
    for each in (program, torch.export.load(tmp_path / "layer.pt2")):
        torch.testing.assert_close(each.module()(x), expected)


TILED = """
    region text; region image[height, width] order tile(4, 4)
    text sees text, image: all; image sees text: all; image sees image: disc(3)"""
FIRST_CALLS = {
    "attention": (DOCUMENTS, {"text": [30, 1, 19]}),
    "in another order": (TILED, {"text": 5, "height": 7, "width": 6}),
}


@pytest.mark.parametrize("mask", FIRST_CALLS)
def test_a_plan_whose_first_call_is_exported_serves_others(mask: str) -> None:
    """The exporter only pretends to compute: what the plan keeps must be real all the same."""
    body, sizes = FIRST_CALLS[mask]
    (layer, x), (other, _) = (layer_of(plan_of(body, **sizes)) for _ in range(2))
    program = torch.export.export(layer, (x.detach(),))
    expected = other(x)
    torch.testing.assert_close(program.module()(x.detach()), expected)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("mask", FIRST_CALLS)
def test_a_plan_whose_first_call_was_an_inference_trains(mask: str) -> None:
    body, sizes = FIRST_CALLS[mask]
    layer, x = layer_of(plan_of(body, **sizes))
    with torch.inference_mode():
        inferred = layer(x)
    out = layer(x)
    torch.testing.assert_close(out, inferred)
    assert all(grad.any() for grad in gradients(layer, x, out))


# ------------------------------------------------------------------ activation checkpointing
def save_attention(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """What is cheap to compute again is; attention is not."""
    if operator == torch.ops.cmask.attention.default:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


WAYS = {
    "reentrant": partial(checkpoint, use_reentrant=True),
    "not reentrant": partial(checkpoint, use_reentrant=False),
    "selective": partial(
        checkpoint,
        use_reentrant=False,
        context_fn=partial(create_selective_checkpoint_contexts, save_attention),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_checkpointing_changes_no_bit_of_a_gradient__CM_110(way: str) -> None:
    layer, x = layer_of(plan_of(DOCUMENTS, text=[30, 1, 19]))
    expected = gradients_by_backward(layer, x, layer(layer(x)))
    once = WAYS[way](layer, x)
    found = gradients_by_backward(layer, x, WAYS[way](layer, once))
    assert all(map(torch.equal, found, expected))


def gradients_by_backward(layer: Layer, x: Tensor, out: Tensor) -> list[Tensor]:
    """Reentrant checkpoints know no `torch.autograd.grad`."""
    x.grad = None
    layer.zero_grad()
    torch.autograd.backward(out.square().sum())
    grads = [each.grad for each in (x, *layer.parameters())]
    assert all(grad is not None for grad in grads)
    return [grad for grad in grads if grad is not None]


def test_a_selective_policy_attends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from cmask.runtime.kernels import operator

    calls = []
    run = operator.run_forward
    monkeypatch.setattr(operator, "run_forward", lambda *a: (calls.append(1), run(*a))[1])
    layer, x = layer_of(plan_of(CAUSAL, text=20))
    for way, expected in (("not reentrant", 2), ("selective", 1)):
        calls.clear()
        gradients_by_backward(layer, x, WAYS[way](layer, x))
        assert len(calls) == expected


# ------------------------------------------------------------------ autocast, whole graphs
def test_autocast_attends_in_its_dtype() -> None:
    """Projections give bfloat16, so that attention gets it; weights stay as they are."""
    layer, x = layer_of(plan_of(CAUSAL, text=40))
    expected = layer(x)
    with torch.autocast(DEVICE, torch.bfloat16):
        found = layer(x)
    assert {kind.dtype for kind in layer.plan.prepared} == {torch.float32, torch.bfloat16}
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    assert all(grad.dtype == torch.float32 for grad in gradients(layer, x, found))


@on_every_kernel
def test_autocast_takes_tensors_of_unlike_dtypes(kernel: str) -> None:
    """Rotary embeddings leave q and k in float32 where v comes from a product."""
    plan = plan_of(CAUSAL, text=40)
    q, k, v = torch.randn(3, 1, 2, 40, 16, device=DEVICE).unbind(0)
    halves = [x.bfloat16() for x in (q, k, v)]
    leaves = [x.detach().requires_grad_() for x in (q, k, halves[2])]
    expected = attention(*halves, plan, kernel=kernel)
    with torch.autocast(DEVICE, torch.bfloat16):
        out = attention(*leaves, plan, kernel=kernel)
        assert torch.equal(attention(*halves, plan, kernel=kernel), expected)
    assert torch.equal(out, expected)
    grads = torch.autograd.grad(out.float().sum(), leaves)
    assert [grad.dtype for grad in grads] == [torch.float32, torch.float32, torch.bfloat16]
    with torch.autocast(DEVICE, torch.bfloat16, enabled=False):
        assert attention(q, k, v, plan, kernel=kernel).dtype == torch.float32


def test_autocast_leaves_float64_and_a_cache_as_they_are() -> None:
    plan = plan_of(CAUSAL, text=40)
    q, k, v = torch.randn(3, 1, 2, 40, 16, device=DEVICE).unbind(0)
    lens = torch.tensor([40], dtype=torch.int32, device=DEVICE)
    cache = (k.bfloat16(), v.bfloat16())
    expected = decode(q[:, :, -1:].bfloat16(), *cache, plan, kv_lens=lens)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert torch.equal(decode(q[:, :, -1:], *cache, plan, kv_lens=lens), expected)
        wide = [x.double() for x in (q, k, v)]
        assert attention(*wide, plan, kernel="reference").dtype == torch.float64


def test_a_layer_is_one_graph__CM_112() -> None:
    layer, x = layer_of(plan_of(DOCUMENTS, text=[30, 1, 19]))
    expected = layer(x)
    torch._dynamo.reset()
    found = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, expected)
    for f, e in zip(gradients(layer, x, found), gradients(layer, x, expected), strict=True):
        torch.testing.assert_close(f, e)


@pytest.mark.gpu
def test_streams_that_share_a_plan_do_not_meet() -> None:
    """Forward and backward of several layers' worth, at once, each on a stream of its own."""
    plan = plan_of(DOCUMENTS, text=[900, 1, 0, 1147])
    inputs = [
        [
            torch.randn(1, 8, 2048, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        ]
        for _ in range(4)
    ]
    call = partial(attention, plan=plan, deterministic=True)
    expected = [torch.autograd.grad(call(*qkv).sum(), qkv) for qkv in inputs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in inputs]
    for _ in range(10):
        found = []
        for stream, qkv in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                found.append(torch.autograd.grad(call(*qkv).sum(), qkv))
        torch.cuda.synchronize()
        for a, b in zip(found, expected, strict=True):
            assert all(map(torch.equal, a, b))
