"""What models of transformers ask for that no mask can give is refused, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="an extra: pip install cmask[transformers]")

from transformers import (
    AttentionInterface,
    BartConfig,
    BartModel,
    BertConfig,
    BertModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.masking_utils import AttentionMaskInterface

from cmask.runtime import ArtifactError, load
from cmask.runtime.derive.sizes import BindError
from cmask.runtime.integrations.transformers import register
from support.attending import shipped
from support.tiny_models import SIZES, WINDOW, batch_of, gemma3, llama, mistral

CAUSAL = shipped("causal", 64)
SLIDING = shipped("sliding_window", 64)
LOCAL = {"full_attention": CAUSAL, "sliding_attention": SLIDING}


def by(model: Any, artifact: Any = CAUSAL, **sizes: object) -> Any:
    """The model with its attention by a mask."""
    model.set_attn_implementation(register("refusing", artifact, **sizes))
    return model.cpu()


def refused(model: Any, words: str, **call: Any) -> None:
    """A forward of the model is refused in these words, which name what was registered."""
    batch, is_token = (x.cpu() for x in batch_of([0, 3], 2 * WINDOW))
    with pytest.raises(ValueError, match=f"(?s)^cmask:refusing: .*{words}"):
        model(**{"input_ids": batch, "attention_mask": is_token, **call})


def test_dropout_is_refused_in_training_only() -> None:
    model = by(LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=0.1)))
    refused(model.train(), "dropout must be 0, got 0.1")
    words, is_token = (x.cpu() for x in batch_of([0, 3], 8))
    assert model.eval()(words, attention_mask=is_token).logits.isfinite().all()


def test_attention_weights_are_refused() -> None:
    refused(by(llama()), "attention weights as an output", output_attentions=True)


def test_a_cap_on_scores_is_refused() -> None:
    config = Gemma2Config(**SIZES, sliding_window=WINDOW)
    refused(by(Gemma2ForCausalLM(config), LOCAL, left=WINDOW - 1), "a cap on scores")


def test_sinks_are_refused() -> None:
    config = GptOssConfig(
        **SIZES, sliding_window=WINDOW, num_local_experts=2, num_experts_per_tok=1
    )
    refused(by(GptOssForCausalLM(config), LOCAL, left=WINDOW - 1), "sinks in the softmax")


@pytest.mark.parametrize(
    ("option", "value"), [("head_mask", torch.ones(4)), ("position_bias", torch.zeros(1))]
)
def test_other_changes_of_scores_are_refused(option: str, value: Any) -> None:
    refused(by(llama()), f"cannot be had .`{option}` was given", **{option: value})


def test_a_window_that_is_not_the_models_is_refused() -> None:
    model = mistral()
    words = f"window is {WINDOW} tokens, but in mask `sliding_window` token"
    for left in (WINDOW - 2, WINDOW):
        by(model, SLIDING, left=left)
        with pytest.raises(ValueError, match=words):
            model(torch.ones(1, 2, dtype=torch.int64))  # however short
    with pytest.raises(ValueError, match=f"mask `causal` token {WINDOW} sees {WINDOW + 1} keys"):
        by(model)(torch.ones(1, 2, dtype=torch.int64))


def test_layers_that_differ_need_a_mask_each() -> None:
    refused(by(gemma3()), "full and sliding layers: register a mask for each")
    words = 'no mask is registered for "sliding_attention" layers'
    refused(by(gemma3(), {"full_attention": CAUSAL}), words)


def test_what_sees_both_ways_is_refused() -> None:
    model = by(gemma3(use_bidirectional_attention=True), LOCAL, left=WINDOW - 1)
    refused(model, "more than a causal mask")
    bert = BertModel(BertConfig(**SIZES), add_pooling_layer=False)
    refused(by(bert), "more than a causal mask")


def test_an_encoder_and_a_decoder_are_refused() -> None:
    sizes = {"vocab_size": 61, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    model = by(BartModel(BartConfig(**sizes, **heads)))
    words = torch.ones(2, 1, dtype=torch.int64)
    refused(model, "encoder and a decoder", decoder_input_ids=words)


def test_sequences_packed_by_position_ids_are_refused() -> None:
    positions = torch.tensor([[*range(7), *range(5)]] * 2)
    call = {"position_ids": positions, "attention_mask": None, "use_cache": False}
    refused(by(llama()), "packed sequences", **call)
    for model in (by(llama()), by(mistral(), SLIDING, left=WINDOW - 1)):
        plain = {**call, "position_ids": torch.arange(12)[None]}
        assert model(batch_of([0], 12)[0].cpu(), **plain).logits.isfinite().all()


def test_a_dense_mask_is_refused() -> None:
    dense = torch.zeros(2, 1, 2 * WINDOW, 2 * WINDOW)
    refused(by(llama()), "attention_mask must have 2 dimensions or be None", attention_mask=dense)


def test_holes_in_the_attention_mask_are_refused() -> None:
    _, is_token = (x.cpu() for x in batch_of([0, 3], 2 * WINDOW))
    is_token[1, 5] = 0
    with pytest.raises(ValueError, match="sequence 1 has 1 holes"):
        by(llama())(torch.ones_like(is_token), attention_mask=is_token)


def test_a_mask_that_does_not_cover_the_cache_is_refused() -> None:
    words, is_token = (x.cpu() for x in batch_of([0, 3], 8))
    model = by(llama())
    cache = model(words, attention_mask=is_token, use_cache=True)
    past = {k: v for k, v in cache.items() if k in ("cache", "past_key_values")}
    with pytest.raises(ValueError, match=r"must be \[2, 9 or more\].* got \[2, 1\]"):
        model(words[:, :1], attention_mask=is_token[:, :1], **past)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_mask_that_changes_what_is_cached_is_refused(kind: str) -> None:
    model = by(llama(), shipped("full", 64))
    words, _ = (x.cpu() for x in batch_of([0, 3], 8))
    assert model(words, use_cache=False).logits.isfinite().all()
    with pytest.raises(ValueError, match="mask `full` cannot serve a cache"):
        model.generate(words, max_new_tokens=3, cache_implementation=kind, disable_compile=True)


@pytest.mark.parametrize(
    ("kv_len", "window", "words"),
    [
        (5, WINDOW, f"Linear has a window of {WINDOW} tokens, .* is for full attention"),
        (4, None, r"has \(1, 5, 4\) sequences, queries and keys, .* is for \(1, 5, 5\)"),
    ],
    ids=["window", "length"],
)
def test_a_layer_that_got_the_mask_of_another_is_refused(
    kv_len: int, window: int | None, words: str
) -> None:
    key = register("refusing", CAUSAL)
    mask = AttentionMaskInterface()[key](batch_size=1, q_length=5, kv_length=5)
    q, k = torch.randn(1, 2, 5, 16), torch.randn(1, 2, kv_len, 16)
    layer = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match=words):
        AttentionInterface()[key](layer, q, k, k, mask, sliding_window=window)


def test_names_and_layers_and_sizes_that_cannot_be() -> None:
    for name in ("", "a/b", "my-flash", "sdpa2"):
        with pytest.raises(ValueError, match="name must not be empty nor hold"):
            register(name, CAUSAL)
    with pytest.raises(ValueError, match='must be for "full_attention" or "sliding_attention"'):
        register("layers", {"chunked_attention": CAUSAL})
    with pytest.raises(BindError, match=r"no mask has .*\['lefd'\]; there are \['left', 'text'\]"):
        register("sizes", LOCAL, lefd=3)
    with pytest.raises(ArtifactError):
        register("bytes", b"no artifact")


def test_an_artifact_may_be_a_path_or_bytes_and_a_name_may_be_given_again(tmp_path: Path) -> None:
    from cmask.compiler.options import CompileOptions
    from cmask.compiler.pipeline import compile_source
    from cmask.grammar.source import Source
    from cmask.masks import path

    text = path("causal").read_text(encoding="utf-8")
    data = compile_source(Source("causal", text), CompileOptions(seq=64)).artifact
    (tmp_path / "causal.cmaskc").write_bytes(data)
    found = []
    for artifact in (tmp_path / "causal.cmaskc", str(tmp_path / "causal.cmaskc"), data, load(data)):
        assert register("again", artifact) == "cmask:again"
        found.append((AttentionInterface()["cmask:again"], AttentionMaskInterface()["cmask:again"]))
    assert len(set(found)) == 4
