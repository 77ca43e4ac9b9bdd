"""Golden vectors: the whole mask at small sizes, made from the specification."""

from __future__ import annotations

import numpy as np

from cmask.compiler import semantics
from cmask.compiler.ir import ResolvedMask
from cmask.runtime.closed_form import ClosedForm
from cmask.runtime.derive.layout import lay_out
from cmask.runtime.derive.sizes import BindError, bind_names
from cmask.runtime.expressions import ExpressionError, Value
from cmask.runtime.schema import Golden
from cmask.runtime.variants import variants_of

_LENGTHS = (32, 48, 64)
_MOST_TOKENS = 80


def make_goldens(mask: ResolvedMask, form: ClosedForm) -> tuple[Golden, ...]:
    """One golden vector, if the defaults of the sizes block give a small mask.

    Where heads differ, one for the first head of each variant.
    """
    heads = [variant.heads[0][0] for variant in variants_of(form)]
    for seq in _LENGTHS:
        try:
            names = bind_names(form, seq=seq)
            layout = lay_out(form, names)
            if 0 < max(layout.q_len, layout.kv_len) <= _MOST_TOKENS:
                return tuple(_golden(mask, names, head) for head in heads)
        except (BindError, ExpressionError):  # a table or a size without a default
            continue
    return ()


def _golden(mask: ResolvedMask, names: dict[str, Value], head: int) -> Golden:
    bits = semantics.dense(mask, names, head)
    packed = np.packbits(bits.reshape(-1)).tobytes()
    return Golden(names, bits.shape[0], bits.shape[1], packed, head)
