"""What people type for numbers, lists and tables."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cmask.cli.values import ValueFault, parse_assignment, parse_count, parse_number, parse_value


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("4096", 4096), ("32k", 32768), ("32K", 32768), ("1M", 1 << 20), ("32_768", 32768)],
)
def test_a_suffix_is_a_power_of_two(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "k", "3x", "3.5", "-1", "inf", "2048M", "1e3", "0x10"])
def test_a_number_of_tokens_is_whole_and_below_two_to_the_31(text: str) -> None:
    with pytest.raises(ValueFault):
        parse_count(text)


def test_a_parameter_may_be_infinite_or_negative() -> None:
    assert [parse_number(text) for text in ("inf", "-inf", "-3", "+2k")] == [
        math.inf,
        -math.inf,
        -3,
        2048,
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("640", 640),
        ("3k,3k,4k", [3072, 3072, 4096]),
        ("7,", [7]),
        ("[7]", [7]),
        ("[]", []),
        ("[[1,2],[3]]", [[1, 2], [3]]),
        ("[1, 2], [3]", [[1, 2], [3]]),
        ("[[1],[],[2]]", [[1], [], [2]]),
    ],
)
def test_lists_nest_and_may_lack_the_outer_brackets(text: str, value: object) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize("text", ["[1", "1]", ",1", "1,,2", "[1 2]", "[1]2", "a", "[,]"])
def test_a_broken_list_is_refused(text: str) -> None:
    with pytest.raises(ValueFault):
        parse_value(text)


def test_a_table_comes_from_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "cut.npy", np.arange(4))
    assert parse_value(f"{tmp_path}/cut.npy").tolist() == [0, 1, 2, 3]


def test_a_file_with_objects_in_it_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "cut.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueFault):
        parse_value(f"{tmp_path}/cut.npy")


def test_an_assignment_needs_a_name_and_a_value() -> None:
    assert parse_assignment("answer=3k,4k") == ("answer", [3072, 4096])
    for text in ("answer", "=3", "answer=", ""):
        with pytest.raises(ValueFault):
            parse_assignment(text)
