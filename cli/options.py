"""The options that commands share, as annotated types."""

from __future__ import annotations

from typing import Annotated

import typer

from cmask.cli.values import ValueFault, parse_count


def _tokens(text: str) -> int:
    try:
        return parse_count(text)
    except ValueFault as fault:
        raise typer.BadParameter(str(fault)) from None


MaskFile = Annotated[
    str, typer.Argument(metavar="FILE", help="A .cmask file, or the name of a mask that ships.")
]
Seq = Annotated[
    int | None,
    typer.Option(
        parser=_tokens,
        metavar="N",
        help="Sequence length that gives sizes their defaults: 32k, 1M; 4k if left out.",
        show_default=False,
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="NAME=VALUE",
        help="A size: prompt=8k or answer=3k,3k,4k; repeat for more.",
        show_default=False,
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="A parameter or table: radius=8 or cut=table.npy; repeat for more.",
        show_default=False,
    ),
]
Head = Annotated[
    int | None,
    typer.Option(
        "--head",
        min=0,
        metavar="H",
        help="The query head whose mask is meant, where a mask has rules for some heads.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
