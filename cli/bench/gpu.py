"""The stand on which masks are measured: cases become calls on a GPU, checked against float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any

import torch
import torch._functorch.config as functorch_config
from torch import Tensor

from cmask.cli.bench import exact, machine
from cmask.cli.bench.binding import binding_of
from cmask.cli.bench.case import Case
from cmask.cli.bench.directions import contender
from cmask.cli.bench.exact_gradients import exact_dkdv
from cmask.cli.bench.measure import Clock, Contender, Entry, Verdict
from cmask.cli.bench.ours import ours, with_lse
from cmask.cli.bench.peers import peers_of
from cmask.cli.bench.problem import Problem, make_problem
from cmask.cli.bench.rows import CEILING, CEILING_SIDE, Binding, Group
from cmask.cli.bench.settings import DETERMINISTIC, OURS, PEERS, Direction, Settings
from cmask.cli.bench.timing import GpuClock, free, is_lost

DIFFERS = 0.05  # of a peer's whole result from cmask's: more than rounding
_OF_FLASH = ("flex-fa4", "fa4")


class GpuStand:
    """One CUDA device."""

    def __init__(self, settings: Settings) -> None:
        # a compiled backward that runs again and again must not write over what its forward saved
        functorch_config.donated_buffer = False
        self._settings = settings
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.clock: Clock = GpuClock(self._stream, cold_l2=settings.cold_l2)

    def prepare(self, case: Case) -> GpuBench:
        """Compile and bind a mask, and draw its inputs."""
        free()
        problem = make_problem(case, self._settings, "cuda", self._stream)
        return GpuBench(problem, self._settings)

    def state(self) -> str:
        """Clock, power and temperature now."""
        return machine.state_of_gpu()

    def is_lost(self) -> bool:
        """Whether nothing more can be measured by this process."""
        return is_lost()


class GpuBench:
    """One mask on it."""

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self._problem, self._settings = problem, settings

    def group(self, direction: Direction) -> Group:
        """What is known before anything is timed."""
        p = self._problem
        return Group(
            p.case.name,
            direction,
            p.plan.q_len,
            p.shape.batch,
            (p.shape.heads, p.shape.kv_heads),
            (p.shape.head_dim, p.shape.v_head_dim),
            p.facts.visible_pairs,
            p.facts.density,
            p.shape.flops(p.facts.visible_pairs, direction),
            p.case.sizes,
        )

    def binding(self) -> Binding:
        """What it costs to make the mask known."""
        return binding_of(self._problem)

    def entries(self, direction: Direction) -> list[Entry]:
        """cmask, its variants, its peers, and the matrix product."""
        p, checks = self._problem, Checks(self._problem, direction)
        if p.compiles:  # each direction and spelling is one more version of one function
            torch._dynamo.reset()
        entries = []
        for name, kernel in {OURS: None, **self._settings.kernels}.items():
            attention = partial(ours, p, kernel)
            entries.append(_entry(p, name, attention, direction, partial(checks.ours, kernel)))
        if self._settings.deterministic and direction == "bwd":
            attention = partial(ours, p, None, deterministic=True)
            check = partial(checks.ours, None)
            entries.append(_entry(p, DETERMINISTIC, attention, direction, check))
        against = self._settings.against
        for name, make in peers_of(p, installed() if against is None else against):
            entries.append(_entry(p, name, partial(make, p), direction, checks.result))
        return [*entries, Entry(CEILING, partial(_matmul, p.q.dtype, p.q.device))]


def _entry(
    problem: Problem,
    name: str,
    make: Callable[[], Any],
    direction: Direction,
    check: Callable[[Contender], Verdict],
) -> Entry:
    return Entry(name, lambda: contender(problem, make(), direction), check)


def installed() -> tuple[str, ...]:
    """The peers that this machine has."""
    try:
        has_flash = find_spec("flash_attn.cute") is not None
    except ImportError:
        has_flash = False
    return tuple(name for name in PEERS if has_flash or name not in _OF_FLASH)


class Checks:
    """What one direction's results are compared with; cmask's is kept to compare peers with."""

    def __init__(self, problem: Problem, direction: Direction) -> None:
        self._problem, self._direction = problem, direction
        self._ours: tuple[Tensor, ...] | None = None

    @cached_property
    def _rows(self) -> exact.Rows:
        return exact.sample_rows(self._problem)

    @cached_property
    def _vectors(self) -> tuple[exact.Vectors, ...]:
        p, rows = self._problem, self._rows
        if self._direction == "fwd":
            return (exact.exact_out(p, rows),)
        return (exact.exact_dq(p, rows), *exact_dkdv(p))

    def ours(self, kernel: str | None, made: Contender) -> Verdict:
        """A kernel of cmask; the first one that is right is what others are compared with."""
        lse_error = None
        if self._direction == "fwd":
            with torch.no_grad():
                lse_error = exact.lse_error(self._rows, with_lse(self._problem, kernel)[1])
        return self._judge(made, lse_error)

    def result(self, made: Contender) -> Verdict:
        """A peer."""
        return self._judge(made, None)

    def _judge(self, made: Contender, lse_error: float | None) -> Verdict:
        with made.around():
            results = made.results(made.call())
            if results[0].is_cuda:
                torch.cuda.synchronize()
        errors = [v.error(x) for v, x in zip(self._vectors, results, strict=True)]
        # comparisons with NaN are false, so that NaN is wrong
        is_right = all(error <= exact.TOLERANCE for error in errors)
        is_right = is_right and (lse_error is None or lse_error <= exact.LSE_TOLERANCE)
        detail = "" if is_right else f"errors {', '.join(_figures(errors, lse_error))}"
        apart = None if self._ours is None else exact.difference(results, self._ours)
        if self._ours is None and is_right:
            self._ours = tuple(x.detach() for x in results)
        if apart is not None and is_right and not apart <= DIFFERS:
            detail = f"DIFFERS from cmask's whole result by {apart:.2g}"
        worst = next((e for e in errors if e != e), max(errors))
        return Verdict(is_right, worst, lse_error, apart, detail)


def _figures(errors: list[float], lse_error: float | None) -> Iterator[str]:
    names = ("O",) if len(errors) == 1 else ("dQ", "dK", "dV")
    yield from (f"{name} {error:.2g}" for name, error in zip(names, errors, strict=True))
    if lse_error is not None:
        yield f"LSE {lse_error:.2g}"


def _matmul(dtype: torch.dtype, device: torch.device) -> Contender:
    """The dense ceiling."""
    side = CEILING_SIDE
    a, b = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
    return Contender(lambda: a @ b)
