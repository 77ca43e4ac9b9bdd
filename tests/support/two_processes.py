"""One training step on two processes, each with documents of its own lengths: DDP and FSDP.

Imported by the processes, too: they load an artifact and need no compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from cmask.runtime import Plan, attention, load

LENGTHS = ([40, 1, 0, 23], [7, 57])  # of the documents of each process
TOKENS, HEADS, KV_HEADS, HEAD_DIM = 64, 4, 2, 8
WIDTH = HEADS * HEAD_DIM
Step = tuple[Tensor, dict[str, Tensor]]  # the loss of each process; the mean's gradients, by name


class Model(nn.Module):
    """Two layers of attention with shared key heads: float[1, TOKENS, WIDTH] -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer() for _ in range(2))

    def forward(self, x: Tensor, plan: Plan) -> Tensor:
        for layer in self.layers:
            x = layer(x, plan)
        return x


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, WIDTH + 2 * KV_HEADS * HEAD_DIM)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, plan: Plan) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
        q, k, v = parts.split((HEADS, KV_HEADS, KV_HEADS), 1)
        out: Tensor = x + self.out(attention(q, k, v, plan).transpose(1, 2).flatten(2))
        return out


def seeded() -> Model:
    """The same weights in each process."""
    torch.manual_seed(0)
    return Model()


def loss_of(model: nn.Module, artifact: bytes, process: int) -> Tensor:
    """Of the documents of one process."""
    plan = load(artifact).bind(text=LENGTHS[process])
    x = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(process))
    loss: Tensor = model(x, plan).square().mean()
    return loss


def step(model: nn.Module, artifact: bytes, process: int) -> Step:
    """The step of one process; gradients come back whole."""
    loss = loss_of(model, artifact, process)
    torch.autograd.backward(loss)
    losses = [torch.zeros(()) for _ in LENGTHS]
    dist.all_gather(losses, loss.detach())
    grads = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        assert grad is not None
        whole = getattr(grad, "full_tensor", lambda grad=grad: grad)()
        grads[name.removeprefix("module.")] = whole
    return torch.stack(losses), grads


def sharded(model: Model) -> nn.Module:
    """Each layer, and what is left, by halves."""
    mesh = init_device_mesh("cpu", (len(LENGTHS),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


WRAPS: dict[str, Callable[[Model], nn.Module]] = {
    "ddp": DistributedDataParallel,
    "fsdp": sharded,
}


def run(folder: Path, artifact: bytes) -> dict[str, Step]:
    """What two processes find, by the way that they share the model."""
    torch.multiprocessing.spawn(_work, (folder, artifact), nprocs=len(LENGTHS))
    found: dict[str, Step] = torch.load(folder / "found.pt")
    return found


def _work(process: int, folder: Path, artifact: bytes) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=process, world_size=len(LENGTHS)
    )
    found = {name: step(wrap(seeded()), artifact, process) for name, wrap in WRAPS.items()}
    if process == 0:
        torch.save(found, folder / "found.pt")
    dist.barrier()  # who leaves first takes the other's connections along
    dist.destroy_process_group()
