"""The server says what each request is told alone, whatever seats, pages and chunks there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

MASKS = ("causal", "sliding_window")
SIZES = {  # requests wait for seats, for pages, and their chunks end at their pages' ends or not
    "few seats": ["--seats", "2"],
    "few pages": ["--seats", "4", "--pages", "10", "--chunk", "13"],
    "large pages": ["--page", "32", "--pages", "6", "--chunk", "200"],
}
Example = Callable[[str], Any]


def check_same(served: list[Any], expected: list[Any]) -> None:
    for answer, right in zip(served, expected, strict=True):
        assert answer.words == right.words
        assert answer.logprobs == pytest.approx(right.logprobs, rel=1e-5)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mask", MASKS)
def test_words_are_those_that_each_request_is_told_alone(
    mask: str, sizes: str, example: Example
) -> None:
    options = ["--device", "cpu", "--requests", "5", "--mask", mask, *SIZES[sizes]]
    check_same(*example("serving_loop").main(options))


def test_the_mask_decides_what_is_said(example: Example) -> None:
    """Else a wrong mask could not be noticed."""
    main = example("serving_loop").main
    causal, window = (main(["--device", "cpu", "--requests", "5", "--mask", x])[0] for x in MASKS)
    assert [answer.words for answer in causal] != [answer.words for answer in window]


def test_requests_wait_for_pages_and_give_them_back(example: Example) -> None:
    module = example("serving_loop")
    requests = [module.Request(0, [1] * 30, 3), module.Request(0, [2] * 40, 2)]
    torch.manual_seed(0)
    cache = module.Cache(4, 16, "cpu")  # one of them is nobody's: each request needs all others
    bind = module.mask_of("causal").bind
    server = module.Server(module.Model(), bind, cache, seats=2, chunk=16)
    assert server.admit(0, requests[0])
    assert not server.admit(1, requests[1])
    server.seats[0] = None
    cache.free += [1, 2, 3]
    assert [len(answer.words) for answer in server.run(requests)] == [33, 42]
    assert sorted(cache.free) == [1, 2, 3]
    assert server.seats == [None, None]


@pytest.mark.gpu
@pytest.mark.parametrize("mask", MASKS)
def test_a_gpu_says_the_same(mask: str, example: Example) -> None:
    """float32, where the two best words are further apart than rounding."""
    options = ["--page", "64", "--pages", "9", "--chunk", "64"]
    check_same(*example("serving_loop").main(["--device", "cuda", "--mask", mask, *options]))
