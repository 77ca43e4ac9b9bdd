"""Decoding as callers meet it: torch's own checks, refusals in words, which kernel runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cmask import masks
from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.grammar.source import Source
from cmask.runtime import attention, decode
from cmask.runtime.derive.bound import bind
from cmask.runtime.kernels import decode_operator
from cmask.runtime.kernels import prepare as preparing
from cmask.runtime.kernels.decode_rows import DecodeKind
from cmask.runtime.kernels.prepare import CallKind, prepare
from cmask.runtime.mask import Plan
from support.attending import DEVICE, plan_of
from support.decoding import CAUSAL, WINDOW, lengths, sequences
from support.decoding import paged as paged_cache

GRID = "region image[h, w]; image sees image: disc(3)"
COMBS = "region text; text sees text: same(pos % 9)"
CROSS = "query region q align end; key region k; q sees k: causal"
TILED = "region image[h, w] order tile(4, 4); image sees image: upto(h)"


def call(**changes: Any) -> dict[str, Any]:
    """The arguments of a paged, ragged call; what is changed is a fault."""
    random = torch.Generator().manual_seed(0)
    cache = torch.randn(6, 16, 2, 32, generator=random).to(DEVICE)
    arguments = {
        "q": torch.randn(2, 4, 1, 32, generator=random).to(DEVICE),
        "k_cache": cache,
        "v_cache": cache * 2,
        "plan": plan_of(CAUSAL, text=48),
        "kv_lens": lengths(20, 3),
        "page_table": torch.tensor([[0, 1, 2], [5, 4, 3]], dtype=torch.int32, device=DEVICE),
    }
    return {**arguments, **changes}


def plain(*shape: int, **options: Any) -> Tensor:
    return torch.zeros(shape, device=DEVICE, **options)


# ------------------------------------------------------------------ torch's own checks
@pytest.mark.parametrize("kernel", ["reference", "triton"])
def test_opcheck_finds_nothing(kernel: str) -> None:
    arguments = call(kernel=kernel)
    decode(**arguments)
    (made,) = arguments["plan"].decoding.values()
    k, v = (arguments[name].transpose(1, 2) for name in ("k_cache", "v_cache"))
    lists = (arguments["kv_lens"], None, arguments["page_table"])
    torch.library.opcheck(
        decode_operator.decode,
        (arguments["q"], k, v, made.bounds, *lists, made.integers, 0.25, kernel),
    )


@pytest.mark.parametrize("kernel", ["reference", "triton"])
def test_torch_compile_traces_the_whole_call(kernel: str) -> None:
    arguments = call(kernel=kernel, return_lse=True)
    expected = decode(**arguments)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: decode(**{**arguments, "kv_lens": x}), fullgraph=True, backend="aot_eager"
    )
    for lens in ((20, 3), (48, 0)):  # other lengths are no reason to compile again
        expected = decode(**{**arguments, "kv_lens": lengths(*lens)})
        with torch.compiler.set_stance("fail_on_recompile" if lens[1] == 0 else "default"):
            found = compiled(lengths(*lens))
        assert all(map(torch.equal, found, expected))


def test_a_call_that_is_not_prepared_says_so_under_fullgraph() -> None:
    arguments = call()
    torch._dynamo.reset()
    compiled = torch.compile(lambda: decode(**arguments), fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="brings its rows to the device"):
        compiled()


def test_a_plan_brings_its_rows_to_the_device_once() -> None:
    arguments = call()
    decode(**arguments)
    decode(**{**arguments, "q": arguments["q"].repeat(1, 2, 3, 1)})
    first, second = arguments["plan"].decoding.values()
    assert first.bounds is second.bounds


# ------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": plain(4, 1, 32)}, "q must have 4 dimensions, got 3"),
        ({"q": plain(2, 3, 1, 32)}, "number of heads that divides q's 3, got 2"),
        ({"q": plain(2, 4, 1, 32).half()}, "k must have q's dtype torch.float16"),
        ({"q": plain(2, 4, 1, 32, requires_grad=True)}, "q must not require a gradient"),
        ({"k_cache": plain(6, 16, 2, 16)}, "k must have q's head_dim 32, got 16"),
        ({"v_cache": plain(6, 8, 2, 32)}, "k_cache's 6 pages of 16 keys, got 6 of 8"),
        ({"page_table": plain(2)}, "page_table must have 2 dimensions, got 1"),
        (
            {"page_table": plain(2, 3)},
            r"page_table must be int32\[2, 3\] on .*, got float32\[2, 3\]",
        ),
        ({"page_table": plain(1, 3, dtype=torch.int32)}, r"got int32\[1, 3\]"),
        ({"page_table": plain(2, 4, dtype=torch.int32)}, "room for 64 keys, the plan for 48: bind"),
        ({"kv_lens": torch.tensor([1, 2], device=DEVICE)}, r"kv_lens must be int32\[2\]"),
        ({"kv_lens": lengths(1)}, r"kv_lens must be int32\[2\] on .*, got int32\[1\]"),
        ({"kv_starts": lengths(1, 2, 3)}, r"kv_starts must be int32\[2\]"),
        ({"kv_lens": None, "kv_starts": lengths(1, 2)}, "kv_starts needs kv_lens"),
        ({"kv_lens": None}, "q has 1 rows, the plan 48, and there are no kv_lens"),
        ({"softmax_scale": -1.0}, "softmax_scale must be a positive"),
        ({"kernel": "gluon"}, "kernel must be triton or reference, got 'gluon'"),
        ({"num_splits": 0}, "num_splits must be from 1 to 64, got 0"),
        ({"num_splits": 65}, "num_splits must be from 1 to 64, got 65"),
    ],
)
def test_what_cannot_be_served_is_refused_in_words(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(**call(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k_cache": plain(3, 2, 48, 32)}, "k_cache must have batch 2 like q or 1, got 3"),
        ({"v_cache": plain(2, 2, 40, 32)}, "v_cache must hold k_cache's 48 keys, got 40"),
        ({"q": plain(2, 4, 48, 32), "kv_lens": None, "plan": plan_of(CROSS, q=48, k=49)},
         "room for 48 keys, the plan has 49"),
    ],
)  # fmt: skip
def test_a_contiguous_cache_that_does_not_fit(changes: dict[str, Any], message: str) -> None:
    cache = plain(2, 2, 48, 32)
    whole = {"k_cache": cache, "v_cache": cache, "page_table": None}
    with pytest.raises(ValueError, match=message):
        decode(**call(**{**whole, **changes}))


@pytest.mark.parametrize(
    ("body", "sizes", "message"),
    [
        (GRID, {"h": 9, "w": 9}, "some rule of the mask does not show intervals of keys"),
        (COMBS, {"text": 48}, "some rule of the mask does not show intervals of keys"),
        (CROSS, {"q": 48, "k": 48}, "each token must be query and key"),
    ],
)
def test_masks_that_cannot_be_decoded(body: str, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(**call(plan=plan_of(body, **sizes)))


def test_rows_of_five_intervals_are_too_many() -> None:
    ones = " | ".join(f"window({n}, -{n})" for n in (2, 4, 6, 8)) + " | self"
    plan = plan_of(f"region text; text sees text: ({ones}) & causal", text=48)
    with pytest.raises(ValueError, match="a row of the mask sees 5 intervals of keys, the kernel"):
        decode(**call(plan=plan))


def test_a_plan_of_some_rows_says_not_where_sequences_end() -> None:
    whole = plan_of(CAUSAL, text=48)
    some = Plan(bind(whole.bound.form, whole.bound.names, (47, 48)), DEVICE)
    with pytest.raises(ValueError, match="it must be of all rows of the mask"):
        decode(**call(plan=some))


def test_gradients_are_no_matter_where_none_are_kept() -> None:
    arguments = call(q=plain(2, 4, 1, 32, requires_grad=True))
    with torch.no_grad():
        assert decode(**arguments).shape == (2, 4, 1, 32)


# ------------------------------------------------------------------ attention's choice
@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "_resources", lambda device: (227 << 10, 90))
    monkeypatch.setattr(preparing, "check_device", lambda *devices: None)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    rows = "cmask.runtime.kernels.decode_rows"
    monkeypatch.setattr(f"{rows}._resources", lambda device: (227 << 10, 132))
    monkeypatch.setattr(f"{rows}._table", lambda plan, device: (torch.zeros(2, 1), 4096))


def kernel_of(plan: Plan, **changes: Any) -> str:
    """Which kernel a call takes on a Hopper GPU."""
    fields: dict[str, Any] = {
        "batch": 1, "num_q_heads": 8, "num_kv_heads": 2, "head_dim": 128, "v_head_dim": 128,
        "dtype": torch.bfloat16, "device": torch.device("cuda", 0), "needs_grad": False,
        "kernel": None, "configs": None, "reorders": plan.is_permuted, "is_deterministic": False,
    }  # fmt: skip
    return prepare(plan, CallKind(**{**fields, **changes})).kernel


@pytest.mark.usefixtures("_gpu")
def test_few_queries_of_many_keys_are_decoded() -> None:
    body = "query region q align end; key region k; q sees k: causal"
    for rows, keys, expected in (
        (1, 4, "decode"), (64, 256, "decode"), (1, 3, "gluon"), (64, 255, "gluon"),
        (65, 4096, "gluon"),
    ):  # fmt: skip
        assert kernel_of(plan_of(body, q=rows, k=keys)) == expected, (rows, keys)


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "decode"),
        ({"needs_grad": True}, "gluon"),
        ({"kernel": "triton"}, "triton"),
        ({"kernel": "decode"}, "decode"),
        ({"dtype": torch.float32}, "decode"),
    ],
)
def test_what_else_decides(changes: dict[str, Any], expected: str) -> None:
    plan = plan_of("query region q align end; key region k; q sees k: causal", q=2, k=300)
    assert kernel_of(plan, **changes) == expected


@pytest.mark.usefixtures("_gpu")
def test_masks_without_intervals_take_the_ordinary_kernels() -> None:
    whole = plan_of(GRID, h=9, w=9)
    some = Plan(bind(whole.bound.form, whole.bound.names, (10, 12)), "cpu")
    assert kernel_of(some) == "gluon"


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (plan_of(WINDOW, text=81), "it gives no gradients"),
        (plan_of(GRID, h=9, w=9), "some rule of the mask does not show intervals"),
    ],
)
def test_a_kernel_that_is_named_says_why_it_cannot_serve(plan: Plan, message: str) -> None:
    q = plain(1, 2, 81, 16, requires_grad="gradients" in message)
    with pytest.raises(ValueError, match=f'kernel="decode" cannot serve the call: {message}'):
        attention(q, q, q, plan, kernel="decode")


def test_a_grid_in_tiles_is_decoded_in_the_callers_order() -> None:
    plan = plan_of(TILED, h=8, w=8)
    assert plan.is_permuted
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 64, 16, generator=random).to(DEVICE) for _ in range(3))
    found = attention(q, k, v, plan, kernel="decode")
    torch.testing.assert_close(found, attention(q, k, v, plan, kernel="reference"))
    moved = (plan.permute(q), plan.permute(k, "key"), plan.permute(v, "key"))
    with pytest.raises(ValueError, match="its tensors are in the plan's order"):
        attention(*moved, plan, kernel="decode", permuted=True)


def test_kinds_of_calls_are_kept_apart() -> None:
    """What one call prepared never serves another kind."""
    batch = sequences(CAUSAL, [40, 40])
    k, v, table = paged_cache(batch, 16, 3)
    plan = plan_of(CAUSAL, text=48)
    decode(batch.q, k, v, plan, kv_lens=lengths(40, 40), page_table=table, kernel="reference")
    with pytest.raises(ValueError, match="there are no kv_lens"):
        decode(batch.q, k, v, plan, page_table=table, kernel="reference")
    assert [type(kind) for kind in plan.decoding] == [DecodeKind]


# ------------------------------------------------------------------ what the page says
def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "serving.md"
    example = page.read_text(encoding="utf-8").split("```python\n")[1].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    Path("sliding_window.cmaskc").write_bytes(
        compile_source(
            Source("window", masks.path("sliding_window").read_text(encoding="utf-8")),
            CompileOptions(seq=4096),
        ).artifact
    )
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["out"].shape == names["q"].shape
    assert names["out"].isfinite().all()
