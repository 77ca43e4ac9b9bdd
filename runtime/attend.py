"""Attention by a plan: check the call, look up what it needs, run the operator."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, Protocol, overload

import torch
from torch import Tensor

from cmask.runtime.autocast import autocasted
from cmask.runtime.by_head import joined, parts_of, slices
from cmask.runtime.checks import check_tensors, checked_scale
from cmask.runtime.kernels import decode_operator, operator
from cmask.runtime.kernels.config import KernelConfig
from cmask.runtime.kernels.prepare import CallKind, Prepared, PreparesCalls, prepare
from cmask.runtime.variants import HeadRange

_MAX_READY = 1024  # kinds of tensors that a plan remembers


class AttentionVariant(Protocol):
    """The plan of some query heads."""

    @property
    def heads(self) -> tuple[HeadRange, ...]:
        """Its heads."""

    @property
    def plan(self) -> AttentionPlan:
        """What they see."""


class AttentionPlan(PreparesCalls, Protocol):
    """What attention asks of a plan; `cmask.runtime.plan.Plan` is one."""

    @property
    def variants(self) -> Sequence[AttentionVariant]:
        """Plans that take the place of this one, each for some heads; none if heads are alike."""

    @property
    def prepared(self) -> dict[CallKind, Prepared]:
        """What earlier calls prepared, by their kind."""

    @property
    def ready(self) -> dict[Hashable, Callable[..., Any]]:
        """The short way that a call may take, by its tensors' shapes, strides and dtypes."""

    @property
    def q_len(self) -> int:
        """Queries in the caller's order [tokens]."""

    @property
    def kv_len(self) -> int:
        """Keys in the caller's order [tokens]."""

    @property
    def num_q_slots(self) -> int:
        """Queries in the plan's order [slots]."""

    @property
    def num_kv_slots(self) -> int:
        """Keys in the plan's order [slots]."""

    @property
    def is_permuted(self) -> bool:
        """Whether the plan's order differs from the caller's."""

    def permute(self, x: Tensor, side: str = ..., *, dim: int = ...) -> Tensor:
        """The caller's order -> the plan's."""

    def unpermute(self, x: Tensor, side: str = ..., *, dim: int = ...) -> Tensor:
        """The inverse of `permute`."""


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    *,
    softmax_scale: float | None = ...,
    return_lse: Literal[False] = ...,
    kernel: str | None = ...,
    permuted: bool = ...,
    deterministic: bool | None = ...,
    configs: tuple[KernelConfig, ...] | None = ...,
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    *,
    softmax_scale: float | None = ...,
    return_lse: Literal[True],
    kernel: str | None = ...,
    permuted: bool = ...,
    deterministic: bool | None = ...,
    configs: tuple[KernelConfig, ...] | None = ...,
) -> tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    *,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    kernel: str | None = None,
    permuted: bool = False,
    deterministic: bool | None = None,
    configs: tuple[KernelConfig, ...] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Softmax attention over the keys that the plan's mask shows to each query.

    q              [batch, num_q_heads, q_len, head_dim]: bfloat16, float16 or float32 (on a CPU
                   also float64), any strides
    k              [batch or 1, num_kv_heads, kv_len, head_dim]; num_kv_heads divides num_q_heads
    v              [batch or 1, num_kv_heads, kv_len, v_head_dim]
    softmax_scale  multiplies q · k; 1 / sqrt(head_dim) if None
    return_lse     also return the natural log-sum-exp, float32[batch, num_q_heads, q_len]; it
                   is differentiable
    kernel         "gluon" (Hopper), "triton", "decode" (few queries, no gradients) or "reference";
                   chosen by device, dtype, head_dim and the number of queries if None
    permuted       q, k and v are already in the plan's order (`plan.permute`); so is the result
    deterministic  gradients have the same bits in every run, as results always have; if None, as
                   `torch.use_deterministic_algorithms` says
    configs        one KernelConfig per direction (forward, dkdv, dq) instead of the shipped ones

    Up to 64 queries of at least four times as many keys take the decode kernel where rows see at
    most 4 intervals of keys and no gradient is asked for: a plan of `bind(rows=(start, stop))`.
    For a paged cache, or sequences of different lengths, see `decode`.

    Where the mask has rules for some heads, neighbouring heads that see the same are a launch of
    their own, on views of q, k and v, and the results are copied into one.

    A query that sees no key gives output 0, LSE -inf and gradient 0.  A key that no query sees
    is never mixed in, whatever it holds, and its gradients are 0.

    Within `torch.autocast` q, k and v are cast to its dtype, float64 excepted.

    Raises TypeError for a `plan` that is none, and ValueError that names any other argument,
    what was expected and what came.
    """
    if not hasattr(plan, "ready"):
        raise TypeError(f"plan must be what `mask.bind(...)` gives, got {type(plan).__name__}")
    if configs is not None:
        configs = tuple(configs)
    q, k, v = autocasted(q, k, v)
    needs_grad = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    key: Hashable = None
    if q.is_cuda and not needs_grad and operator.is_plain(q, k, v):
        # tensors that differ in nothing but their addresses and what they hold are alike
        key = (
            q.shape, q.stride(), q.dtype, q.get_device(), k.shape, k.stride(), k.dtype,
            k.get_device(), v.shape, v.stride(), v.dtype, v.get_device(), softmax_scale, kernel,
            permuted, configs,
        )  # fmt: skip
        ready = plan.ready.get(key)
        if ready is not None and operator.is_here(q):
            return ready(q, k, v, return_lse)  # type: ignore[no-any-return]
    if plan.variants:
        out, lse = _attend_by_head(
            q, k, v, plan, softmax_scale, kernel, permuted, deterministic, configs
        )
        return (out, lse) if return_lse else out
    if deterministic is None:
        deterministic = needs_grad and torch.are_deterministic_algorithms_enabled()
    is_deterministic = deterministic and needs_grad
    out, lse = _attend(
        q, k, v, plan, softmax_scale, return_lse, kernel, permuted, configs, needs_grad,
        is_deterministic, key,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def _attend_by_head(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    softmax_scale: float | None,
    kernel: str | None,
    permuted: bool,
    deterministic: bool | None,
    configs: tuple[KernelConfig, ...] | None,
) -> tuple[Tensor, Tensor]:
    """Heads that see the same by a call of their own; (out, lse) of all."""
    check_tensors(q, k, v, *_lengths(plan, permuted))
    parts = parts_of([variant.heads for variant in plan.variants], q.shape[1], k.shape[1])
    kv_heads = [part.kv for part in parts]
    q_parts = slices(q, [part.q for part in parts])
    k_parts, v_parts = slices(k, kv_heads), slices(v, kv_heads)
    results = [
        attention(
            *(q_part, k_part, v_part, plan.variants[part.variant].plan),
            softmax_scale=softmax_scale,
            return_lse=True,
            kernel=kernel,
            permuted=permuted,
            deterministic=deterministic,
            configs=configs,
        )
        for part, q_part, k_part, v_part in zip(parts, q_parts, k_parts, v_parts, strict=True)
    ]
    lse = [lse for _, lse in results]
    out = joined([out for out, _ in results], q)
    return out, lse[0] if len(lse) == 1 else torch.cat(lse, 1)


def _lengths(plan: AttentionPlan, permuted: bool) -> tuple[tuple[int, int], str]:
    """Queries and keys that tensors must have, and what they count."""
    if permuted:
        return (plan.num_q_slots, plan.num_kv_slots), "slots in its order"
    return (plan.q_len, plan.kv_len), "tokens"


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    softmax_scale: float | None,
    return_lse: bool,
    kernel: str | None,
    permuted: bool,
    configs: tuple[KernelConfig, ...] | None,
    needs_grad: bool,
    is_deterministic: bool,
    key: Hashable,
) -> tuple[Tensor, Tensor]:
    """The long way: check, prepare, reorder; (out, lse).

    key: of the short way, for calls on a GPU in which torch would only look on; else None.
    """
    check_tensors(q, k, v, *_lengths(plan, permuted))
    scale = checked_scale(softmax_scale, q.shape[-1])
    heads = (q.shape[0], q.shape[1], k.shape[1], q.shape[3], v.shape[3])
    reorders = plan.is_permuted and not permuted
    kind = CallKind(
        *heads, q.dtype, q.device, needs_grad, kernel, configs, reorders, is_deterministic
    )
    prepared = plan.prepared.get(kind)
    if prepared is None:
        prepared = _prepare(plan, kind)

    if prepared.decoding is not None:
        is_plain = key is not None
        return decode_operator.decode_by(prepared.decoding, q, k, v, scale, is_plain=is_plain)
    if prepared.reorders:
        q, k, v = plan.permute(q, "query"), plan.permute(k, "key"), plan.permute(v, "key")
    if k.shape[0] != q.shape[0]:
        k = k.expand(q.shape[0], -1, -1, -1)
    if v.shape[0] != q.shape[0]:
        v = v.expand(q.shape[0], -1, -1, -1)
    if key is None:
        out, lse = operator.attention(
            q, k, v, prepared.tensors, prepared.integers, scale, prepared.kernel
        )
    else:
        out, lse = operator.run_forward(q, k, v, prepared.launches, scale, prepared.kernel)
        if prepared.kernel == "gluon" and not prepared.reorders:
            _remember(plan, key, q, k, v, prepared, scale)
    if prepared.reorders:
        out = plan.unpermute(out, "query")
        lse = plan.unpermute(lse, "query", dim=-1) if return_lse else lse
    return out, lse


@torch.compiler.disable(  # type: ignore[no-untyped-call, untyped-decorator]
    reason="the first call of a kind by a plan prepares block lists on the host: make one before "
    "torch.compile traces with fullgraph=True"
)
def _prepare(plan: AttentionPlan, kind: CallKind) -> Prepared:
    plan.prepared[kind] = prepare(plan, kind)
    return plan.prepared[kind]


def _remember(
    plan: AttentionPlan,
    key: Hashable,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prepared: Prepared,
    scale: float,
) -> None:
    """Take the short way next time; the tensors were checked, and the kernel has run."""
    from cmask.runtime.kernels.gluon_forward_launch import ready_call

    if 0 in (*q.shape, *k.shape, *v.shape):
        return
    ready = ready_call(q, k, v, prepared.launches, scale)
    if ready is not None:
        if len(plan.ready) >= _MAX_READY:
            plan.ready.clear()
        plan.ready[key] = ready
