"""Run `cmask` within this process, as a person would, 80 columns wide and without colours."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from cmask.cli.main import app

PLAIN = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What was printed, read as JSON."""
        return json.loads(self.out)


def run_cmask(*arguments: str, environment: Mapping[str, str] = PLAIN) -> Outcome:
    """The outcome of `cmask ARGUMENTS`; an exception that escapes the command escapes here too."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with patch.dict(os.environ, environment), redirect_stdout(out), redirect_stderr(err):
        try:
            app(list(arguments), prog_name="cmask")
        except SystemExit as exit_:
            code = exit_.code or 0
    assert isinstance(code, int)
    return Outcome(code, out.getvalue(), err.getvalue())
