"""Other descriptors of the same mask, for tests that want them to make no difference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cmask.runtime.descriptor import BlockLists, Descriptor


def without_full_blocks(descriptor: Descriptor) -> Descriptor:
    """The same mask with every full block called partial; its masking must be by bounds."""
    return replace(
        descriptor,
        by_query=_without_full(descriptor.by_query),
        by_key=_without_full(descriptor.by_key),
    )


def _without_full(lists: BlockLists) -> BlockLists:
    runs: list[tuple[int, int]] = []
    offsets = [0]
    for owner in range(len(lists.full_offsets) - 1):
        blocks = sorted(
            block
            for starts, pairs in (
                (lists.full_offsets, lists.full_runs),
                (lists.bounds_offsets, lists.bounds_runs),
            )
            for first, stop in pairs[starts[owner] : starts[owner + 1]]
            for block in range(first, stop)
        )
        for block in blocks:
            if len(runs) > offsets[-1] and runs[-1][1] == block:
                runs[-1] = (runs[-1][0], block + 1)
            else:
                runs.append((block, block + 1))
        offsets.append(len(runs))
    return replace(
        lists,
        full_offsets=np.zeros_like(lists.full_offsets),
        full_runs=np.zeros((0, 2), np.int32),
        bounds_offsets=np.array(offsets, np.int32),
        bounds_runs=np.array(runs, np.int32).reshape(-1, 2),
    )
