"""Times decoding on the GPU that is there: share of the copy bandwidth, beside SDPA and Flex.

In tests/: python -m support.measure_decode [--batch 1,8,64] [--keys 4096,32768,131072]
           [--rows 1] [--heads 64,8] [--page 64] [--json out.json]
Each call has caches of its own, more than L2 holds; calls of one column are one CUDA graph, the
columns are timed in turn, medians of `ROUNDS`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from cmask.runtime import attention, decode
from support.attending import plan_of

HEAD_DIM, ROUNDS, WINDOW = 128, 9, 4096
NOT_IN_L2 = 256 << 20  # [bytes]
MASKS = {"causal": "causal", "window": f"window({WINDOW - 1}, 0)"}
Call = Callable[[Tensor, Tensor, Tensor], Any]


def copy_bandwidth() -> float:
    """Bytes read and written a second by a copy of 2 GiB."""
    source = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    seconds = statistics.median(_seconds(lambda: target.copy_(source)) for _ in range(ROUNDS))
    return 2 * source.numel() / seconds


def calls(mask: str, rows: int, keys: int, batch: int, page: int) -> dict[str, Call]:
    """What is compared; each takes q, k, v [batch, heads, tokens, dim]."""
    body = f"query region q align end; key region k; q sees k: {MASKS[mask]}"
    plan = plan_of(body, q=rows, k=keys)
    whole = plan_of(f"region text; text sees text: {MASKS[mask]}", text=keys)
    lens = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
    pages = torch.randperm(batch * keys // page, device="cuda", dtype=torch.int32)
    table = pages.reshape(batch, -1)

    def in_pages(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = k.shape[1]
        pools = (x.view(-1, page, heads, HEAD_DIM) for x in (k, v))  # the same bytes as pages
        return decode(q, *pools, whole, kv_lens=lens, page_table=table)

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        position = i + keys - rows
        return (j <= position) & (j > position - (WINDOW if mask == "window" else keys))

    blocks = create_block_mask(visible, None, None, rows, keys, device="cuda")
    flex = torch.compile(flex_attention)
    found: dict[str, Call] = {
        "cmask": lambda q, k, v: attention(q, k, v, plan, kernel="decode"),
        f"cmask pages of {page}": in_pages,
        "flex": lambda q, k, v: flex(q, k, v, block_mask=blocks, enable_gqa=True),
    }
    if mask == "causal" and rows == 1:
        sdpa = torch.nn.functional.scaled_dot_product_attention
        found["sdpa"] = lambda q, k, v: sdpa(q, k, v, enable_gqa=True)
    return found


def measure(mask: str, rows: int, keys: int, batch: int, heads: tuple[int, int], page: int) -> Any:
    """Seconds of one call of each column, and the bytes of keys and values that it needs."""
    needed = min(keys, WINDOW + rows - 1 if mask == "window" else keys)
    num_bytes = 2 * batch * heads[1] * needed * HEAD_DIM * 2
    held = 2 * batch * heads[1] * keys * HEAD_DIM * 2
    copies = max(1, min(-(-NOT_IN_L2 // num_bytes), (32 << 30) // held))
    q = torch.randn(batch, heads[0], rows, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    caches = torch.randn(copies, 2, batch, heads[1], keys, HEAD_DIM, dtype=q.dtype, device="cuda")
    graphs, expected = {}, None
    for name, call in calls(mask, rows, keys, batch, page).items():
        try:
            out = call(q, *caches[0])
            if "pages" not in name:  # pages hold the same bytes in another order
                expected = out if expected is None else expected
                assert (out - expected).abs().max() < 2e-2, f"{name} differs"
            graphs[name] = _captured(lambda call=call: [call(q, *kv) for kv in caches])
        except Exception as error:
            sys.stdout.write(f"{name}: {type(error).__name__}: {str(error)[:200]}\n")
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            times[name].append(_seconds(graph.replay) / copies)
    return num_bytes, {name: statistics.median(each) for name, each in times.items()}


def _captured(step: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def _seconds(step: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    step()
    begin.record()
    step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


@torch.no_grad()
def main() -> None:
    """A line per mask and shape."""
    numbers = lambda text: [int(x) for x in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=numbers, default=[1, 8, 64])
    parser.add_argument("--keys", type=numbers, default=[4096, 32768, 131072])
    parser.add_argument("--rows", type=numbers, default=[1])
    parser.add_argument("--heads", type=numbers, default=[64, 8])
    parser.add_argument("--page", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bandwidth, found = copy_bandwidth(), []
    versions = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    sys.stdout.write(f"{versions}, copy {bandwidth / 1e12:.2f} TB/s\n")
    shapes = [
        (mask, rows, keys, batch)
        for mask in MASKS for rows in options.rows for keys in options.keys
        for batch in options.batch
    ]  # fmt: skip
    for mask, rows, keys, batch in shapes:
        num_bytes, times = measure(mask, rows, keys, batch, tuple(options.heads), options.page)
        shares = {name: num_bytes / t / bandwidth for name, t in times.items()}
        line = "  ".join(f"{n} {1e6 * t:.0f} µs {shares[n]:.2f}" for n, t in times.items())
        sys.stdout.write(f"{mask} rows {rows} keys {keys} batch {batch}: {line}\n")
        sys.stdout.flush()
        found.append({"mask": mask, "rows": rows, "keys": keys, "batch": batch, "seconds": times,
                      "share_of_copy": shares})  # fmt: skip
        torch._dynamo.reset()
    if options.json:
        options.json.write_text(json.dumps({"device": versions, "copy": bandwidth, "runs": found}))


if __name__ == "__main__":
    main()
