"""Reads what `nvdisasm -c` prints: the loops that multiply, and what stands in them.

In the loops of an attention kernel two products are in flight.  Behind a wait for all but one
(`WARPGROUP.DEPBAR.LE gsb0, 0x1`) the second still runs, up to the wait for none: exponentials
there cost nothing, elsewhere the tensor cores stand still meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_LABEL = re.compile(r"\s*(\.L\w+):")
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*);")
_TARGET = re.compile(r"\.L_x_\d+")
_WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x([0-9a-f]+)")
_LEAVES = re.compile(
    r"(BRA(\.\w+)* `|BRX|EXIT|RET)"
)  # without a condition: what follows is not next
_PRODUCT = "HGMMA"
_EXPONENTIAL = "MUFU.EX2"


@dataclass(frozen=True, slots=True)
class Loop:
    """An innermost loop with products; what it counts are instructions.

    exposed  exponentials that do not run beside a product
    spills   loads and stores of local memory
    """

    instructions: int
    products: int
    exponentials: int
    exposed: int
    spills: int


@dataclass(frozen=True, slots=True)
class _Block:
    """Instructions that run one after another, and the blocks that can follow."""

    code: tuple[str, ...]
    successors: tuple[int, ...]


def product_loops(sass: str) -> list[Loop]:
    """The innermost loops with products, in the order of their code."""
    blocks = _blocks(sass)
    bodies = {
        head: body
        for head, body in _natural_loops(blocks).items()
        if _count(blocks, body, _PRODUCT)
    }
    inner = [head for head in bodies if not any(other < bodies[head] for other in bodies.values())]
    return [_measure(blocks, head, bodies[head]) for head in sorted(inner)]


def _measure(blocks: list[_Block], head: int, body: frozenset[int]) -> Loop:
    return Loop(
        instructions=sum(len(blocks[i].code) for i in body),
        products=_count(blocks, body, _PRODUCT),
        exponentials=_count(blocks, body, _EXPONENTIAL),
        exposed=_exposed(blocks, head, body),
        spills=_count(blocks, body, "LDL") + _count(blocks, body, "STL"),
    )


def _count(blocks: list[_Block], body: Iterable[int], opcode: str) -> int:
    pattern = re.compile(rf"(@\S+ )?{re.escape(opcode)}\b")
    return sum(bool(pattern.match(line)) for i in body for line in blocks[i].code)


def _exposed(blocks: list[_Block], head: int, body: frozenset[int]) -> int:
    """Exponentials that some way around the loop meets outside of the overlap.

    The head may lie anywhere in a round: what stands before the first wait counts only when it is
    met again, behind the last one.
    """
    waits = any(_WAIT.search(line) for i in body for line in blocks[i].code)
    todo: list[tuple[int, bool | None]] = [(head, None if waits else False)]
    seen: set[tuple[int, bool | None]] = set()
    exposed: set[tuple[int, int]] = set()
    while todo:
        place = todo.pop()
        if place in seen:
            continue
        seen.add(place)
        index, overlaps = place
        for i, line in enumerate(blocks[index].code):
            if wait := _WAIT.search(line):
                overlaps = int(wait[1], 16) == 1
            elif overlaps is False and _EXPONENTIAL in line:
                exposed.add((index, i))
        todo += [(i, overlaps) for i in blocks[index].successors if i in body]
    return len(exposed)


# ------------------------------------------------------------------------------ control flow


def _blocks(sass: str) -> list[_Block]:
    """The kernel cut at labels and behind jumps; the first block is where it begins.

    A `BSYNC` stands right before the label that its `BSSY` names, so that it simply runs on.
    """
    pieces: list[tuple[set[str], list[str]]] = [(set(), [])]
    for line in sass.splitlines():
        if label := _LABEL.match(line):
            if pieces[-1][1]:
                pieces.append((set(), []))
            pieces[-1][0].add(label[1])
        elif instruction := _INSTRUCTION.match(line):
            pieces[-1][1].append(" ".join(instruction[1].split()))
            if _TARGET.search(line) or _LEAVES.match(pieces[-1][1][-1]):
                pieces.append((set(), []))
    starts = {label: i for i, (labels, _) in enumerate(pieces) for label in labels}
    return [
        _Block(tuple(code), _successors(i, code, starts, len(pieces)))
        for i, (_, code) in enumerate(pieces)
    ]


def _successors(index: int, code: list[str], starts: dict[str, int], count: int) -> tuple[int, ...]:
    last = code[-1] if code else ""
    jumps = tuple(starts[label] for label in _TARGET.findall(last))
    if _LEAVES.match(last) or index + 1 == count:
        return jumps
    return (*jumps, index + 1)


def _natural_loops(blocks: list[_Block]) -> dict[int, frozenset[int]]:
    """The blocks of each loop, by its head: the one through which every way into it leads.

    Not every jump backwards closes a loop: waits spin at the end of the code and jump back into
    the middle of the loop that they belong to.
    """
    dominators = _dominators(blocks)
    before = _predecessors(blocks, dominators)
    loops: dict[int, frozenset[int]] = {}
    for tail in dominators:
        for head in blocks[tail].successors:
            if head in dominators[tail]:
                body = _reaching(tail, head, before)
                loops[head] = loops.get(head, frozenset()) | body
    return loops


def _dominators(blocks: list[_Block]) -> dict[int, set[int]]:
    """For each block that can be reached: the blocks that every way to it goes through."""
    reached = _reachable(blocks)
    before = _predecessors(blocks, reached)
    found = {i: set(reached) for i in sorted(reached)} | {0: {0}}
    changed = True
    while changed:
        changed = False
        for i in found:
            new = {i}.union(set.intersection(*(found[p] for p in before[i]))) if i else {0}
            changed |= new != found[i]
            found[i] = new
    return found


def _reachable(blocks: list[_Block]) -> set[int]:
    reached, todo = {0}, [0]
    while todo:
        new = set(blocks[todo.pop()].successors) - reached
        reached |= new
        todo += new
    return reached


def _predecessors(blocks: list[_Block], reached: Iterable[int]) -> dict[int, list[int]]:
    before: dict[int, list[int]] = {i: [] for i in reached}
    for i in before:
        for successor in blocks[i].successors:
            before[successor].append(i)
    return before


def _reaching(tail: int, head: int, before: dict[int, list[int]]) -> frozenset[int]:
    """The blocks from which `tail` is reached without passing `head`, and `head`."""
    body, todo = {head}, [tail]
    while todo:
        block = todo.pop()
        if block not in body:
            body.add(block)
            todo += before[block]
    return frozenset(body)
