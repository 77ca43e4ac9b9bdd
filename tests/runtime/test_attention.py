"""Every kernel computes attention: within the numeric rule, for every way to mask and to call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from cmask.runtime.attend import attention
from cmask.runtime.kernels.config import KernelConfig
from support import dense
from support.attending import shipped
from support.budgets import Results, Upstream, check_budget, eager
from support.dense import Bools, DensePlan, Masking

ON_GPU = torch.cuda.is_available()
LENGTHS = (1, 31, 63, 64, 65, 127, 129, 192, 193)
KERNELS = ("reference", "triton")

MASKS: dict[str, Callable[[int, int], Bools]] = {
    "full": dense.full,
    "causal": dense.causal,
    "window": lambda q, k: dense.window(q, k, 40),
    "documents": lambda q, k: dense.documents(q, k, 50),
    "one interval": lambda q, k: dense.holes(q, k, 1),
    "two intervals": lambda q, k: dense.holes(q, k, 2),
    "four intervals": lambda q, k: dense.holes(q, k, 4),
    "padding": lambda q, k: dense.padded_batch(q, k, min(q, k) // 2),
}
SMALL = tuple(
    KernelConfig(direction=direction, block_m=m, block_n=n, num_warps=4, num_stages=2)
    for direction, m, n in (("forward", 32, 64), ("dkdv", 32, 64), ("dq", 64, 32))
)


@dataclass(frozen=True)
class Case:
    """One call; the fields are its shape."""

    q_len: int = 100
    kv_len: int = 100
    batch: int = 1
    num_q_heads: int = 2
    num_kv_heads: int = 2
    head_dim: int = 32
    v_head_dim: int = 32
    dtype: torch.dtype = torch.float32
    softmax_scale: float | None = None
    masking: Masking = "pattern"

    def tensors(self, device: torch.device, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        random = torch.Generator().manual_seed(seed)
        shapes = (
            (self.batch, self.num_q_heads, self.q_len, self.head_dim),
            (self.batch, self.num_kv_heads, self.kv_len, self.head_dim),
            (self.batch, self.num_kv_heads, self.kv_len, self.v_head_dim),
        )
        q, k, v = (
            torch.randn(shape, generator=random).to(self.dtype).to(device) for shape in shapes
        )
        return q, k, v

    def upstream(self, device: torch.device, *, with_lse: bool = True) -> Upstream:
        random = torch.Generator().manual_seed(1)
        rows = (self.batch, self.num_q_heads, self.q_len)
        out = torch.randn(*rows, self.v_head_dim, generator=random).to(self.dtype).to(device)
        lse = torch.randn(rows, generator=random).to(device)
        return Upstream(out, lse if with_lse else None)


def run(
    tensors: tuple[Tensor, Tensor, Tensor],
    upstream: Upstream,
    plan: DensePlan,
    kernel: str,
    softmax_scale: float | None = None,
) -> Results:
    inputs = [x.detach().requires_grad_() for x in tensors]
    q, k, v = inputs
    configs = None if ON_GPU else SMALL
    out, lse = attention(
        q,
        k,
        v,
        plan,
        return_lse=True,
        kernel=kernel,
        softmax_scale=softmax_scale,
        configs=configs,
    )
    outputs, grads = [out], [upstream.out]
    if upstream.lse is not None:
        outputs, grads = [out, lse], [upstream.out, upstream.lse]
    return Results(out.detach(), lse.detach(), *torch.autograd.grad(outputs, inputs, grads))


def check(case: Case, visible: Bools, kernel: str, device: torch.device) -> Results:
    tensors, upstream = case.tensors(device), case.upstream(device)
    return check_tensors(case, tensors, upstream, visible, kernel)


def check_tensors(
    case: Case,
    tensors: tuple[Tensor, Tensor, Tensor],
    upstream: Upstream,
    visible: Bools,
    kernel: str,
    names: tuple[str, ...] = Results._fields,
) -> Results:
    device = tensors[0].device
    found = run(
        tensors, upstream, DensePlan(visible, case.masking, device), kernel, case.softmax_scale
    )
    shown = torch.from_numpy(visible).to(device)
    plain, exact = (
        eager(*tensors, shown, upstream, dtype=dtype, softmax_scale=case.softmax_scale)
        for dtype in (case.dtype, torch.float64)
    )
    check_budget(found, plain, exact, names)
    return found


# ------------------------------------------------------------------ masks, dtypes, shapes
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("masking", ["bounds", "pattern"])
@pytest.mark.parametrize("mask", MASKS)
def test_every_way_to_mask_agrees_with_float64(
    mask: str, masking: Masking, kernel: str, device: torch.device
) -> None:
    case = Case(q_len=100, kv_len=130, num_q_heads=2, num_kv_heads=1, masking=masking)
    check(case, MASKS[mask](case.q_len, case.kv_len), kernel, device)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_scattered_pairs_agree_with_float64(
    dtype: torch.dtype, kernel: str, device: torch.device
) -> None:
    case = Case(q_len=129, kv_len=150, dtype=dtype, num_q_heads=4)
    check(case, dense.scattered(case.q_len, case.kv_len), kernel, device)


@pytest.mark.parametrize("kv_len", LENGTHS)
@pytest.mark.parametrize("q_len", LENGTHS if ON_GPU else (1, 65, 193))
def test_lengths_need_not_divide_a_block(q_len: int, kv_len: int, device: torch.device) -> None:
    case = Case(q_len=q_len, kv_len=kv_len, num_q_heads=1, num_kv_heads=1)
    check(case, dense.causal(q_len, kv_len), "triton", device)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("group", [1, 2, 3, 4, 8, 16])
def test_query_heads_share_key_heads(group: int, kernel: str, device: torch.device) -> None:
    case = Case(q_len=40, kv_len=50, num_q_heads=group * 2, batch=2 if group < 3 else 1)
    check(case, dense.holes(case.q_len, case.kv_len, 2), kernel, device)


@pytest.mark.parametrize(
    "head_dim", range(8, 257, 8) if ON_GPU else (8, 40, 64, 80, 136, 256), ids=str
)
def test_every_head_dim_works(head_dim: int, device: torch.device) -> None:
    dtype = torch.bfloat16 if ON_GPU else torch.float16
    case = Case(33, 40, 1, 1, 1, head_dim=head_dim, v_head_dim=head_dim, dtype=dtype)
    check(case, dense.causal(case.q_len, case.kv_len), "triton", device)


@pytest.mark.parametrize(("head_dim", "v_head_dim"), [(31, 31), (16, 64), (64, 16), (7, 33)])
def test_odd_and_unequal_head_dims_work(
    head_dim: int, v_head_dim: int, device: torch.device
) -> None:
    for dtype in (torch.float16, torch.float32):
        case = Case(70, 90, head_dim=head_dim, v_head_dim=v_head_dim, dtype=dtype)
        check(case, dense.window(case.q_len, case.kv_len, 30), "triton", device)


@pytest.mark.gpu
@pytest.mark.parametrize("masking", ["bounds", "pattern"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_full_size_blocks_agree_with_float64(
    head_dim: int, mask: str, masking: Masking, device: torch.device
) -> None:
    case = Case(
        700,
        901,
        2,
        8,
        2,
        head_dim=head_dim,
        v_head_dim=head_dim,
        dtype=torch.bfloat16,
        masking=masking,
    )
    check(case, MASKS[mask](case.q_len, case.kv_len), "triton", device)


# ------------------------------------------------------------------ what rows and keys may hold
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("masking", ["bounds", "pattern"])
def test_a_query_that_sees_nothing_gives_zeros(
    masking: Masking, kernel: str, device: torch.device
) -> None:
    case = Case(q_len=90, kv_len=90, masking=masking)
    visible = dense.holes(case.q_len, case.kv_len, 2)
    empty = torch.from_numpy(~visible.any(axis=1)).to(device)
    assert empty.any()
    found = check(case, visible, kernel, device)
    assert (found.out[:, :, empty] == 0).all()
    assert (found.lse[:, :, empty] == -torch.inf).all()
    assert (found.dq[:, :, empty] == 0).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("masking", ["bounds", "pattern"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_nobody_sees_may_hold_anything(
    poison: float, masking: Masking, kernel: str, device: torch.device
) -> None:
    case = Case(q_len=90, kv_len=100, dtype=torch.bfloat16, masking=masking)
    visible = dense.holes(case.q_len, case.kv_len, 2, seed=3)
    visible[:, 10:14] = visible[:, 60] = visible[:, 96:] = False
    if masking == "bounds":
        visible = dense.padded_batch(case.q_len, case.kv_len, 70)
    unread = torch.from_numpy(~visible.any(axis=0)).to(device)
    empty = torch.from_numpy(~visible.any(axis=1)).to(device)
    q, k, v = case.tensors(device)
    upstream = case.upstream(device, with_lse=False)
    k[:, :, unread] = v[:, :, unread] = poison
    q[:, :, empty] = upstream.out[:, :, empty] = poison
    found = check_tensors(case, (q, k, v), upstream, visible, kernel)
    assert (found.dk[:, :, unread] == 0).all()
    assert (found.dv[:, :, unread] == 0).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("scale", [300.0, 1e-3])
def test_scores_may_be_spread_or_flat(scale: float, kernel: str, device: torch.device) -> None:
    """In half precision: a float32 log-sum-exp of thousands is too coarse for float32 weights."""
    case = Case(q_len=70, kv_len=90, softmax_scale=scale, dtype=torch.float16)
    check(case, dense.holes(case.q_len, case.kv_len, 2), kernel, device)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("masking", ["bounds", "pattern"])
def test_no_finite_number_stands_in_for_minus_infinity(
    masking: Masking, kernel: str, device: torch.device
) -> None:
    """Scores near -200,000, and rows whose first visited block is hidden altogether.

    The backward makes weights from a float32 log-sum-exp, which is good to 0.01 there: gradients
    are finite, not exact.
    """
    case = Case(q_len=70, kv_len=90, softmax_scale=1.0, masking=masking)
    q, k, v = case.tensors(device)
    tensors = (q.abs() + 1, k - 4000.0, v)
    visible = dense.holes(case.q_len, case.kv_len, 2)
    found = check_tensors(case, tensors, case.upstream(device), visible, kernel, ("out", "lse"))
    assert found.lse[found.lse.isfinite()].max() < -1e5
    assert all(x.isfinite().all() for x in (found.dq, found.dk, found.dv))


# ------------------------------------------------------------------ how tensors may lie
def test_views_of_fused_projections_are_read_in_place(device: torch.device) -> None:
    case = Case(q_len=65, kv_len=65, batch=2, dtype=torch.float16)
    random = torch.Generator().manual_seed(0)
    fused = torch.randn(2, 65, 3, 2, 32, generator=random).to(case.dtype).to(device)
    q, k, v = fused.permute(2, 0, 3, 1, 4).unbind(0)
    assert not q.is_contiguous()
    found = check_tensors(case, (q, k, v), case.upstream(device), dense.causal(65, 65), "triton")
    assert found.out.transpose(1, 2).is_contiguous(), "the output follows q's order of dimensions"


def test_any_strides_work(device: torch.device) -> None:
    case = Case(q_len=40, kv_len=50)
    q, k, v = case.tensors(device)
    q = q.transpose(2, 3).contiguous().transpose(2, 3)  # the last stride is not 1
    k = torch.cat([k, k], dim=-1)[..., 1:33]  # not aligned
    v = v[:, :1].expand(-1, 2, -1, -1)  # stride 0
    check_tensors(case, (q, k, v), case.upstream(device), dense.causal(40, 50), "triton")


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_may_come_in_any_strides(kernel: str, device: torch.device) -> None:
    case = Case(q_len=40, kv_len=50)
    upstream = case.upstream(device)
    assert upstream.lse is not None
    expanded = upstream.out[:, :, :1, :1].expand_as(upstream.out)
    turned = upstream.lse.transpose(1, 2).contiguous().transpose(1, 2)
    visible = dense.causal(40, 50)
    check_tensors(case, case.tensors(device), Upstream(expanded, turned), visible, kernel)
    across = upstream.out.transpose(2, 3).contiguous().transpose(2, 3)
    check_tensors(case, case.tensors(device), Upstream(across), visible, kernel)


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_batch_of_keys_serves_all_queries(kernel: str, device: torch.device) -> None:
    case = Case(q_len=40, kv_len=50, batch=3)
    q, k, v = case.tensors(device)
    tensors = (q, k[:1].clone(), v[:1].clone())
    check_tensors(case, tensors, case.upstream(device), dense.causal(40, 50), kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("batch", "q_len", "kv_len"), [(0, 5, 5), (1, 0, 5), (1, 5, 0), (2, 0, 0)])
def test_nothing_in_gives_nothing_or_zeros_out(
    batch: int, q_len: int, kv_len: int, kernel: str, device: torch.device
) -> None:
    case = Case(q_len, kv_len, batch, dtype=torch.float16)
    plan = DensePlan(dense.full(q_len, kv_len), "pattern", device)
    found = run(case.tensors(device), case.upstream(device), plan, kernel)
    assert found.out.shape == (batch, 2, q_len, 32)
    assert (found.lse == -torch.inf).all()
    assert all((x == 0).all() for x in (found.out, found.dq, found.dk, found.dv))


# ------------------------------------------------------------------ promises beyond one result
def test_the_backward_is_deterministic(device: torch.device) -> None:
    case = Case(q_len=129, kv_len=150, dtype=torch.float16, num_q_heads=4)
    visible = dense.scattered(case.q_len, case.kv_len)
    plan = DensePlan(visible, "pattern", device)
    first, second = (
        run(case.tensors(device), case.upstream(device), plan, "triton") for _ in range(2)
    )
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def test_only_what_needs_a_gradient_is_prepared(device: torch.device) -> None:
    case = Case(q_len=40, kv_len=50)
    plan = DensePlan(dense.causal(40, 50), "pattern", device)
    q, k, v = case.tensors(device)
    attention(q, k, v, plan, kernel="reference")
    with torch.no_grad():
        attention(q.requires_grad_(), k, v, plan, kernel="reference")
    assert [kind.needs_grad for kind in plan.prepared] == [False]


def test_the_reference_passes_gradcheck_in_float64() -> None:
    case = Case(q_len=9, kv_len=11, head_dim=3, v_head_dim=4, dtype=torch.float64, num_kv_heads=1)
    visible = dense.padded_batch(9, 11, 8) & dense.scattered(9, 11, 0.9) | dense.window(9, 11, 3)
    visible[4] = False
    plan = DensePlan(visible)
    tensors = [x.requires_grad_() for x in case.tensors(torch.device("cpu"))]

    def both(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = attention(q, k, v, plan, return_lse=True)
        return out, lse.masked_fill(lse == -torch.inf, 0.0)

    assert torch.autograd.gradcheck(both, tensors)


def test_a_mask_without_sizes_is_refused_in_words() -> None:
    mask = shipped("causal", 20)
    q = torch.zeros(1, 1, 20, 16)
    with pytest.raises(TypeError, match=r"what `mask.bind\(...\)` gives, got Mask"):
        attention(q, q, q, mask)  # type: ignore[call-overload]


def test_a_plan_is_a_line_when_printed() -> None:
    mask = shipped("causal", 20)
    plan = mask.bind()
    assert (repr(mask), repr(plan)) == ("Mask(causal)", "Plan(causal: 20 × 20 queries × keys, cpu)")
