"""Time the forward of cmask's attention next to its peers, interleaved in one process.

    python tests/measure/forward.py --seq 32k,4k --json forward.json      # needs a CUDA device
    python tests/measure/forward.py --check                               # needs none

Every result of cmask is compared with float64 first; a wrong one is never timed.  Exit codes:
0, 1 = something of cmask is wrong or failed, 2 = the command is, 3 = a kernel hung.

cases.py      the masks, and how peers write them
agreement.py  mask_mods against masks, results against float64
peers.py      cmask and its peers as calls
timing.py     rested and sustained times, host time
report.py     lines, tables, JSON
"""

from __future__ import annotations

import argparse
import gc
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from agreement import compare_masks, difference, errors
from cases import CASES, NAMED_ONLY, Case, case, compiled
from peers import PEERS, Contender, NotApplicable, Problem, Shape, cmask, why_not, with_lse
from report import (
    HEADING,
    OURS,
    Row,
    compact,
    count,
    eager_line,
    header,
    is_alive,
    line,
    ours_of,
    say,
    start_watchdog,
    state_of_gpu,
    write_json,
)
from timing import Runner, capture, host_time, interleaved
from torch import Tensor

from cmask.cli.values import parse_count

DEVICE = "cuda"
DIFFERS = 0.05  # of a peer's output: more than rounding


@dataclass(frozen=True)
class Options:
    """What was asked for.

    tokens    batch × seq
    variants  more cmask columns: name -> kernel
    budget    no mask is started after so long [s]
    """

    cases: tuple[Case, ...]
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    tokens: int
    peers: tuple[str, ...]
    variants: dict[str, str]
    budget: float
    rounds: tuple[int, int]
    eager: bool
    json: Path | None
    check: bool


def main() -> int:
    """Check or measure; the exit code."""
    options = parse()
    if options.check:
        return check(options)
    if not torch.cuda.is_available():
        say("no CUDA device here: only --check runs")
        return 2
    warnings.filterwarnings("ignore")
    start_watchdog()
    with torch.no_grad():
        rows, is_complete = run(options)
    own = {OURS, *options.variants}
    return int(not is_complete or any(r.status != "ok" for r in rows if r.implementation in own))


def check(options: Options) -> int:
    """Compare every mask_mod with its mask; the exit code."""
    holds = True
    for each in options.cases:
        found = compare_masks(each)
        said = "agrees" if found.holds else f"DIFFERS in {found.differing} pairs"
        shape = _shape(each, options)
        say(
            f"{each.name:21}{shape.batch:3} × {count(each.seq):6}{found.rows:6} rows compared "
            f"{found.facts:13,} pairs{shape.flops(found.facts) / 1e9:10.2f} GFLOP  {said}"
        )
        holds = holds and found.holds
    return 0 if holds else 1


def run(options: Options) -> tuple[list[Row], bool]:
    """Measure every case that the budget allows; False if some case broke off."""
    begun = time.monotonic()
    facts: dict[str, Any] = {**header(), "gpu_before": state_of_gpu()}
    say(", ".join(f"{name} {value}" for name, value in facts.items()))
    rows: list[Row] = []
    left_out, broken = [], []
    for each in options.cases:
        name = f"{each.name} {count(each.seq)}"
        if time.monotonic() - begun > options.budget or not _has_device():
            left_out.append(name)
            continue
        try:
            rows += measure(each, options)
        except Exception as error:  # whatever broke: the other masks are still worth measuring
            say(f"{name} broke off: {_short(error)}")
            broken.append(name)
        facts |= {"gpu_after": state_of_gpu(), "left_out": left_out, "broken_off": broken}
        _keep(options, facts, rows)
    say("\n" + "\n".join(compact(rows)))
    say(f"\nafter {time.monotonic() - begun:.0f} s: {state_of_gpu()}")
    if left_out:
        say(f"left out: {', '.join(left_out)}")
    _keep(options, facts, rows)
    return rows, not broken


def _keep(options: Options, facts: dict[str, Any], rows: list[Row]) -> None:
    if options.json:
        settings = {name: getattr(options, name) for name in ("heads", "kv_heads", "tokens")}
        settings |= {name: getattr(options, name) for name in ("head_dim", "v_head_dim", "rounds")}
        write_json(options.json, {**facts, **settings, "variants": options.variants}, rows)


def measure(each: Case, options: Options) -> list[Row]:
    """All implementations on one mask, printed; whatever fails is a row, too."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    _free()
    say(f"\n{each.name} {count(each.seq)}: {dict(each.sizes)}"[:200])
    shape = _shape(each, options)
    try:
        problem = _problem(each, shape)
    except Exception as error:  # out of memory, or a fault of the compiler
        row = replace(_row(each, shape, OURS), status=why_not(error), detail=_short(error))
        say(line(row, None))
        return [row]
    rows = _timed(_prepared(problem, options), options)
    say(HEADING)
    for row in rows:
        say(line(row, ours_of(rows, row)))
    for row in rows if options.eager else ():
        say(eager_line(row))
    return rows


def _shape(each: Case, options: Options) -> Shape:
    heads, kv_heads = each.heads or options.heads, each.heads or options.kv_heads
    batch = max(1, options.tokens // each.seq)
    return Shape(batch, heads, kv_heads, options.head_dim, options.v_head_dim)


def _problem(each: Case, shape: Shape) -> Problem:
    begun = time.monotonic()
    mask = compiled(each)
    plan = mask.bind(device=DEVICE)
    assert mask.facts is not None, f"{each.name}: a size was left unbound"
    say(f"  compiled and bound in {time.monotonic() - begun:.1f} s")
    q = _random(shape.batch, shape.heads, each.seq, shape.head_dim)
    k = _random(shape.batch, shape.kv_heads, each.seq, shape.head_dim)
    v = _random(shape.batch, shape.kv_heads, each.seq, shape.v_head_dim)
    mod = each.mask_mod(DEVICE)
    return Problem(each, shape, plan, mask.facts.visible_pairs, mod, q, k, v)


def _random(batch: int, heads: int, seq: int, dim: int) -> Tensor:
    return torch.randn(batch, heads, seq, dim, device=DEVICE, dtype=torch.bfloat16)


Prepared = list[tuple[Row, Contender | None]]


def _prepared(problem: Problem, options: Options) -> Prepared:
    """Every implementation, run once and compared; None instead of those that are not timed."""
    prepared: Prepared = []
    ours: Tensor | None = None
    for name, kernel in {OURS: None, **options.variants}.items():
        begun = time.monotonic()
        row, out = _checked(problem, name, kernel)
        ours = out if ours is None and row.status == "ok" else ours
        prepared.append((row, cmask(problem, kernel) if row.status == "ok" else None))
        say(f"  {name}: {row.status} in {time.monotonic() - begun:.1f} s {row.detail}")
    for name in options.peers:
        begun = time.monotonic()
        row, contender = _peer(problem, name, ours)
        prepared.append((row, contender))
        say(f"  {name}: {row.status} in {time.monotonic() - begun:.1f} s {row.detail}")
    return prepared


def _checked(problem: Problem, name: str, kernel: str | None) -> tuple[Row, Tensor | None]:
    """One of cmask's kernels against float64."""
    p, row = problem, _row(problem.case, problem.shape, name, problem.pairs)
    try:
        out, lse = with_lse(p, kernel)
        found = errors(p.plan, p.q, p.k, p.v, out, lse)
    except Exception as error:  # whatever a kernel raises
        say(f"  {name}: {_short(error)}")
        _free()
        return replace(row, status=why_not(error), detail=_short(error)), None
    row = replace(row, error=(found.out, found.lse))
    if found.are_small:
        return row, out
    detail = f"largest errors: O {found.out:.3g}, LSE {found.lse:.3g}"
    return replace(row, status="WRONG", detail=detail), None


def _peer(problem: Problem, name: str, ours: Tensor | None) -> tuple[Row, Contender | None]:
    """A peer, run once and compared with cmask's output."""
    row = _row(problem.case, problem.shape, name, problem.pairs)
    try:
        contender = PEERS[name](problem)
        with contender.around():
            out = contender.output(contender.call())
        apart = None if ours is None else difference(out, ours)
    except NotApplicable as error:
        return replace(row, status=why_not(error)), None
    except Exception as error:  # whatever a peer raises
        _free()
        return replace(row, status=why_not(error), detail=_short(error)), None
    detail = "" if apart is None or apart <= DIFFERS else "DIFFERS"
    return replace(row, difference=apart, detail=detail), contender


def _row(each: Case, shape: Shape, name: str, pairs: int = 0) -> Row:
    row = Row(each.name, each.seq, shape.batch, name, "ok", (shape.heads, shape.kv_heads))
    return replace(row, pairs=pairs, flops=shape.flops(pairs), sizes=each.sizes)


def _timed(prepared: Prepared, options: Options) -> list[Row]:
    """The rows with their times."""
    rows: list[Row] = []
    runners: dict[str, Runner] = {}
    for row, contender in prepared:
        try:
            if contender is not None:
                runners[row.implementation] = capture(contender.call, contender.around)
        except Exception as error:  # a second call may fail where a first did not
            row = replace(row, status=why_not(error), detail=_short(error))
        rows.append(row)
    say(f"  captured: {', '.join(f'{name} {r.mode}' for name, r in runners.items())}")
    samples = interleaved(runners, options.rounds, is_alive)
    rows = [
        replace(row, times=samples[name], mode=runners[name].mode) if name in runners else row
        for row in rows
        for name in (row.implementation,)
    ]
    plain = {r.implementation: c for r, c in prepared if c and r.implementation in runners}
    return _with_eager(rows, plain, options.rounds[0]) if options.eager else rows


def _with_eager(rows: list[Row], contenders: dict[str, Contender], rounds: int) -> list[Row]:
    """The same, and what calls without a graph cost."""
    plain = {name: Runner(c.call, "eager", c.around) for name, c in contenders.items()}
    samples = interleaved(plain, (rounds, 0), is_alive)
    hosts = {name: host_time(runner) for name, runner in plain.items()}
    return [
        replace(row, eager=samples[name].rested, host=hosts[name]) if name in plain else row
        for row in rows
        for name in (row.implementation,)
    ]


def _has_device() -> bool:
    """False once a kernel's fault has made the device useless to this process."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _free() -> None:
    """Give back what earlier masks held; raises if the device is lost."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _short(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def parse() -> Options:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--seq", type=_lengths, help="lengths, 32k,4k if left out; 1k,4k for --check"
    )
    parser.add_argument("--masks", type=_names(CASES), help="of: " + ", ".join(CASES))
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--v-head-dim", type=int)
    parser.add_argument("--tokens", type=parse_count, default=32768, help="batch × seq")
    parser.add_argument("--peers", type=_names(PEERS), default=tuple(PEERS))
    parser.add_argument("--variants", type=_variants, default={}, help="NAME=KERNEL,…")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds")
    parser.add_argument("--rounds", type=_rounds, default=(5, 3), help="rested,sustained")
    parser.add_argument("--eager", action="store_true", help="without graphs, and on the host, too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="compare masks only, without a GPU")
    asked = vars(parser.parse_args())
    asked["kv_heads"] = asked["kv_heads"] or asked["heads"]
    asked["v_head_dim"] = asked["v_head_dim"] or asked["head_dim"]
    names = asked.pop("masks") or _default_masks(asked["check"])
    lengths = asked.pop("seq") or _lengths("1k,4k" if asked["check"] else "32k,4k")
    made = [case(name, seq) for seq in lengths for name in names]
    return Options(tuple({(c.name, c.seq): c for c in made}.values()), **asked)


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(parse_count(item) for item in text.split(","))


def _default_masks(check: bool) -> tuple[str, ...]:
    return tuple(name for name in CASES if check or name not in NAMED_ONLY)


def _names(known: Any) -> Any:
    def names(text: str) -> tuple[str, ...]:
        found = tuple(name for name in text.split(",") if name)
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(known)}")
        return found

    return names


def _variants(text: str) -> dict[str, str]:
    pairs = [item.partition("=") for item in text.split(",")]
    if any(not name or not kernel or name == OURS for name, _, kernel in pairs):
        raise argparse.ArgumentTypeError(f"write NAME=KERNEL with another name than {OURS}")
    return {name: kernel for name, _, kernel in pairs}


def _rounds(text: str) -> tuple[int, int]:
    rested, _, sustained = text.partition(",")
    return int(rested), int(sustained)


if __name__ == "__main__":
    raise SystemExit(main())
