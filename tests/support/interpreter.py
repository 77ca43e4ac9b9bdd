"""Gaps of Triton's interpreter, closed; TRITON_INTERPRET must be set before triton is imported.

1. `range(loaded scalar)`: triton 3.6 calls int() on an array of one element, which NumPy >= 2.4
   refuses.
2. `tl.dot` of bfloat16: triton holds bfloat16 as uint16 and multiplies the integers.
3. A cast of float32 to bfloat16 cuts bits off, which doubles its error: a GPU rounds to nearest.
4. NumPy warns of arithmetic with NaN and infinity; a GPU does not.
"""

from __future__ import annotations

from typing import Any


def mend_interpreter() -> None:
    """Close the gaps; harmless where they are closed already."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor
    builder = interpreter.InterpreterBuilder
    dot = builder.create_dot
    cast = builder.cast_impl
    launch = interpreter.GridExecutor.__call__

    def patch_tensor_and_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def as_float32(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16 or handle.data.dtype != np.uint16:
            return handle
        wide = (handle.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(wide, tl.float32)

    def dot_of_floats(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return dot(self, as_float32(a), as_float32(b), d, *rest)

    def quietly(self: Any, *arguments: Any, **options: Any) -> None:
        with np.errstate(all="ignore"):
            launch(self, *arguments, **options)

    def cast_that_rounds(self: Any, src: Any, dst_type: Any) -> Any:
        if src.dtype.scalar != tl.float32 or dst_type.scalar != tl.bfloat16:
            return cast(self, src, dst_type)
        bits = src.data.view(np.uint32)
        nearest = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16  # ties to even
        data = np.where(np.isnan(src.data), 0x7FC0, nearest).astype(np.uint16)
        return interpreter.TensorHandle(data, tl.bfloat16)

    builder.cast_impl = cast_that_rounds
    interpreter._patch_lang_tensor = patch_tensor_and_index
    builder.create_dot = dot_of_floats
    interpreter.GridExecutor.__call__ = quietly
