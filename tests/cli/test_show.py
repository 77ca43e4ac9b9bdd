"""Pictures: in the terminal, as PNG, as SVG; exact where they can be."""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

import numpy as np
import pytest

from cmask import masks
from cmask.cli import picture as pictures
from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import bind_source
from cmask.grammar.source import Source
from cmask.runtime.derive.bound import BoundMask
from support.command import run_cmask

COLOURS = {"COLUMNS": "80", "FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm-256color"}


def _bound(name: str, seq: int) -> BoundMask:
    text = masks.path(name).read_text(encoding="utf-8")
    return bind_source(Source(name, text), CompileOptions(seq=seq))


def _dense(bound: BoundMask) -> np.ndarray:
    return bound.visible(np.arange(bound.q_len), np.arange(bound.kv_len))


@pytest.mark.parametrize("name", ["causal", "shared_prompt", "clear_r8", "cross_attention"])
@pytest.mark.parametrize("cells", [(16, 16), (7, 13), (1000, 1000)])
def test_shares_are_the_means_of_the_mask(name: str, cells: tuple[int, int]) -> None:
    bound = _bound(name, 150)
    drawn = pictures.draw(bound, *cells)
    dense = _dense(bound)
    for i in range(len(drawn.q_edges) - 1):
        for j in range(len(drawn.k_edges) - 1):
            rows = slice(drawn.q_edges[i], drawn.q_edges[i + 1])
            columns = slice(drawn.k_edges[j], drawn.k_edges[j + 1])
            share = dense[rows, columns].mean()
            # cells of unequal lengths repeat a row or key of a mask that must be sampled
            tolerance = 1e-12 if bound.row_intervals() is not None else 0.15
            assert drawn.shares[i, j] == pytest.approx(share, abs=tolerance)


def test_sampled_shares_are_close_at_32k() -> None:
    bound = _bound("causal", 32768)
    drawn = pictures.draw(bound, 32, 32)
    sampled = pictures._sample(bound, drawn.q_edges, drawn.k_edges)
    assert np.abs(sampled - drawn.shares).max() < 0.02


@pytest.mark.parametrize("name", ["causal", "shared_prompt", "sink_window", "clear_r8"])
def test_a_picture_of_blocks_counts_every_block_once(name: str) -> None:
    bound = _bound(name, 4096)
    descriptor = bound.descriptor(128, 128)
    drawn = pictures.draw_blocks(bound, (128, 128), 1000, 1000)
    assert drawn.shares.shape == (descriptor.num_q_blocks, descriptor.num_kv_blocks)
    assert drawn.full is not None
    assert set(np.unique(drawn.shares)) <= {0.0, 1.0}
    assert (drawn.full <= drawn.shares).all()
    runs = descriptor.by_query.full_runs
    assert drawn.full.sum() == (runs[:, 1] - runs[:, 0]).sum()


def test_a_small_mask_has_a_mark_for_every_pair() -> None:
    done = run_cmask("show", "causal", "--size", "text=3")
    assert done.out.splitlines()[1:4] == ["text ■ · ·", "     ■ ■ ·", "     ■ ■ ■"]


@pytest.mark.parametrize("name", masks.names())
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_picture_fits_the_terminal(name: str, columns: int) -> None:
    environment = {"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"}
    done = run_cmask("show", name, "--seq", "32k", environment=environment)
    assert done.code == 0
    *drawing, _, _ = done.out.splitlines()
    assert max(map(len, drawing)) <= columns
    assert len(drawing) <= 60


def test_no_color_is_respected_and_colour_halves_the_lines() -> None:
    plain = run_cmask("show", "causal", "--seq", "4k").out
    coloured = run_cmask("show", "causal", "--seq", "4k", environment=COLOURS).out
    assert "\x1b[" not in plain
    assert "\x1b[" in coloured
    assert "▀" in coloured
    assert "▀" not in plain


def test_the_regions_stand_beside_the_picture_and_in_the_legend() -> None:
    lines = run_cmask("show", "shared_prompt", "--seq", "4k").out.splitlines()
    assert lines[0].split() == ["prompt", "answer", "×8"]
    assert lines[1].startswith("   prompt ")
    assert any(line.startswith("answer ×8 ") for line in lines)
    assert "■ prompt  ■ answer" in lines[-2]


@pytest.mark.parametrize("stage", ["rules", "intervals", "blocks"])
@pytest.mark.parametrize("name", ["shared_prompt", "clear_r16", "cross_attention"])
def test_every_stage_can_be_shown(stage: str, name: str) -> None:
    done = run_cmask("show", name, "--seq", "2k", "--stage", stage)
    assert (done.code, done.err) == (0, "")
    assert done.out


def test_the_intervals_shown_are_those_of_the_rows() -> None:
    done = run_cmask("show", "shared_prompt", "--size", "prompt=4", "--size", "answer=3,4", *_AT)
    assert "8 answer[0][1] + 1" in done.out
    assert "[0, 4) [7, 9)" in done.out


_AT = ("--stage", "intervals")


def test_a_png_holds_the_picture(tmp_path: Path) -> None:
    target = tmp_path / "causal.png"
    assert run_cmask("show", "causal", "--size", "text=4", "-o", str(target)).code == 0
    pixels = _read_png(target.read_bytes())
    assert pixels.shape == (512, 512, 3)
    white = (pixels == 255).all(axis=2)
    assert (white[64::128, 64::128] == ~np.tri(4, dtype=bool)).all()


def test_an_svg_is_well_formed_and_names_the_regions(tmp_path: Path) -> None:
    target = tmp_path / "shared.svg"
    assert run_cmask("show", "shared_prompt", "--seq", "32k", "-o", str(target)).code == 0
    root = ET.fromstring(target.read_text(encoding="utf-8"))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"prompt", "answer ×8"} <= set(texts)
    assert target.stat().st_size < 300_000


def test_a_million_tokens_are_drawn_without_their_matrix(tmp_path: Path) -> None:
    target = tmp_path / "blocks.png"
    done = run_cmask("show", "causal", "--seq", "1M", "--stage", "blocks", "-o", str(target))
    assert done.code == 0
    assert _read_png(target.read_bytes()).shape == (1024, 1024, 3)


def _read_png(data: bytes) -> np.ndarray:
    """uint8[height, width, 3] of a PNG whose lines all have filter 0."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    chunks: dict[bytes, bytes] = {}
    at = 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length) == (zlib.crc32(kind + body),)
        chunks[kind] = body
        at += length + 12
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour) == (8, 2)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)
