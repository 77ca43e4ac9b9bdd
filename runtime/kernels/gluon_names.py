"""Names of Gluon that changed between Triton 3.6 and 3.9, under one spelling."""

from typing import Any

from triton._C.libtriton import ir
from triton.experimental.gluon.language import _core
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.language.core import _aggregate

aggregate: Any = _aggregate
load_block: Any = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_block: Any = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@_core.builtin
def _add_block(descriptor: Any, place: Any, buffer: Any, _semantic: Any = None) -> None:
    """Add a block of shared memory to global memory by TMA (cp.reduce.async.bulk.tensor)."""
    place = _semantic._convert_to_ir_values(place, require_i64=False)
    kind = ir.DESCRIPTOR_REDUCE_KIND.ADD
    _semantic.builder.create_async_tma_reduce(kind, descriptor.handle, place, buffer.handle)


add_block: Any = getattr(tma, "async_atomic_add", None) or _add_block


@_core.builtin
def reinterpret(buffer: Any, dtype: Any, shape: Any, layout: Any, _semantic: Any = None) -> Any:
    """The same shared memory seen as another type, shape and layout."""
    method = getattr(buffer, "reinterpret", None) or buffer._reinterpret
    return method(dtype, shape, layout, _semantic=_semantic)
