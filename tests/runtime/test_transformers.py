"""Models of Hugging Face transformers by masks, against their own eager attention."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="an extra: pip install cmask[transformers]")

from transformers import CompileConfig, DynamicCache, LlamaForCausalLM, StaticCache

from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.grammar.source import Source
from cmask.masks import path
from cmask.runtime import Mask, load
from cmask.runtime.integrations.transformers import register
from support.attending import DEVICE
from support.compiled import dense
from support.tiny_models import FAMILIES, WINDOW, batch_of, model_of

NEW = 24  # words generated: far beyond the window
PADDINGS = {"none": [0, 0, 0], "same": [3, 3, 3], "different": [0, 5, 2], "all but one": [12, 0, 0]}
# what the argument of models is called, before transformers 5.24 and since
CACHE = "cache" if "cache" in signature(LlamaForCausalLM.forward).parameters else "past_key_values"
each_family = pytest.mark.parametrize("family", FAMILIES)
each_padding = pytest.mark.parametrize("padding", PADDINGS)
each_cache = pytest.mark.parametrize("cache", ["dynamic", "static"])


def mask_of(name: str) -> Mask:
    source = Source(name, path(name).read_text(encoding="utf-8"))
    return load(compile_source(source, CompileOptions(symbolic=True)).artifact)


@cache
def implementation_of(family: str) -> str:
    """The family's own attention as masks."""
    causal, window = mask_of("causal"), mask_of("sliding_window")
    match family:
        case "llama":
            return register("causal", causal)
        case "mistral":
            return register("window", window, left=WINDOW - 1)
        case _:
            masks = {"full_attention": causal, "sliding_attention": window}
            return register("local", masks, left=WINDOW - 1)


def pair(family: str) -> tuple[Any, Any]:
    """The same model by cmask and by eager attention."""
    return model_of(family, implementation_of(family)), model_of(family, "eager")


def check_close(found: Tensor, expected: Tensor) -> None:
    """Equal but for rounding in float32, as a share of the largest."""
    scale = expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 * scale)


def test_the_families_see_their_windows() -> None:
    """Else no test here could tell a window from all, nor one padding from another."""
    words, _ = batch_of([0], 14)
    changed = words.clone()
    changed[0, 0] = 1
    for family, sees in (("llama", True), ("gemma3", True), ("mistral", False)):
        model = model_of(family, "eager")
        a, b = (model(x).logits[0, 2 * WINDOW] for x in (words, changed))
        assert ((a - b).abs().max() > 1e-2) == sees, family


@each_family
@each_padding
@pytest.mark.parametrize("right", [False, True], ids=["left", "right"])
def test_training_gives_the_same_logits_and_gradients(
    family: str, padding: str, right: bool
) -> None:
    words, is_token = batch_of(PADDINGS[padding], 14, right=right)
    sees_tokens = is_token & torch.roll(is_token, 1, 1)  # and the word before is one, too
    sees_tokens[:, 0] = 0
    labels = torch.where(sees_tokens.bool(), words, -100)
    losses, logits, grads = [], [], []
    for model in pair(family):
        output = model(words, attention_mask=is_token, labels=labels, use_cache=False)
        losses.append(output.loss)
        logits.append(output.logits[is_token.bool()])
        grads.append(torch.autograd.grad(output.loss, list(model.parameters())))
    check_close(losses[0], losses[1])
    check_close(*logits)
    for found, expected in zip(*grads, strict=True):
        check_close(found, expected)


def generate(model: Any, words: Tensor, is_token: Tensor, **options: Any) -> Tensor:
    """The words behind the prompt, greedily."""
    options = {"max_new_tokens": NEW, "do_sample": False, "disable_compile": True, **options}
    found: Tensor = model.generate(words, attention_mask=is_token, **options)
    return found[:, words.shape[1] :]


@each_family
@each_cache
@each_padding
def test_generation_is_that_of_eager_attention(family: str, cache: str, padding: str) -> None:
    words, is_token = batch_of(PADDINGS[padding], 14)
    found, expected = (
        generate(model, words, is_token, cache_implementation=cache) for model in pair(family)
    )
    assert found.shape == (3, NEW)
    assert all(len(row.unique()) > 5 for row in expected), "says nothing: choose another seed"
    assert torch.equal(found, expected)


@each_family
def test_a_batch_generates_what_each_sequence_does_alone(family: str) -> None:
    words, is_token = batch_of(PADDINGS["different"], 14)
    model = model_of(family, implementation_of(family))
    together = generate(model, words, is_token)
    for i, before in enumerate(PADDINGS["different"]):
        alone = generate(model, words[i : i + 1, before:], is_token[i : i + 1, before:])
        assert torch.equal(together[i], alone[0])


@each_family
@pytest.mark.parametrize("options", [{"num_beams": 3}, {"prefill_chunk_size": 4}], ids=str)
def test_other_ways_to_generate(family: str, options: dict[str, int]) -> None:
    words, is_token = batch_of([0, 5, 2], 14)
    found, expected = (generate(model, words, is_token, **options) for model in pair(family))
    assert torch.equal(found, expected)


def graphs() -> int:
    """That torch's compiler has made."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


each_compiled = pytest.mark.parametrize(
    "family", [*(pytest.param(f, marks=pytest.mark.slow) for f in ("mistral", "gemma3")), "llama"]
)


@each_compiled
def test_generation_by_a_compiled_model(family: str) -> None:
    """As transformers does by itself on a GPU where the cache is static.

    torch 2.11 compiles once for each number of paddings in a batch: here it stays 3.
    """
    config = CompileConfig(backend="eager", mode=None, fullgraph=False)
    config._compile_all_devices = True
    options = {"disable_compile": False, "compile_config": config}
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, eager = pair(family)
    made = []
    for paddings in ([0, 5, 2], [4, 1, 0]):
        words, is_token = batch_of(paddings, 14)
        found = generate(model, words, is_token, cache_implementation="static", **options)
        made.append(graphs())
        assert torch.equal(found, generate(eager, words, is_token))
    assert made[0] == made[1] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch's compiler, at graph breaks
@each_family
def test_training_by_a_compiled_model(family: str) -> None:
    torch._dynamo.reset()
    model, eager = pair(family)
    compiled = torch.compile(model, backend="aot_eager")
    for length in (14, 9):
        words, is_token = batch_of([0, 5, 2], length)
        grads = []
        for run, of in ((compiled, model), (eager, eager)):
            logits = run(words, attention_mask=is_token, use_cache=False).logits
            loss = logits[is_token.bool()].square().mean()
            grads.append(torch.autograd.grad(loss, list(of.parameters())))
        for found, expected in zip(*grads, strict=True):
            check_close(found, expected)


@each_family
@each_cache
@pytest.mark.parametrize("chunks", [(14,), (5, 4, 5), (1,) * 14, (9, 1, 1, 3)], ids=str)
def test_prefill_in_chunks_is_the_whole(family: str, cache: str, chunks: tuple[int, ...]) -> None:
    words, is_token = batch_of([0, 3, 1], sum(chunks))
    model, eager = pair(family)
    whole = eager(words, attention_mask=is_token).logits
    past = (
        StaticCache(config=model.config, max_cache_len=20)
        if cache == "static"
        else DynamicCache(config=model.config)
    )
    parts = []
    for stop in np.cumsum(chunks).tolist():
        start = sum(part.shape[1] for part in parts)
        call = {"attention_mask": is_token[:, :stop], CACHE: past}
        parts.append(model(words[:, start:stop], **call).logits)
    check_close(torch.cat(parts, 1)[is_token.bool()], whole[is_token.bool()])


def visible(mask: Mask, tokens: int, **sizes: int) -> Tensor:
    """What eager attention takes for this mask: float32[1, 1, tokens, tokens], 0 or -inf."""
    seen = torch.from_numpy(dense(mask.bind(seq=tokens, **sizes).bound)).to(DEVICE)
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]


@each_cache
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("sliding_window", {"left": 3}),
        ("prefix_lm", {"prefix": 8}),
        ("sink_window", {"sink": 1, "left": 4}),
    ],
)
def test_a_mask_that_the_model_does_not_know(name: str, sizes: dict[str, int], cache: str) -> None:
    """Eager attention with a dense mask, and no cache, says which words are right."""
    mask = mask_of(name)
    model = model_of("llama", register(name, mask, **sizes))
    eager = model_of("llama", "eager")
    words, is_token = batch_of([0, 4], 14)
    found = generate(model, words, is_token, cache_implementation=cache)
    differs = False
    for i, before in enumerate((0, 4)):
        line = words[i : i + 1, before:]
        for word in found[i]:
            logits = eager(line, attention_mask=visible(mask, line.shape[1], **sizes)).logits
            assert logits[0, -1].argmax() == word
            differs |= bool(eager(line).logits[0, -1].argmax() != word)
            line = torch.cat([line, word.view(1, 1)], 1)
    assert differs, "the causal mask would have said the same"


@each_family
def test_rounding_in_bfloat16_is_that_of_eager_attention(family: str) -> None:
    """At most twice its error, as of kernels; both round everything else the same."""
    words, is_token = batch_of([0, 5, 2], 14)
    exact = model_of(family, "eager")(words, attention_mask=is_token).logits
    errors = []
    for implementation in (implementation_of(family), "eager"):
        torch.manual_seed(0)
        model = FAMILIES[family]().to(DEVICE, torch.bfloat16).eval()
        model.set_attn_implementation(implementation)
        found = model(words, attention_mask=is_token).logits.float()
        assert found[is_token.bool()].isfinite().all()
        errors.append((found - exact)[is_token.bool()].square().mean().sqrt())
    assert 0 < errors[0] < 2 * errors[1]


def test_activation_checkpointing_changes_no_gradient() -> None:
    words, is_token = batch_of([0, 5, 2], 14)
    model = deepcopy(model_of("gemma3", implementation_of("gemma3")))
    grads = []
    for checkpointed in (False, True):
        if checkpointed:
            new = "activation_checkpointing_enable"  # transformers 5.24
            getattr(model, new, model.gradient_checkpointing_enable)()
        model.train()
        loss = model(words, attention_mask=is_token, use_cache=False).logits.square().mean()
        grads.append(torch.autograd.grad(loss, list(model.parameters())))
    for plain, again in zip(*grads, strict=True):
        assert torch.equal(plain, again)
