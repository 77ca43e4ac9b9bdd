"""What is to be measured, read from what people type; nothing here loads torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from cmask.cli.values import ValueFault, parse_count
from cmask.runtime.kernels import NAMES

Direction = Literal["fwd", "bwd"]

T = TypeVar("T", bound=str)

DIRECTIONS: tuple[Direction, ...] = ("fwd", "bwd")
PEERS = ("flex-fa4", "fa4", "cudnn", "flex", "sdpa")
OURS = "cmask"
DETERMINISTIC = "deterministic"  # the name of its column
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
BACKWARD_FLOPS = 2.5  # of the forward's: five products of matrices instead of two
BUDGET_S = 1200.0
ROUNDS = (4, 2)
CALLS = ("graph", "eager")  # replays of CUDA graphs, and plain calls


@dataclass(frozen=True)
class Settings:
    """One run.

    files       masks by name, or .cmask files; empty: those of `cases.USUAL`
    lengths     [tokens]
    tokens      batch × length
    heads, dims  of queries and keys (heads); of q and k, and of v (dims)
    dtype       torch's name
    directions  "bwd" is dQ, dK and dV of a forward made before
    against     peers in the order of columns; None: all that are installed
    kernels     more columns of cmask: name -> kernel
    deterministic  one more, backward: gradients with the same bits in every run
    rounds      rested, sustained
    calls       replays of graphs, plain calls
    budget_s    no mask is started after so long
    sizes       of masks of one's own
    paper       whether the paper's figures stand beside ours
    """

    files: tuple[str, ...] = ()
    lengths: tuple[int, ...] = (32768,)
    tokens: int = 32768
    heads: tuple[int, int] = (16, 16)
    dims: tuple[int, int] = (128, 128)
    dtype: str = "bfloat16"
    directions: tuple[Direction, ...] = DIRECTIONS
    against: tuple[str, ...] | None = None
    kernels: Mapping[str, str] = field(default_factory=dict)
    deterministic: bool = False
    rounds: tuple[int, int] = ROUNDS
    calls: tuple[str, ...] = CALLS
    cold_l2: bool = False
    budget_s: float = BUDGET_S
    sizes: Mapping[str, Any] = field(default_factory=dict)
    paper: bool = False
    json: Path | None = None
    plot: Path | None = None


def parse_lengths(text: str) -> tuple[int, ...]:
    """Lengths between commas.

    >>> parse_lengths("1k,8k")
    (1024, 8192)
    """
    lengths = tuple(dict.fromkeys(parse_count(item) for item in _items(text)))
    if 0 in lengths:
        raise ValueFault("a length of 0 tokens cannot be measured")
    return lengths


def parse_pair(text: str, what: str) -> tuple[int, int]:
    """One number for both, or two with a slash between them.

    >>> parse_pair("64/8", "--heads"), parse_pair("128", "--head-dim")
    ((64, 8), (128, 128))
    """
    parts = [part.strip() for part in text.split("/")]
    if not 1 <= len(parts) <= 2 or not all(part.isdigit() and int(part) for part in parts):
        raise ValueFault(f"`{text}` is no value of {what}; write 16 or 64/8")
    return int(parts[0]), int(parts[-1])


def parse_heads(text: str) -> tuple[int, int]:
    """Heads of queries and of keys."""
    queries, keys = parse_pair(text, "--heads")
    if queries % keys:
        raise ValueFault(f"{keys} key heads do not divide {queries} query heads")
    return queries, keys


def parse_directions(text: str) -> tuple[Direction, ...]:
    """`fwd`, `bwd` or both."""
    chosen = _known(text, DIRECTIONS, "direction")
    return tuple(direction for direction in DIRECTIONS if direction in chosen)


def parse_calls(text: str) -> tuple[str, ...]:
    """`graph`, `eager` or both."""
    return _known(text, CALLS, "kind of call")


def parse_peers(text: str) -> tuple[str, ...]:
    """Names of peers; `none` for cmask alone."""
    return () if text.strip() == "none" else _known(text, PEERS, "peer")


def parse_dtype(text: str) -> str:
    """Torch's name of `bf16` or `fp16`."""
    (name, *more) = _known(text, tuple(DTYPES), "dtype")
    if more:
        raise ValueFault("give one dtype")
    return DTYPES[name]


def parse_kernels(texts: tuple[str, ...]) -> dict[str, str]:
    """`NAME=KERNEL`, repeated or between commas.

    >>> parse_kernels(("portable=triton",))
    {'portable': 'triton'}
    """
    found: dict[str, str] = {}
    for item in (item for text in texts for item in _items(text)):
        name, _, kernel = (part.strip() for part in item.partition("="))
        if not name or kernel not in NAMES:
            known = ", ".join(NAMES)
            raise ValueFault(f"`{item}` is no NAME=KERNEL with one of the kernels {known}")
        if name in found or name in (OURS, DETERMINISTIC, *PEERS):
            raise ValueFault(f"`{name}` is a column already; take another name for {kernel}")
        found[name] = kernel
    return found


def parse_rounds(text: str) -> tuple[int, int]:
    """Rounds of the rested and of the sustained regime.

    >>> parse_rounds("4,2")
    (4, 2)
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or not int(parts[0]):
        raise ValueFault(f"`{text}` are no rounds; write 4,2 for 4 rested and 2 sustained ones")
    return int(parts[0]), int(parts[1])


def _known(text: str, known: tuple[T, ...], what: str) -> tuple[T, ...]:
    names = dict.fromkeys(_items(text))
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise ValueFault(f"`{unknown}` is no {what}; there are {', '.join(known)}")
    return tuple(name for name in known if name in names)


def _items(text: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise ValueFault(f"`{text}` names nothing")
    return items
