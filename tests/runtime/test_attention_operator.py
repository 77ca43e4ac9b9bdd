"""The operator behaves as torch expects: opcheck, torch.compile, refusals in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import bind_source
from cmask.grammar.source import Source
from cmask.runtime.attend import attention
from cmask.runtime.kernels import choose_kernel, operator
from cmask.runtime.kernels.config import Direction, KernelConfig
from cmask.runtime.kernels.config_checks import check_config
from cmask.runtime.kernels.prepare import CallKind, prepare
from cmask.runtime.mask import Plan
from support import dense
from support.attending import random_inputs, shipped
from support.dense import DensePlan
from support.hopper.calls import calls_run_here

TILED = """
mask tiled {
    region text
    region image[height, width] order tile(4, 4)
    text sees text, image: all
    image sees text: all
    image sees image: disc(3)
    sizes { text = 5; height = 7; width = 6 }
}
"""


def tensors(
    plan: DensePlan | Plan,
    *,
    dtype: torch.dtype = torch.float32,
    requires_grad: bool = True,
    heads: tuple[int, int] = (2, 1),
) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = [(1, heads[0], plan.q_len, 16)] + [(1, heads[1], plan.kv_len, 16)] * 2
    made = [torch.randn(shape, generator=random).to(dtype) for shape in shapes]
    return [x.to(plan.device).requires_grad_(requires_grad) for x in made]


def tiled_plan(device: torch.device) -> Plan:
    return Plan(bind_source(Source("tiled.cmask", TILED), CompileOptions()), device)


# ------------------------------------------------------------------ torch's own checks
@pytest.mark.parametrize("kernel", ["reference", "triton"])
@pytest.mark.parametrize("layout", ["contiguous", "heads inside", "expanded"])
def test_opcheck_finds_nothing(layout: str, kernel: str, device: torch.device) -> None:
    plan = DensePlan(dense.holes(20, 30, 2), "pattern", device)
    q, k, v = tensors(plan)
    attention(q, k, v, plan, kernel=kernel)
    (prepared,) = plan.prepared.values()
    if layout == "heads inside":
        q, k, v = (x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    if layout == "expanded":
        k, v = (x.detach()[:, :, :1].expand(-1, -1, 30, -1) for x in (k, v))
    inputs = (
        *(x.detach().requires_grad_() for x in (q, k, v)),
        prepared.tensors,
        prepared.integers,
        0.25,
        kernel,
    )
    torch.library.opcheck(operator.attention, inputs)
    out, lse = operator.attention(*inputs)
    rest = (prepared.tensors, prepared.integers, 0.25, kernel)
    backward = (q, k, v, out, lse, torch.ones_like(out), None, *rest)
    detached: list[Any] = [x.detach() if isinstance(x, Tensor) else x for x in backward]
    torch.library.opcheck(operator.attention_backward, tuple(detached))


@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("permuted", [False, True])
def test_torch_compile_traces_the_whole_call(
    permuted: bool, return_lse: bool, device: torch.device
) -> None:
    plan: DensePlan | Plan
    plan = tiled_plan(device) if permuted else DensePlan(dense.causal(20, 30), "pattern", device)

    def model(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result = attention(q * 2, k, v, plan, return_lse=return_lse)
        out, lse = result if isinstance(result, tuple) else (result, None)
        return out.sum() if lse is None else out.sum() + lse.sum()

    inputs = tensors(plan)
    expected = torch.autograd.grad(model(*inputs), inputs)  # the eager call that prepares
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*inputs), inputs)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e)


def test_a_plan_that_is_not_prepared_says_so_under_fullgraph(device: torch.device) -> None:
    plan = DensePlan(dense.causal(20, 30), "pattern", device)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v: attention(q, k, v, plan), fullgraph=True, backend="eager"
    )
    with pytest.raises(torch._dynamo.exc.Unsupported, match="prepares block lists on the host"):
        compiled(*tensors(plan))


# ------------------------------------------------------------------ permuted plans
def test_a_permuted_plan_gives_the_callers_order(device: torch.device) -> None:
    plan = tiled_plan(device)
    assert plan.is_permuted
    q, k, v = tensors(plan, heads=(2, 2))
    rows, keys = torch.arange(plan.q_len).numpy(), torch.arange(plan.kv_len).numpy()
    visible = torch.from_numpy(plan.bound.visible(rows, keys)).to(device)
    out, lse = attention(q, k, v, plan, return_lse=True)
    scores = (q @ k.transpose(-1, -2) / 4).masked_fill(~visible, -torch.inf)
    torch.testing.assert_close(out, scores.softmax(-1) @ v)
    torch.testing.assert_close(lse, scores.logsumexp(-1))

    moved = (plan.permute(q), plan.permute(k, "key"), plan.permute(v, "key"))
    inside = attention(*moved, plan, permuted=True)
    assert inside.shape[2] == plan.num_q_slots
    torch.testing.assert_close(plan.unpermute(inside), out)
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    others = torch.autograd.grad(plan.unpermute(inside).sum(), (q, k, v))
    for a, b in zip(grads, others, strict=True):
        torch.testing.assert_close(a, b)


# ------------------------------------------------------------------ which kernel, and refusals
def test_one_table_decides_which_kernel_runs() -> None:
    assert choose_kernel("cuda", (9, 0), "bfloat16", 128) == "gluon"
    assert choose_kernel("cuda", (9, 0), "float32", 128) == "triton"
    assert choose_kernel("cuda", (10, 0), "bfloat16", 128) == "triton"
    assert choose_kernel("cuda", (8, 0), "float32", 256) == "triton"
    assert choose_kernel("cpu", (0, 0), "float64", 512) == "reference"
    assert choose_kernel("cuda", (7, 5), "float16", 64) is None
    assert choose_kernel("cuda", (9, 0), "float64", 64) is None
    assert choose_kernel("cuda", (9, 0), "bfloat16", 257) is None
    assert choose_kernel("mps", (0, 0), "float16", 64) is None


def _call(plan: DensePlan, **changes: Any) -> None:
    named: dict[str, Any] = dict(zip("qkv", tensors(plan, requires_grad=False), strict=True))
    for name in set(changes) & set(named):
        named[name] = changes.pop(name)(named[name])
    attention(named["q"], named["k"], named["v"], plan, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": lambda x: x[0]}, r"q must be \[batch, heads, tokens, head_dim\], got 3"),
        ({"q": lambda x: x.int()}, r"q must be one of torch.bfloat16, .*, got torch.int32"),
        ({"k": lambda x: x.half()}, "k must have q's dtype torch.float32, got torch.float16"),
        ({"v": lambda x: x.to("meta")}, "v must be on q's device .*, got meta"),
        ({"k": lambda x: x.expand(3, -1, -1, -1)}, "k must have batch 1 like q or 1, got 3"),
        ({"k": lambda x: x[..., :8]}, "k must have q's head_dim 16, got 8"),
        ({"v": lambda x: x[..., :0]}, "head_dim must be positive, got q 16 and v 0"),
        ({"q": lambda x: x.repeat(1, 2, 1, 1)[:, :3]}, None),
        ({"k": lambda x: x.repeat(1, 4, 1, 1)}, "number of heads that divides q's 2, got 4"),
        ({"v": lambda x: x.repeat(1, 2, 1, 1)}, "v must have k's 1 heads, got 2"),
        ({"q": lambda x: x[:, :, 1:]}, "q must have the plan's 20 tokens, got 19"),
        ({"k": lambda x: x[:, :, 1:]}, "k must have the plan's 30 tokens, got 29"),
        ({"v": lambda x: x[:, :, 1:]}, "v must have the plan's 30 tokens, got 29"),
        ({"q": lambda x: x[:, :, 1:], "permuted": True}, "20 slots in its order, got 19"),
        ({"softmax_scale": 0.0}, "softmax_scale must be a positive finite number, got 0.0"),
        ({"softmax_scale": float("nan")}, "softmax_scale must be .*, got nan"),
        ({"softmax_scale": float("inf")}, "softmax_scale must be .*, got inf"),
        ({"kernel": "flash"}, "kernel must be one of reference, triton, gluon, decode, got .flash"),
    ],
)
def test_what_cannot_be_served_is_refused_in_words(
    changes: dict[str, Any], words: str | None, device: torch.device
) -> None:
    plan = DensePlan(dense.causal(20, 30), "pattern", device)
    if words is None:  # three query heads on one key head are fine
        _call(plan, **changes)
        return
    with pytest.raises(ValueError, match=words):
        _call(plan, **changes)
    assert not plan.prepared


def test_a_named_kernel_never_falls_back(device: torch.device) -> None:
    plan = DensePlan(dense.causal(20, 30), "pattern", device)
    with pytest.raises(ValueError, match=r"q must be one of bfloat16, .* got float64"):
        _call(plan, kernel="triton", **{n: torch.Tensor.double for n in "qkv"})
    wide = {n: lambda x: x.repeat(1, 1, 1, 17) for n in "qk"}
    with pytest.raises(ValueError, match="head_dim must be at most 256"):
        _call(plan, kernel="triton", **wide)
    with pytest.raises(ValueError, match=r"q must be one of bfloat16, float16 .* got float32"):
        _call(plan, kernel="gluon")


def test_the_hopper_kernel_runs_on_hopper_only() -> None:
    plan = DensePlan(dense.causal(20, 30))
    halves = dict.fromkeys("qkv", torch.Tensor.half)
    with pytest.raises(ValueError, match=r"q must be on a Hopper GPU \(sm_90\) .* got cpu"):
        _call(plan, kernel="gluon", **halves)
    wide = {n: lambda x: x.half().repeat(1, 1, 1, 17) for n in "qk"} | {"v": torch.Tensor.half}
    with pytest.raises(ValueError, match='head_dim must be at most 256 for kernel="gluon"'):
        _call(plan, kernel="gluon", **wide)


def config_of(direction: Direction, m: int, n: int, kernel: str) -> KernelConfig:
    warps = m // 16 if direction == "forward" and kernel == "gluon" else 8
    return KernelConfig(
        direction=direction, block_m=m, block_n=n, num_warps=warps, num_stages=2, kernel=kernel
    )


@pytest.mark.parametrize(
    ("config", "kernel", "dims", "words"),
    [
        (("forward", 128, 128, "gluon"), "triton", (128, 128), 'by "gluon" needs that kernel'),
        (("forward", 128, 128, "triton"), "gluon", (128, 128), 'by "triton" needs that kernel'),
        (("forward", 32, 32, "gluon"), "gluon", (128, 128), "128 × 128, .* 64 × 64, got 32 × 32"),
        (("dkdv", 64, 128, "gluon"), "triton", (128, 128), 'needs kernel="gluon", got triton'),
        (("dkdv", 128, 128, "gluon"), "gluon", (128, 128), "64 × 128, got 128 × 128"),
        (("dkdv", 64, 128, "gluon"), "gluon", (96, 96), "64 and 128, the same .* 96 and 96"),
        (("dkdv", 64, 128, "gluon"), "gluon", (64, 128), "64 and 128, the same .* 64 and 128"),
        (("dq", 64, 128, "gluon"), "gluon", (64, 64), "blocks of 128 × 64, got 64 × 128"),
        (("dq", 128, 64, "gluon"), "gluon", (96, 96), "dq .* 64 and 128, the same .* 96 and 96"),
        (("dkdv", 256, 64, "triton"), "triton", (64, 64), "sides of 16, .*, 128, got 256 × 64"),
        (("forward", 48, 64, "triton"), "triton", (64, 64), "sides of .*, got 48 × 64"),
        (("dq", 64, 4, "triton"), "gluon", (64, 64), "sides of .*, got 64 × 4"),
        (("dq", -64, 64, "triton"), "triton", (64, 64), "whole numbers above 0"),
        (("fwd", 64, 64, "gluon"), "gluon", (64, 64), "forward, dkdv, dq, got 'fwd'"),
        (("forward", 64, 64, "decode"), "decode", (64, 64), '"triton" or "gluon", got .decode'),
    ],
)
def test_a_config_that_no_kernel_has_is_refused_in_words(
    config: tuple[Direction, int, int, str], kernel: str, dims: tuple[int, int], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        check_config(config_of(*config), kernel, *dims)


@pytest.mark.parametrize(("direction", "stages"), [("forward", 1), ("forward", 4), ("dkdv", 3)])
def test_stages_without_barriers_are_refused(direction: Direction, stages: int) -> None:
    """They would wait for each other for ever, and the GPU with them."""
    m, n = (128, 64) if direction == "forward" else (64, 128)
    config = replace(config_of(direction, m, n, "gluon"), num_stages=stages)
    with pytest.raises(ValueError, match=f'{direction} by "gluon" has 2.* stages, got {stages}'):
        check_config(config, "gluon", 128, 128)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_warps": 3}, "has 1, 2, 4, 8, 16, 32 warps, got 3"),
        ({"num_stages": 9}, "has 1 to 8 stages, got 9"),
        ({"num_stages": 2.0}, "whole numbers"),
        ({"l2_mib": 0}, "whole numbers"),
        ({"kernel": "gluon", "num_warps": 4}, "has 8 warps for such blocks, got 4"),
    ],
)
def test_numbers_that_no_kernel_has_are_refused(change: dict[str, Any], words: str) -> None:
    config = replace(config_of("forward", 128, 128, "triton"), **change)
    with pytest.raises(ValueError, match=words):
        check_config(config, config.kernel, 128, 128)


def test_blocks_beyond_the_padding_of_a_plan_on_the_device_are_refused() -> None:
    """They read behind its tables: gradients were NaN."""
    plan = shipped("causal", 4096).plan(300, device="cpu").bind_(text=torch.tensor(300))
    q, k, v = random_inputs(plan, heads=(2, 1), dims=(16, 16), dtype=torch.float32)
    with pytest.raises(ValueError, match="got 256 × 64"):
        attention(q, k, v, plan, kernel="triton", configs=(config_of("dkdv", 256, 64, "triton"),))


def test_a_hopper_block_that_does_not_fit_says_by_how_much() -> None:
    plan = shipped("causal", 300).bind()
    q, k, v = random_inputs(plan, heads=(1, 1), dims=(256, 256), dtype=torch.bfloat16)
    config = config_of("forward", 128, 128, "gluon")
    with calls_run_here(), pytest.raises(ValueError, match=r"needs 3.* bytes of shared memory"):
        attention(q, k, v, plan, kernel="gluon", configs=(config,))


def test_a_config_that_a_kernel_has_is_taken() -> None:
    for config in (
        ("forward", 64, 64, "gluon"),
        ("dkdv", 64, 128, "gluon"),
        ("dq", 16, 16, "triton"),
        ("dq", 128, 64, "gluon"),
    ):
        check_config(config_of(*config), "gluon", 128, 128)


@pytest.mark.parametrize(
    ("deterministic", "dq", "kernels"),
    [(True, None, "ggg"), (True, ("dq", 64, 64, "triton"), "ggt"), (False, None, "gg")],
)
def test_a_deterministic_backward_on_hopper_makes_dq_apart(
    deterministic: bool,
    dq: tuple[Any, int, int, str] | None,
    kernels: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cmask.runtime.kernels.prepare.check_kernel", lambda *_: None)
    monkeypatch.setattr("cmask.runtime.kernels.prepare._resources", lambda _: (227 << 10, 90))
    cpu, plan = torch.device("cpu"), DensePlan(dense.causal(300, 300))
    configs = None if dq is None else (config_of(*dq),)
    kind = CallKind(
        1, 4, 2, 128, 128, torch.bfloat16, cpu, True, "gluon", configs, False, deterministic
    )
    launches = prepare(plan, kind).launches
    assert "".join("tg"[launch.is_gluon] for launch in launches) == kernels


def test_an_argument_asks_for_deterministic_gradients(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def spy(plan: DensePlan, kind: CallKind) -> Any:
        asked.append(kind.is_deterministic)
        return prepare(plan, kind)

    monkeypatch.setattr("cmask.runtime.attend.prepare", spy)
    for deterministic in (None, True, False):
        plan = DensePlan(dense.causal(20, 30), "pattern", device)
        q, k, v = (x.to(device) for x in tensors(plan))
        attention(q, k, v, plan, deterministic=deterministic)
    attention(q.detach(), k.detach(), v.detach(), plan, deterministic=True)  # a result always is
    assert asked == [False, True, False, False]


def test_a_plan_serves_only_its_own_device() -> None:
    plan = DensePlan(dense.causal(20, 30), device="meta")
    q, k, v = tensors(DensePlan(plan.visible))
    with pytest.raises(ValueError, match="q must be on the plan's device meta, got cpu"):
        attention(q, k, v, plan)


def test_a_config_can_be_named_for_each_direction(device: torch.device) -> None:
    plan = DensePlan(dense.causal(20, 30), "pattern", device)
    config = KernelConfig(direction="forward", block_m=16, block_n=32, num_warps=1, num_stages=1)
    _call(plan, kernel="triton", configs=(config,))
    assert list(plan._on_device) == [(16, 32)]
