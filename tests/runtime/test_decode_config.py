"""Block shapes of the decode kernel, and into how many shares it cuts the keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmask.runtime.kernels.budget import ITEMSIZE
from cmask.runtime.kernels.decode_config import (
    MAX_SPLITS,
    PARTIAL_MIB,
    DecodeLaunch,
    choose_decode_config,
    choose_splits,
)

H200 = 132  # multiprocessors


@given(
    packed_rows=st.integers(1, 4096),
    dtype=st.sampled_from(sorted(ITEMSIZE)),
    head_dim=st.integers(1, 256),
    v_head_dim=st.integers(1, 256),
    page_size=st.sampled_from((0, 1, 16, 48, 64, 256)),
    limit=st.sampled_from((99, 163, 227)),
)
def test_a_configuration_fits_whatever_is_asked(
    packed_rows: int, dtype: str, head_dim: int, v_head_dim: int, page_size: int, limit: int
) -> None:
    config = choose_decode_config(
        packed_rows=packed_rows,
        dtype=dtype,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        page_size=page_size,
        shared_memory_limit=limit << 10,
    )
    itemsize = ITEMSIZE[dtype]
    needed = config.shared_memory_bytes(head_dim=head_dim, v_head_dim=v_head_dim, itemsize=itemsize)
    assert needed <= limit << 10
    assert config.block_m >= 16
    assert config.block_m < 2 * max(packed_rows, 16)  # no more rows than there are


def test_where_nothing_fits_it_says_so() -> None:
    with pytest.raises(ValueError, match="no configuration of the decode kernel fits 1000 bytes"):
        choose_decode_config(
            packed_rows=1, dtype="bfloat16", head_dim=64, v_head_dim=64, page_size=0,
            shared_memory_limit=1000,
        )  # fmt: skip


@given(
    programs=st.integers(0, 10_000),
    blocks=st.integers(0, 20_000),
    processors=st.integers(1, 200),
    is_ragged=st.booleans(),
    share_bytes=st.integers(0, 1 << 32),
)
def test_shares_stay_within_bounds(
    programs: int, blocks: int, processors: int, is_ragged: bool, share_bytes: int
) -> None:
    splits, least = choose_splits(
        programs=programs,
        blocks=blocks,
        processors=processors,
        is_ragged=is_ragged,
        share_bytes=share_bytes,
    )
    assert 1 <= splits <= MAX_SPLITS
    assert splits == 1 or splits * share_bytes <= PARTIAL_MIB << 20
    assert splits == 1 or (splits - 1) * least < blocks  # no share is empty by itself


@pytest.mark.parametrize(
    ("programs", "blocks", "least", "most"),
    [
        (8, 512, 30, 33),  # one sequence of 32k keys, 8 key heads: all multiprocessors, twice
        (64, 512, 4, 8),  # eight of them
        (512, 512, 1, 4),
        (5000, 512, 1, 1),
        (8, 2, 1, 1),  # too few keys to share
        (8, 65, 8, 17),  # a window of 4,096
    ],
)
def test_shares_fill_the_card(programs: int, blocks: int, least: int, most: int) -> None:
    splits, _ = choose_splits(
        programs=programs, blocks=blocks, processors=H200, is_ragged=False, share_bytes=1 << 16
    )
    assert least <= splits <= most


def test_a_long_sequence_among_short_ones_is_shared() -> None:
    splits, least = choose_splits(
        programs=512, blocks=2048, processors=H200, is_ragged=True, share_bytes=1 << 20
    )
    assert splits >= 16
    assert least * 64 >= 1024  # short ones are not


def test_a_launch_survives_the_operator() -> None:
    launch = DecodeLaunch(
        block_m=16, block_n=64, num_warps=4, num_stages=3, num_splits=7, least_blocks=2
    )
    assert DecodeLaunch.from_integers(launch.integers()) == launch
