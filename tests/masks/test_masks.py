"""Every mask that ships: its comment, its picture, its sizes."""

from __future__ import annotations

import shlex

import pytest

from cmask import masks
from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import bind_source, compile_source
from cmask.grammar.source import Source
from cmask.runtime.mask import load
from support.command import run_cmask

EXPECTED = {
    "bidirectional_documents",
    "block_causal",
    "block_diffusion",
    "causal",
    "causal_documents",
    "chunked_causal",
    "clear_r16",
    "clear_r32",
    "clear_r8",
    "cross_attention",
    "frame_block_causal",
    "full",
    "hstu",
    "hstu_jagged",
    "hstu_target_groups",
    "hstu_windowed",
    "image_blocks",
    "natten_2d",
    "natten_3d",
    "padding",
    "prefix_lm",
    "prefix_lm_documents",
    "shared_prompt",
    "shared_prompt_packed",
    "sink_window",
    "sliding_window",
    "windowed_documents",
}
DRAWN_BY = "# Drawn by: cmask "
every_mask = pytest.mark.parametrize("name", masks.names())


def _source(name: str) -> Source:
    return Source(f"{name}.cmask", masks.path(name).read_text(encoding="utf-8"))


def test_the_masks_of_the_catalogue_ship() -> None:
    assert set(masks.names()) == EXPECTED


def test_an_unknown_mask_has_no_path() -> None:
    with pytest.raises(KeyError):
        masks.path("no_such_mask")


@every_mask
def test_a_mask_says_its_use_and_its_source(name: str) -> None:
    comment = [line for line in _source(name).text.split("\n") if line.startswith("#")]
    assert len(masks.description(name)) > 20
    assert masks.description(name).endswith(".")
    assert any(line.startswith("# Source: ") for line in comment)


@every_mask
def test_the_mask_bears_the_name_of_its_file(name: str) -> None:
    assert f"\nmask {name} {{" in _source(name).text


@every_mask
def test_the_picture_in_the_comment_is_what_show_draws(
    name: str, request: pytest.FixtureRequest
) -> None:
    """`--update-golden` draws the pictures again."""
    before, command, picture, mask = _parts(_source(name).text)
    shown = run_cmask(*shlex.split(command))
    assert shown.code == 0, shown.err
    drawn = [f"#   {line}".rstrip() for line in shown.out.splitlines()[:-2]]
    if request.config.getoption("--update-golden", default=False):
        text = "\n".join([*before, DRAWN_BY + command, "#", *drawn, "#", *mask])
        masks.path(name).write_text(text, encoding="utf-8")
    else:
        assert picture == drawn


@every_mask
@pytest.mark.parametrize("seq", [64, 1024, 4096, 32768])
def test_the_sizes_follow_from_the_length(name: str, seq: int) -> None:
    """No size is lost: the longer side is `seq`, or a little less where a grid must fit in."""
    bound = bind_source(_source(name), CompileOptions(seq=seq))
    longest = max(bound.q_len, bound.kv_len)
    assert 0.85 * seq <= longest <= seq
    assert min(bound.q_len, bound.kv_len) > 0


@every_mask
@pytest.mark.parametrize("seq", [1024, 4096, 32768])
def test_a_mask_compiles_and_its_artifact_verifies(name: str, seq: int) -> None:
    made = compile_source(_source(name), CompileOptions(seq=seq))
    assert made.facts is not None
    assert 0 < made.facts.density <= 1
    mask = load(made.artifact)
    assert mask.verify() >= 1
    assert mask.facts == made.facts


@every_mask
def test_only_padding_has_queries_that_see_nothing(name: str) -> None:
    made = compile_source(_source(name), CompileOptions(seq=1024))
    assert bool(made.warnings) == (name == "padding")


@pytest.mark.parametrize("name", ["causal", "sliding_window", "causal_documents", "shared_prompt"])
@pytest.mark.slow
def test_a_million_tokens_compile(name: str) -> None:
    made = compile_source(_source(name), CompileOptions(seq=1 << 20))
    assert made.facts is not None
    assert made.facts.q_len == 1 << 20


def _parts(text: str) -> tuple[list[str], str, list[str], list[str]]:
    """(lines before the drawing command, the command, the picture, the mask's own lines)."""
    lines = text.split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith(DRAWN_BY))
    start = next(i for i, line in enumerate(lines) if line.startswith("mask "))
    picture = lines[at + 2 : start - 1]
    return lines[:at], lines[at].removeprefix(DRAWN_BY), picture, lines[start:]
