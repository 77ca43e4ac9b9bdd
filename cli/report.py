"""What people see besides the result: diagnostics, facts, progress, exit codes.

Exit codes: 0; 1 the mask (or artifact) is wrong; 2 the command is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from cmask.grammar.diagnostic import Diagnostic
    from cmask.grammar.source import Source
    from cmask.runtime.derive.facts import Facts
    from cmask.runtime.variants import Variant

MASK_IS_WRONG = 1
COMMAND_IS_WRONG = 2

P = ParamSpec("P")


class CommandFault(Exception):
    """The command cannot be carried out as given; the message says what to give."""

    def __init__(self, message: str, code: int = COMMAND_IS_WRONG) -> None:
        super().__init__(message)
        self.code = code


def reports_faults(command: Callable[P, None]) -> Callable[P, None]:
    """A command whose faults end in one line on stderr and an exit code, never in a traceback."""

    @wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        from cmask.runtime.derive.sizes import BindError

        try:
            command(*args, **kwargs)
        except CommandFault as fault:
            _fail(str(fault), fault.code)
        except BindError as fault:
            _fail(_in_options(str(fault)), COMMAND_IS_WRONG)
        except MemoryError:
            _fail("not enough memory for a mask of this length", COMMAND_IS_WRONG)
        except BrokenPipeError:  # `cmask explain ... | head`
            raise typer.Exit from None

    return guarded


def _fail(message: str, code: int) -> None:
    console(stderr=True).print(f"error: {message}", style="red")
    raise typer.Exit(code)


def _in_options(message: str) -> str:
    """The runtime's advice `bind(...)` in the words of the command line."""
    head, found, _ = message.partition(": bind(")
    if not found:
        return message
    return f"{head}: give --size NAME=VALUE, or --seq if its sizes follow from the length"


def console(*, stderr: bool = False) -> Console:
    """A console that leaves our text as it is: no markup, no wrapping, no guessed colours."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False, soft_wrap=True, emoji=False)


@contextmanager
def working(what: str, *, quiet: bool = False) -> Iterator[None]:
    """A spinner on stderr while something may take long; nothing where nobody watches."""
    watched = console(stderr=True)
    if quiet or not watched.is_terminal:
        yield
        return
    with watched.status(what):
        yield


def print_diagnostics(diagnostics: Sequence[Diagnostic], source: Source) -> None:
    """Every diagnostic on stderr: the text is `render`'s, only the colour is ours."""
    out = console(stderr=True)
    for diagnostic in diagnostics:
        head, _, rest = diagnostic.render(source).partition("\n")
        out.print(head, style="bold red" if diagnostic.severity == "error" else "bold yellow")
        out.print(rest)


def print_json(value: Any) -> None:
    """A value as JSON on stdout; infinities as the strings "inf" and "-inf"."""
    typer.echo(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def diagnostic_as_json(diagnostic: Diagnostic, source: Source) -> dict[str, Any]:
    """A diagnostic with its line and column (null where it has no place)."""
    start = diagnostic.span.start
    line, column = source.position(start) if start >= 0 else (None, None)
    return {
        "severity": diagnostic.severity,
        "code": diagnostic.code,
        "message": diagnostic.message,
        "help": diagnostic.help,
        "line": line,
        "column": column,
    }


def facts_as_json(facts: Facts) -> dict[str, Any]:
    """Facts as plain data."""
    return asdict(facts)


def all_facts_as_json(variants: Sequence[Variant], facts: Sequence[Facts]) -> dict[str, Any]:
    """`facts`, null where something has no value or heads differ; then `variants`, too.

    facts: of each variant, or none.  Heads are [start, stop), null for all that follow.
    """
    if len(variants) == 1:
        return {"facts": facts_as_json(facts[0]) if facts else None}
    each = [
        {"heads": [list(heads) for heads in variant.heads], "facts": of}
        for variant, of in zip(variants, map(facts_as_json, facts), strict=False)
    ]
    return {"facts": None, "variants": each}


def print_facts(variants: Sequence[Variant], facts: Sequence[Facts]) -> None:
    """The facts in words, of each variant where heads differ.  facts: of each."""
    from cmask.runtime.variants import heads_in_words

    for variant, of in zip(variants, facts, strict=True):
        if len(variants) > 1:
            console().print(heads_in_words(variant.heads), style="bold")
        if variant.form.clauses or len(variants) == 1:
            print_pairs(facts_in_words(of))
        else:
            console().print("no rule is for them: they see nothing")


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Names and what they are, a line each, in two columns."""
    from rich.text import Text

    out = console()
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        out.print(Text(f"{name:{width}}  ", "dim") + Text(value))


def facts_in_words(facts: Facts) -> list[tuple[str, str]]:
    """Facts as names and text."""
    intervals = "no intervals: grids or residues are masked by bit patterns"
    if facts.max_intervals is not None:
        intervals = f"at most {facts.max_intervals}"
    blocks = f"{facts.full_blocks:,} full, {facts.partial_blocks:,} partial"
    return [
        ("queries × keys", f"{facts.q_len:,} × {facts.kv_len:,}"),
        ("density", f"{facts.density:.4f} ({facts.visible_pairs:,} visible pairs)"),
        ("intervals per row", intervals),
        (
            f"blocks of {facts.block_m} × {facts.block_n}",
            f"{blocks}, {facts.empty_blocks:,} empty",
        ),
        ("useful share", f"{facts.useful_share:.1%} of the pairs in visited blocks"),
        ("bit patterns", f"{facts.num_patterns:,}"),
        ("descriptor", f"{facts.descriptor_bytes:,} bytes"),
        ("sees later tokens", "yes" if facts.looks_ahead else "no"),
    ]


def _plain(value: Any) -> Any:
    """A value of ours as what JSON knows."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return value
