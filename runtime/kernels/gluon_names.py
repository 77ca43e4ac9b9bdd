"""Names of Gluon that changed between Triton 3.6 and 3.9, under one spelling."""

from typing import Any

from triton.experimental.gluon.language import _core
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.language.core import _aggregate

aggregate: Any = _aggregate
load_block: Any = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_block: Any = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@_core.builtin
def reinterpret(buffer: Any, dtype: Any, shape: Any, layout: Any, _semantic: Any = None) -> Any:
    """The same shared memory seen as another type, shape and layout."""
    method = getattr(buffer, "reinterpret", None) or buffer._reinterpret
    return method(dtype, shape, layout, _semantic=_semantic)
