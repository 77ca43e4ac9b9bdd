"""`cmask::attention` as torch sees it: tensors and numbers in, tensors out, with a gradient.

Everything that a plan holds arrives flat (see `Launch`), so that torch.compile, CUDA graphs and
`torch.export` can treat the operator like any other.  One launch says enough for the forward;
three (forward, dkdv, dq) are given when a gradient may be asked for.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from cmask.runtime.kernels import backward_of, forward_of
from cmask.runtime.kernels.launch import Launch

_FORWARD = (
    "(Tensor q, Tensor k, Tensor v, Tensor[] tensors, int[] integers, float softmax_scale, "
    "str kernel) -> (Tensor, Tensor)"
)
_BACKWARD = (
    "(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? grad_out, Tensor? grad_lse, "
    "Tensor[] tensors, int[] integers, float softmax_scale, str kernel) "
    "-> (Tensor, Tensor, Tensor)"
)


@torch.library.custom_op("cmask::attention", mutates_args=(), schema=_FORWARD)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: list[Tensor],
    integers: list[int],
    softmax_scale: float,
    kernel: str,
) -> tuple[Tensor, Tensor]:
    """(out, lse): out in q's order of dimensions, lse natural, -inf where a query sees nothing."""
    return run_forward(q, k, v, _launches(tensors, integers), softmax_scale, kernel)


def run_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    launches: tuple[Launch, ...],
    softmax_scale: float,
    kernel: str,
) -> tuple[Tensor, Tensor]:
    """What the operator does, for eager calls that need nothing of what torch adds to it."""
    out = empty_output(q, v)
    if 0 in q.shape or 0 in k.shape or 0 in v.shape:
        return out.zero_(), empty_lse(q).fill_(-torch.inf)
    with on_device_of(q):
        lse = forward_of(kernel)(q, k, v, launches, softmax_scale, out=out)
    return out, lse


def is_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether torch would only look on: no tracing, no subclass, no mode, no transform."""
    return (
        type(q) is Tensor
        and type(k) is Tensor
        and type(v) is Tensor
        and not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
    )


@attention.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: list[Tensor],
    integers: list[int],
    softmax_scale: float,
    kernel: str,
) -> tuple[Tensor, Tensor]:
    return _outputs(q, v)


@torch.library.custom_op("cmask::attention_backward", mutates_args=(), schema=_BACKWARD)
def attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    tensors: list[Tensor],
    integers: list[int],
    softmax_scale: float,
    kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), exactly 0 where a query sees nothing or a key is seen by none."""
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    if 0 in (*q.shape, *k.shape, *v.shape):
        return dq.zero_(), dk.zero_(), dv.zero_()
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    with on_device_of(q):
        launches = _launches(tensors, integers)
        arguments = (q, k, v, out, lse, grad_out, grad_lse, launches, softmax_scale)
        backward_of(kernel)(*arguments, dq=dq, dk=dk, dv=dv)
    return dq, dk, dv


@attention_backward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    tensors: list[Tensor],
    integers: list[int],
    softmax_scale: float,
    kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, tensors, integers, softmax_scale, kernel = inputs
    ctx.save_for_backward(q, k, v, *output, *tensors)
    ctx.constants = (integers, softmax_scale, kernel)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None
) -> tuple[Tensor | list[None] | None, ...]:
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    no_grads: list[None] = [None] * len(tensors)
    if grad_out is None and grad_lse is None:
        return None, None, None, no_grads, None, None, None
    dq, dk, dv = attention_backward(
        q, k, v, out, lse, grad_out, grad_lse, list(tensors), *ctx.constants
    )
    return dq, dk, dv, no_grads, None, None, None


attention.register_autograd(_differentiate, setup_context=_save)


def _outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return empty_output(q, v), empty_lse(q)


def empty_output(q: Tensor, v: Tensor) -> Tensor:
    """Uninitialised, laid out in memory in q's order of dimensions."""
    if q.shape[3] == v.shape[3] and q.is_contiguous():
        return torch.empty_like(q)
    order = sorted(range(3), key=q.stride, reverse=True)
    out = q.new_empty([*(q.shape[i] for i in order), v.shape[-1]])
    return out.permute(*(order.index(i) for i in range(3)), 3)


def empty_lse(q: Tensor) -> Tensor:
    """Uninitialised: float32, or float64 where q is."""
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(q.shape[:-1], dtype=dtype)


def _launches(tensors: list[Tensor], integers: list[int]) -> tuple[Launch, ...]:
    count = len(tensors) // Launch.NUM_TENSORS
    return tuple(Launch.nth(index, tensors, integers) for index in range(count))


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Where kernels on `x` can be launched."""
    return _HERE if is_here(x) else torch.cuda.device(x.device)


def is_here(x: Tensor) -> bool:
    """Whether kernels on `x` can be launched without a change of device."""
    return not x.is_cuda or x.get_device() == torch._C._cuda_getDevice()


_HERE: AbstractContextManager[None] = nullcontext()
