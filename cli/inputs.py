"""A file and its options -> what the compiler takes, and the compiler's answer or an exit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from cmask.cli.report import MASK_IS_WRONG, CommandFault, print_diagnostics
from cmask.cli.values import ValueFault, parse_assignment

if TYPE_CHECKING:
    from cmask.compiler.options import CompileOptions
    from cmask.grammar.source import Source
    from cmask.runtime.derive.bound import BoundMask

DEFAULT_SEQ = 4096

T = TypeVar("T")


def read_source(file: str) -> Source:
    """The text of a .cmask file or of a shipped mask, which goes by its bare name."""
    from cmask import masks
    from cmask.grammar.source import Source

    path = Path(file)
    name = file
    if not path.is_file() and file.removesuffix(".cmask") in masks.names():
        path = masks.path(file.removesuffix(".cmask"))
        name = path.name
    if path.suffix == ".cmaskc" and path.is_file():
        raise CommandFault(f"{file} is an artifact; `cmask inspect {file}` reads it")
    try:
        return Source(name=name, text=path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CommandFault(f"there is no file {file}{_suggestion(file)}") from None
    except UnicodeDecodeError:
        raise CommandFault(f"{file} is not text in UTF-8", MASK_IS_WRONG) from None
    except OSError as error:
        raise CommandFault(f"{file} cannot be read: {error.strerror}") from None


def _suggestion(file: str) -> str:
    import difflib

    from cmask import masks

    if Path(file).name != file:
        return ""
    close = difflib.get_close_matches(file.removesuffix(".cmask"), masks.names(), n=1)
    hint = f"did you mean `{close[0]}`? " if close else ""
    return f" and no shipped mask of that name; {hint}`cmask list` names them"


def read_options(
    seq: int | None,
    sizes: Sequence[str] | None,
    params: Sequence[str] | None,
    *,
    symbolic: bool = False,
) -> CompileOptions:
    """The compiler's options.

    Without `--seq` the length is 4,096: masks whose sizes do not follow from it ignore it.
    """
    from pydantic import ValidationError

    from cmask.compiler.options import CompileOptions

    given: dict[str, Any] = {}
    for text in (*(sizes or ()), *(params or ())):
        try:
            name, value = parse_assignment(text)
        except ValueFault as fault:
            raise CommandFault(str(fault)) from None
        if name in given:
            raise CommandFault(f"`{name}` is given twice")
        given[name] = value
    try:
        return CompileOptions(
            seq=DEFAULT_SEQ if seq is None else seq, sizes=given, symbolic=symbolic
        )
    except ValidationError as error:
        raise CommandFault("; ".join(e["msg"] for e in error.errors())) from None


def or_exit(source: Source, stage: Callable[[], T]) -> T:
    """What a stage of the compiler makes; where the text is wrong, its faults and exit code 1."""
    from cmask.grammar.diagnostic import CmaskError

    try:
        return stage()
    except CmaskError as error:
        print_diagnostics(error.diagnostics, source)
        raise typer.Exit(MASK_IS_WRONG) from None


def bind_file(source: Source, options: CompileOptions, head: int | None) -> BoundMask:
    """The mask of a file at its sizes, of a query head where heads differ."""
    from cmask.compiler.pipeline import bind_source, heads_of_source
    from cmask.runtime.variants import heads_in_words

    if head is None:
        heads = or_exit(source, lambda: heads_of_source(source))
        if len(heads) > 1:
            kinds = "; ".join(map(heads_in_words, heads))
            raise CommandFault(f"the mask has rules for some heads ({kinds}): give --head H")
        head = 0
    chosen = head
    return or_exit(source, lambda: bind_source(source, options, chosen))
