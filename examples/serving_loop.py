"""A minimal server: requests of different lengths arrive, wait, and are answered together.

A request waits for a free seat and for pages.  Its prompt is read in chunks: rows of the mask,
`bind(rows=(start, stop))`, attend to what is in its pages.  Then a word is said to it in each step,
together with all others that are so far: `decode` by one plan for all lengths, where a seat that
says nothing has length 0.  One mask serves both, `causal` or `sliding_window`.

The weights are random, and so is what is said.  At the end each request is answered again, alone,
by PyTorch's dense attention over all of its words for each new one.

    python examples/serving_loop.py
    python examples/serving_loop.py --mask sliding_window --window 24
    python examples/serving_loop.py --device cuda --page 64 --chunk 64
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from cmask.runtime import Plan
from paged_cache import NOBODYS, Cache
from training import mask_of
from transformer import WIDTH, Attend, Trunk, by_matrix, waves

WORDS = 64
LONGEST = 128  # prompt and answer [words]


@dataclass(frozen=True)
class Request:
    """arrives: in which step.  prompt: its words.  new: how many more are to be said."""

    arrives: int
    prompt: list[int]
    new: int


@dataclass
class Answer:
    """words: the prompt's, then what was said.  logprobs: of each that was said."""

    words: list[int]
    logprobs: list[float] = field(default_factory=list)

    def say(self, word: int, logprob: float) -> None:
        """One word more."""
        self.words.append(word)
        self.logprobs.append(logprob)


@dataclass
class Seat:
    """A request that is being answered.

    number  of the request
    stop    how many words there are to be
    read    how many words have keys in `pages`
    """

    number: int
    answer: Answer
    stop: int
    pages: list[int]
    read: int = 0

    @property
    def says(self) -> bool:
        """Whether all but the last word are read."""
        return self.read == len(self.answer.words) - 1


class Model(nn.Module):
    """Words at positions, both int64[batch, rows] -> the odds of what comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.trunk = Trunk(checkpointed=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Logarithms of probabilities, float[batch, rows, WORDS]."""
        scores: Tensor = self.head(self.trunk(self.embed(words) + waves(positions), attend))
        return scores.log_softmax(-1)


class Server:
    """Answers so many requests together.

    bind   sizes, rows -> a plan of the mask
    chunk  how much of a prompt is read in a step [words]
    """

    def __init__(
        self, model: Model, bind: Callable[..., Plan], cache: Cache, *, seats: int, chunk: int
    ) -> None:
        self.model, self.bind, self.cache, self.chunk = model, bind, cache, chunk
        self.seats: list[Seat | None] = [None] * seats
        self.answers: dict[int, Answer] = {}  # by number of the request
        pages = -(-LONGEST // cache.page_size)
        self.table = torch.full((seats, pages), NOBODYS, dtype=torch.int32, device=cache.device)
        self.plan = bind(text=pages * cache.page_size)  # for every word that is said

    @torch.no_grad()
    def run(self, requests: list[Request]) -> list[Answer]:
        """An answer to each request."""
        waiting = sorted(enumerate(requests), key=lambda pair: pair[1].arrives)
        step = 0
        while len(self.answers) < len(requests):
            while waiting and waiting[0][1].arrives <= step and self.admit(*waiting[0]):
                del waiting[0]
            self.read()
            self.say()
            step += 1
        return [self.answers[number] for number in range(len(requests))]

    def admit(self, number: int, request: Request) -> bool:
        """A seat, and all pages that the request will need; whether they are there."""
        stop = len(request.prompt) + request.new
        count = -(-stop // self.cache.page_size)
        if None not in self.seats or count > len(self.cache.free):
            return False
        pages = [self.cache.free.pop() for _ in range(count)]
        i = self.seats.index(None)
        self.seats[i] = Seat(number, Answer(list(request.prompt)), stop, pages)
        self.table[i, :count] = torch.tensor(pages)
        return True

    def read(self) -> None:
        """A chunk of each prompt that is not read yet; its last word is left for `say`."""
        for i, seat in enumerate(self.seats):
            if seat is None or seat.says:
                continue
            prompt = seat.answer.words
            start, stop = seat.read, min(seat.read + self.chunk, len(prompt) - 1)
            plan = self.bind(text=stop, rows=(start, stop))
            words = torch.tensor([prompt[start:stop]], device=self.cache.device)
            positions = torch.arange(start, stop, device=self.cache.device)[None]
            attend = self.cache.attend(positions, self.table[i : i + 1], plan, None)
            self.model(words, positions, attend)
            seat.read = stop

    def say(self) -> None:
        """A word of each request whose prompt is read."""
        lens = torch.zeros(len(self.seats), dtype=torch.int32)
        last = torch.zeros(len(self.seats), 1, dtype=torch.int64)
        for i, seat in enumerate(self.seats):
            if seat is not None and seat.says:
                lens[i], last[i] = len(seat.answer.words), seat.answer.words[-1]
        lens, last = lens.to(self.cache.device), last.to(self.cache.device)
        positions = (lens - 1).clamp(0)[:, None].long()
        # seats that say nothing may hold pages: what they write goes to nobody's
        table = torch.where(lens[:, None] > 0, self.table, NOBODYS)
        odds = self.model(last, positions, self.cache.attend(positions, table, self.plan, lens))
        logprobs, words = (x.tolist() for x in odds[:, -1].max(-1))
        for i, seat in enumerate(self.seats):
            if seat is not None and seat.says:
                seat.answer.say(words[i], logprobs[i])
                seat.read += 1
                if len(seat.answer.words) == seat.stop:
                    self.answers[seat.number] = seat.answer
                    self.cache.free += seat.pages
                    self.seats[i] = None


@torch.no_grad()
def alone(model: Model, bind: Callable[..., Plan], request: Request, device: str) -> Answer:
    """The answer to a request by dense attention over all its words, each time anew."""
    answer = Answer(list(request.prompt))
    for count in range(len(answer.words), len(answer.words) + request.new):
        positions = torch.arange(count, device=device)[None]
        words = torch.tensor([answer.words], device=device)
        logprob, word = model(words, positions, by_matrix(bind(text=count)))[0, -1].max(-1)
        answer.say(int(word), float(logprob))
    return answer


def requests_of(count: int) -> list[Request]:
    """Random ones; the first prompt is one word."""
    random = torch.Generator().manual_seed(0)
    requests = []
    for number in range(count):
        arrives, length, new = (
            int(torch.randint(*ends, (), generator=random)) for ends in ((0, 12), (1, 100), (1, 20))
        )
        prompt = torch.randint(WORDS, (length if number else 1,), generator=random)
        requests.append(Request(arrives, prompt.tolist(), new))
    return requests


def main(argv: list[str] | None = None) -> tuple[list[Answer], list[Answer]]:
    """Serve, and answer each request alone; the answers of both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--mask", choices=("causal", "sliding_window"), default="causal")
    parser.add_argument("--window", type=int, default=24, help="words, with the one that looks")
    for name, default in {"requests": 8, "seats": 3, "pages": 24, "page": 16, "chunk": 32}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(argv)
    if (options.pages - 1) * options.page < LONGEST:
        parser.error(f"pages must hold {LONGEST} words, and one page is nobody's")
    sizes = {"left": options.window - 1} if options.mask == "sliding_window" else {}
    bind = partial(mask_of(options.mask).bind, device=options.device, **sizes)
    torch.manual_seed(0)
    model = Model().to(options.device)
    cache = Cache(options.pages, options.page, options.device)
    server = Server(model, bind, cache, seats=options.seats, chunk=options.chunk)
    requests = requests_of(options.requests)
    served = server.run(requests)
    expected = [alone(model, bind, request, options.device) for request in requests]
    for request, answer, right in zip(requests, served, expected, strict=True):
        read = len(request.prompt)
        verdict = "as alone" if answer.words == right.words else f"alone {right.words[read:]}"
        print(f"step {request.arrives:2}, {read:3} words, answer {answer.words[read:]}: {verdict}")
    return served, expected


if __name__ == "__main__":
    main()
