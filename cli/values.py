"""What people type for numbers, lists and tables, as values.

Suffixes are powers of two, as token counts are: `32k` is 32,768 and `1M` is 1,048,576.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

_SUFFIXES = {"": 1, "k": 1 << 10, "K": 1 << 10, "m": 1 << 20, "M": 1 << 20}
_NUMBER = re.compile(r"([+-]?\d[\d_]*)([kKmM]?)")
_TOKEN = re.compile(r"\s*(\[|\]|,|[^\s\[\],]+)")


class ValueFault(ValueError):
    """Text that is no value; the message says what is expected."""


def parse_count(text: str) -> int:
    """A number of tokens.

    >>> parse_count("32k")
    32768
    """
    match = _NUMBER.fullmatch(text.strip())
    value = -1 if match is None else _whole(match)
    if not 0 <= value < 1 << 31:
        raise ValueFault(f"`{text}` is no number of tokens below 2^31; write 4096, 32k or 1M")
    return value


def parse_number(text: str) -> int | float:
    """A whole number, or `inf`.

    >>> parse_number("-2k"), parse_number("inf")
    (-2048, inf)
    """
    stripped = text.strip()
    if stripped in ("inf", "+inf", "-inf"):
        return -math.inf if stripped.startswith("-") else math.inf
    match = _NUMBER.fullmatch(stripped)
    if match is None:
        raise ValueFault(f"`{text}` is no whole number; write 4096, 32k, 1M or inf")
    return _whole(match)


def _whole(match: re.Match[str]) -> int:
    return int(match[1].replace("_", "")) * _SUFFIXES[match[2]]


def parse_value(text: str) -> Any:
    """A number, a list of numbers (the outer brackets may be left out), or an array in a file.

    >>> parse_value("3k,3k,4k")
    [3072, 3072, 4096]
    >>> parse_value("[[1, 2], [3]]")
    [[1, 2], [3]]
    """
    if text.strip().endswith(".npy"):
        return _read_array(Path(text.strip()))
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r"\s", "", text) or not tokens:
        raise ValueFault(f"`{text}` is no value; write 640, 3k,3k,4k or [[1,2],[3]]")
    items, rest = _items(tokens, text)
    if rest:
        raise ValueFault(f"`{text}` has a `{rest[0]}` too much")
    is_list = len(items) > 1 or tokens[-1] == ","
    return items if is_list else items[0]


def parse_assignment(text: str) -> tuple[str, Any]:
    """`NAME=VALUE` as a name and its value.

    >>> parse_assignment("prompt=8k")
    ('prompt', 8192)
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise ValueFault(f"`{text}` is no NAME=VALUE; write prompt=8k or answer=3k,3k,4k")
    return name.strip(), parse_value(value)


def _items(tokens: list[str], text: str) -> tuple[list[Any], list[str]]:
    """Comma-separated values up to a closing bracket or the end, and the tokens behind them."""
    items: list[Any] = []
    while tokens and tokens[0] != "]":
        head, *tokens = tokens
        if head == "[":
            inner, tokens = _items(tokens, text)
            if not tokens:
                raise ValueFault(f"`{text}` lacks a closing `]`")
            items.append(inner)
            tokens = tokens[1:]
        elif head == ",":
            raise ValueFault(f"`{text}` lacks a number before a comma")
        else:
            items.append(parse_number(head))
        if tokens and tokens[0] == ",":
            tokens = tokens[1:]
        elif tokens and tokens[0] != "]":
            raise ValueFault(f"`{text}` lacks a comma before `{tokens[0]}`")
    return items, tokens


def _read_array(path: Path) -> Any:
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise ValueFault(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise ValueFault(f"{path} is no array that numpy can read: {error}") from None
