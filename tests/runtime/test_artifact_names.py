"""An artifact whose names do not fit together is refused when it is loaded, not at `bind`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cmask.compiler.options import CompileOptions
from cmask.compiler.pipeline import compile_source
from cmask.grammar.source import Source
from cmask.runtime.artifact import ArtifactError, read_artifact, write_artifact
from cmask.runtime.schema import Body


@pytest.fixture
def body() -> Body:
    text = "mask small { region text; text sees text: causal }"
    source = Source("small.cmask", text)
    return read_artifact(compile_source(source, CompileOptions(sizes={"text": 4})).artifact)


def test_a_given_name_has_a_value(body: Body) -> None:
    assert body.given == ("text",)
    for broken in (replace(body, given=("text", "other")), replace(body, names={})):
        with pytest.raises(ArtifactError, match="without a value"):
            read_artifact(write_artifact(broken))
