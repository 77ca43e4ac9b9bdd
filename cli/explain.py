"""cmask explain: the rules in closed form, and what one query sees or who sees one key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cmask.cli.options import Head, Json, MaskFile, Params, Seq, Sizes
from cmask.cli.report import CommandFault, reports_faults

if TYPE_CHECKING:
    from cmask.runtime.closed_form import ClosedForm
    from cmask.runtime.derive.bound import BoundMask
    from cmask.runtime.expressions import Value

Runs = list[tuple[int, int]]

_MOST_RUNS = 12


@reports_faults
def explain_command(
    file: MaskFile,
    seq: Seq = None,
    size: Sizes = None,
    param: Params = None,
    row: Annotated[
        int | None, typer.Option(min=0, metavar="Q", help="Which keys query Q sees, and why.")
    ] = None,
    key: Annotated[
        int | None, typer.Option(min=0, metavar="K", help="Which queries see key K, and why.")
    ] = None,
    head: Head = None,
    as_json: Json = False,
) -> None:
    """Explain a mask: its rules in closed form, what one query sees, blocks, bytes."""
    from cmask.cli.inputs import bind_file, read_options, read_source
    from cmask.cli.report import print_json, working

    source = read_source(file)
    with working(f"binding {source.name}", quiet=as_json):
        bound = bind_file(source, read_options(seq, size, param), head)
    _check_token("--row", row, bound.q_len, "queries")
    _check_token("--key", key, bound.kv_len, "keys")
    if as_json:
        print_json(_as_json(bound, row, key))
    else:
        _print(bound, row, key)


def rule_lines(form: ClosedForm, names: Mapping[str, Value]) -> Iterator[str]:
    """Every rule as written, then what each of its clauses asks of a key."""
    for text, clauses in _words_by_rule(form, names):
        yield f"line {text}"
        yield from (f"    {clause}" for clause in clauses)


def _words_by_rule(form: ClosedForm, names: Mapping[str, Value]) -> Iterator[tuple[str, list[str]]]:
    """The rules that the form has clauses of: not all, where it is one head's."""
    from cmask.cli.words import clause_in_words

    for number, text in enumerate(form.rule_texts):
        clauses = [clause_in_words(c, names) for c in form.clauses if c.rule == number]
        if clauses:
            yield text, clauses


def region_of(bound: BoundMask, token: int, side: str) -> str:
    """The region instance of a query ("q") or key ("k"), with the offset in it."""
    for s in bound.segments:
        start, stop = (s.q_start, s.q_stop) if side == "q" else (s.k_start, s.k_stop)
        if start <= token < stop:
            return f"{s.label} + {token - start}"
    raise IndexError(token)


def runs_of_row(bound: BoundMask, row: int) -> Runs:
    """The maximal runs [start, stop) of keys that one query sees."""
    import numpy as np

    return _runs(bound.visible(np.array([row]), np.arange(bound.kv_len))[0])


def runs_in_words(runs: Runs) -> str:
    """Runs as half-open intervals; a long list is cut."""
    text = " ".join(f"[{start}, {stop})" for start, stop in runs[:_MOST_RUNS])
    more = len(runs) - _MOST_RUNS
    return f"{text} … and {more:,} more" if more > 0 else text or "nothing"


def _check_token(option: str, token: int | None, count: int, what: str) -> None:
    if token is not None and token >= count:
        raise CommandFault(f"{option} {token} is beyond the {count:,} {what} (0 to {count - 1:,})")


def _runs(seen: Any) -> Runs:
    import numpy as np

    ends = np.flatnonzero(np.diff(np.concatenate([[False], seen, [False]]).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in ends.reshape(-1, 2)]


def _token_by_rule(bound: BoundMask, token: int, side: str) -> list[tuple[str, Runs]]:
    """The other side's tokens for a query or key: rule by rule, rules without any left out."""
    import numpy as np

    from cmask.runtime.derive.clauses import visible

    found: list[tuple[str, Runs]] = []
    for number, text in enumerate(bound.form.rule_texts):
        clauses = [clause for clause in bound.clauses if clause.rule == number]
        if side == "q":
            seen = visible(clauses, np.array([token]), np.arange(bound.kv_len))[0]
        else:
            seen = visible(clauses, np.arange(bound.q_len), np.array([token]))[:, 0]
        if seen.any():
            found.append((text, _runs(seen)))
    return found


def _all_runs(bound: BoundMask, token: int, side: str) -> Runs:
    import numpy as np

    if side == "q":
        return runs_of_row(bound, token)
    return _runs(bound.visible(np.arange(bound.q_len), np.array([token]))[:, 0])


def _print(bound: BoundMask, row: int | None, key: int | None) -> None:
    from cmask.cli.report import console, facts_in_words, print_pairs, working
    from cmask.runtime.derive.facts import facts_of

    out = console()
    if row is None and key is None:
        for line in rule_lines(bound.form, bound.names):
            out.print(line)
        out.print()
        with working("counting blocks"):
            facts = facts_of(bound)
        print_pairs(facts_in_words(facts))
    for token, side in ((row, "q"), (key, "k")):
        if token is not None:
            for line in _token_lines(bound, token, side):
                out.print(line)


def _token_lines(bound: BoundMask, token: int, side: str) -> Iterator[str]:
    what, verb = ("query", "sees") if side == "q" else ("key", "is seen by")
    others = "keys" if side == "q" else "queries"
    runs = _all_runs(bound, token, side)
    count = sum(stop - start for start, stop in runs)
    yield f"{what} {token} ({region_of(bound, token, side)}) {verb} {count:,} {others}"
    yield f"    {runs_in_words(runs)}"
    for text, by_rule in _token_by_rule(bound, token, side):
        yield f"by line {text}"
        yield f"    {runs_in_words(by_rule)}"


def _as_json(bound: BoundMask, row: int | None, key: int | None) -> dict[str, Any]:
    from cmask.cli.report import facts_as_json
    from cmask.runtime.derive.facts import facts_of

    form = bound.form
    rules = [
        {"rule": text, "visible_when": clauses}
        for text, clauses in _words_by_rule(form, bound.names)
    ]
    answer: dict[str, Any] = {"mask": form.name, "sizes": dict(bound.names), "rules": rules}
    answer["facts"] = facts_as_json(facts_of(bound))
    for name, token, side in (("row", row, "q"), ("key", key, "k")):
        if token is not None:
            answer[name] = _token_as_json(bound, token, side)
    return answer


def _token_as_json(bound: BoundMask, token: int, side: str) -> dict[str, Any]:
    by_rule: Sequence[tuple[str, Runs]] = _token_by_rule(bound, token, side)
    runs = _all_runs(bound, token, side)
    return {
        "token": token,
        "region": region_of(bound, token, side),
        "count": sum(stop - start for start, stop in runs),
        "intervals": runs,
        "by_rule": [{"rule": text, "intervals": found} for text, found in by_rule],
    }
