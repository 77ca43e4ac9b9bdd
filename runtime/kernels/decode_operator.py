"""`cmask::decode` as torch sees it: tensors and numbers in, tensors out, without a gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from cmask.runtime.kernels.decode_config import DecodeLaunch
from cmask.runtime.kernels.decode_rows import Decoding
from cmask.runtime.kernels.operator import empty_lse, empty_output, on_device_of

_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor bounds, Tensor? kv_lens, Tensor? kv_starts, "
    "Tensor? page_table, int[] integers, float softmax_scale, str kernel) -> (Tensor, Tensor)"
)


def decode_by(
    decoding: Decoding,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float,
    *,
    lists: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
    is_plain: bool,
) -> tuple[Tensor, Tensor]:
    """(out, lse); k and v are [batch or 1 or pages, kv heads, keys or page size, dim].

    lists: kv_lens, kv_starts, page_table.
    is_plain: torch would only look on, so that the operator can be left out.
    """
    if lists[2] is None and k.shape[0] != q.shape[0]:
        k = k.expand(q.shape[0], -1, -1, -1)
    if lists[2] is None and v.shape[0] != q.shape[0]:
        v = v.expand(q.shape[0], -1, -1, -1)
    run = run_decode if is_plain else decode
    out, lse = run(
        q, k, v, decoding.bounds, *lists, decoding.integers, softmax_scale, decoding.kernel
    )
    return out, lse


@torch.library.custom_op("cmask::decode", mutates_args=(), schema=_SCHEMA)
def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: Tensor,
    kv_lens: Tensor | None,
    kv_starts: Tensor | None,
    page_table: Tensor | None,
    integers: list[int],
    softmax_scale: float,
    kernel: str,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of q by the rows of `bounds`; k and v have heads in their second dimension."""
    return run_decode(
        q, k, v, bounds, kv_lens, kv_starts, page_table, integers, softmax_scale, kernel
    )


@decode.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: Tensor,
    kv_lens: Tensor | None,
    kv_starts: Tensor | None,
    page_table: Tensor | None,
    integers: list[int],
    softmax_scale: float,
    kernel: str,
) -> tuple[Tensor, Tensor]:
    return empty_output(q, v), empty_lse(q)


def run_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: Tensor,
    kv_lens: Tensor | None,
    kv_starts: Tensor | None,
    page_table: Tensor | None,
    integers: list[int],
    softmax_scale: float,
    kernel: str,
) -> tuple[Tensor, Tensor]:
    """What the operator does, for eager calls that need nothing of what torch adds to it."""
    out = empty_output(q, v)
    lists = (bounds,) if page_table is None else (bounds, page_table)
    if any(0 in x.shape for x in (q, k, v, *lists)):
        return out.zero_(), empty_lse(q).fill_(-torch.inf)
    inputs = (q, k, v, bounds, kv_lens, kv_starts, page_table)
    if kernel == "reference":
        from cmask.runtime.kernels import decode_reference

        return out, decode_reference.forward(*inputs, softmax_scale, out=out)
    from cmask.runtime.kernels import decode_launch

    launch = DecodeLaunch.from_integers(integers)
    with on_device_of(q):
        return out, decode_launch.forward(*inputs, launch, softmax_scale, out=out)
