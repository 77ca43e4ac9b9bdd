"""Artifact bytes <-> checked contents.

Reading trusts nothing: after it returns, every array has the shape that its sizes demand and
every index in it lies within bounds, so that no kernel can be led outside its tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from cmask.runtime.closed_form import (
    Clause,
    ClosedForm,
    Group,
    Limit,
    Order,
    Placement,
    Region,
    RowTable,
    Tree,
)
from cmask.runtime.derive.sizes import walk
from cmask.runtime.descriptor import Descriptor
from cmask.runtime.expressions import Entry
from cmask.runtime.kernels.config import MOST_STAGES, WARPS
from cmask.runtime.schema import (
    FORMAT_VERSION,
    FORMAT_VERSION_WITH_HEADS,
    Body,
    FormatError,
    StoredBlocks,
    StoredConfig,
    decode,
    encode,
)
from cmask.runtime.variants import has_heads, variants_of

_MAX_BYTES = 1 << 30


class ArtifactError(ValueError):
    """An artifact that cannot be used, in one sentence."""


def write_artifact(body: Body) -> bytes:
    """The bytes of an artifact; equal contents give equal bytes."""
    packed = msgpack.packb(encode(body), use_bin_type=True)
    version = _version_of(body.closed_form)
    return bytes(
        msgpack.packb(
            {"format_version": version, "checksum": _checksum(packed), "body": packed},
            use_bin_type=True,
        )
    )


def _version_of(form: ClosedForm) -> int:
    return FORMAT_VERSION_WITH_HEADS if has_heads(form) else FORMAT_VERSION


def read_artifact(data: bytes) -> Body:
    """The contents of an artifact; raises `ArtifactError`."""
    outer = _unpack(data, "this is not a cmask artifact")
    if not isinstance(outer, dict) or "format_version" not in outer:
        raise ArtifactError("this is not a cmask artifact: compile the mask again")
    version = outer["format_version"]
    if version not in (FORMAT_VERSION, FORMAT_VERSION_WITH_HEADS):
        raise ArtifactError(
            f"the artifact has format version {version!r}, this runtime reads {FORMAT_VERSION} and "
            f"{FORMAT_VERSION_WITH_HEADS}: compile the mask again with the cmask that runs it"
        )
    packed = outer.get("body")
    if not isinstance(packed, bytes) or outer.get("checksum") != _checksum(packed):
        raise ArtifactError(
            "the artifact is damaged (its checksum differs): compile the mask again"
        )
    try:
        body: Body = decode(_unpack(packed, "the artifact is damaged"), Body)
        check_closed_form(body.closed_form)
        _check_variants(body, version)
        for blocks in (*body.descriptors, *(b for v in body.variants for b in v.descriptors)):
            check_blocks(blocks)
        for config in body.configs:
            check_config(config)
        if not set(body.given) <= body.names.keys():
            raise FormatError("a name was given without a value")
    except (FormatError, RecursionError) as error:
        raise ArtifactError(
            f"the artifact is malformed ({error}): compile the mask again"
        ) from None
    return body


def _check_variants(body: Body, version: int) -> None:
    if version != _version_of(body.closed_form):
        raise FormatError(f"format version {version} does not go with its rules")
    if body.variants and len(body.variants) != len(variants_of(body.closed_form)):
        raise FormatError("heads do not have as many masks as their rules make")


def _unpack(data: bytes, message: str) -> Any:
    if len(data) > _MAX_BYTES:
        raise ArtifactError(f"an artifact of {len(data):,} bytes is larger than any that is made")
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, msgpack.UnpackException, RecursionError):
        raise ArtifactError(f"{message}: compile the mask again") from None


def _checksum(packed: bytes) -> bytes:
    return hashlib.blake2b(packed, digest_size=16).digest()


def check_closed_form(form: ClosedForm) -> None:
    """Names refer to what exists; raises `FormatError`."""
    items = list(walk(form.layout))
    regions = {i.name for i in items if isinstance(i, Region)}
    groups = {i.name for i in items if isinstance(i, Group)}
    if len(regions) + len(groups) != len(items):
        raise FormatError("two regions or groups have one name")
    for item in items:
        if isinstance(item, Region):
            _check_region(item)
    for clause in form.clauses:
        _check_clause(clause, regions, groups, max(1, len(form.rule_texts)))
    tables = {table.name for table in form.tables}
    for table in form.tables:
        if not set(table.users) <= regions:
            raise FormatError("a table names a region that is not there")
    if not set(_tables_of(form)) <= tables:
        raise FormatError("a rule names a table that is not there")


def _check_clause(clause: Clause, regions: set[str], groups: set[str], num_rules: int) -> None:
    if not set(clause.queries) | set(clause.keys) <= regions:
        raise FormatError("a rule names a region that is not there")
    if clause.scope is not None and clause.scope not in groups:
        raise FormatError("a rule names a group that is not there")
    if not 0 <= clause.rule < num_rules:
        raise FormatError("a clause belongs to no rule")
    if clause.heads is not None and not 0 <= clause.heads[0] < clause.heads[1]:
        raise FormatError("a rule is for no head")


def _tables_of(form: ClosedForm) -> Iterator[str]:
    for clause in form.clauses:
        for test in clause.tests:
            match test:
                case RowTable(table=table) | Tree(table=table):
                    yield table
                case Limit(low=low, high=high):
                    yield from (e.table for e in (low, high) if e is not None and e.table)
    for item in walk(form.layout):
        if isinstance(item, Region) and item.placement is not None:
            position = item.placement.position
            if isinstance(position, Entry):
                yield position.table


def _check_region(region: Region) -> None:
    if region.side not in ("both", "query", "key"):
        raise FormatError(f"a region cannot stand on the side {region.side!r}")
    if region.placement is not None and region.placement.kind not in ("at", "from", "align_end"):
        raise FormatError(f"{Placement.__name__} {region.placement.kind!r} is unknown")
    if any(axis.name is None and axis.size is None for axis in region.axes):
        raise FormatError("an axis needs a name or a size")
    ranks = {"raster": 0, "auto": 0, "mod": 1, "tile": max(1, len(region.axes))}
    if ranks.get(region.order.kind) != len(region.order.sizes):
        raise FormatError(f"{Order.__name__} {region.order.kind!r} is unknown")


def check_config(config: StoredConfig) -> None:
    """Numbers that a kernel can be launched with; raises `FormatError`."""
    _check_block(config)
    if config.num_warps not in WARPS or not 1 <= config.num_stages <= MOST_STAGES:
        raise FormatError("a configuration needs warps by a power of two, and 1 to 8 stages")
    if not 1 <= config.head_dim < 2**31 or not 1 <= config.l2_mib < 2**20:
        raise FormatError("a configuration needs a head dimension and a budget of L2")


def check_blocks(blocks: StoredBlocks) -> None:
    """Every array fits its sizes and every index lies within bounds; raises `FormatError`."""
    _check_block(blocks)
    if not (0 <= blocks.q_len < 2**31 and 0 <= blocks.kv_len < 2**31):
        raise FormatError("lengths must fit 31 bits")
    owners, others = -(-blocks.q_len // blocks.block_m), -(-blocks.kv_len // blocks.block_n)
    _check_lists(blocks.full_offsets, blocks.full_runs, owners, (others, others + 1))
    _check_lists(blocks.bounds_offsets, blocks.bounds_runs, owners, (others, others + 1))
    num_patterns = len(blocks.patterns)
    _check_lists(blocks.pattern_offsets, blocks.pattern_blocks, owners, (others, num_patterns))
    if len(blocks.bounds_runs) and len(blocks.pattern_blocks):
        raise FormatError("blocks are masked by row bounds or by patterns, not by both")
    if blocks.patterns.shape != (num_patterns, blocks.block_m, 4):
        raise FormatError("patterns must be [count, block_m, 4]")
    if not np.array_equal(np.sort(blocks.order), np.arange(owners)):
        raise FormatError("the order must name each query block once")
    for runs in (blocks.full_runs, blocks.bounds_runs, blocks.unread_runs):
        if runs.ndim != 2 or runs.shape[1] != 2 or (runs[:, 0] >= runs[:, 1]).any():
            raise FormatError("a run must hold a block")
    if (blocks.full_runs[:, 1].astype(np.int64) * blocks.block_n > blocks.kv_len).any():
        raise FormatError("a full block must lie within the keys")
    if blocks.unread_runs.size and (
        blocks.unread_runs.min() < 0 or blocks.unread_runs.max() > others * blocks.block_n
    ):
        raise FormatError("unread keys must lie within the keys")


def _check_block(of: StoredBlocks | StoredConfig) -> None:
    for name in ("block_m", "block_n"):
        if getattr(of, name) not in (8, 16, 32, 64, 128):
            raise FormatError(f"{name} must be 8, 16, 32, 64 or 128")


def _check_lists(
    offsets: NDArray[np.int32], entries: NDArray[np.int32], owners: int, limits: tuple[int, int]
) -> None:
    if offsets.shape != (owners + 1,) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise FormatError("offsets must ascend from 0, one per query block and one more")
    if entries.ndim != 2 or entries.shape[1] != 2 or len(entries) != offsets[-1]:
        raise FormatError("offsets must end at the number of entries")
    if entries.size and (entries.min() < 0 or (entries.max(axis=0) >= limits).any()):
        raise FormatError("a block or pattern lies out of bounds")


def store(descriptor: Descriptor) -> StoredBlocks:
    """A descriptor as it is stored."""
    lists = descriptor.by_query
    unread = np.flatnonzero(np.diff(np.concatenate([[1], descriptor.key_is_read, [1]])) != 0)
    return StoredBlocks(
        block_m=descriptor.block_m,
        block_n=descriptor.block_n,
        q_len=descriptor.q_len,
        kv_len=descriptor.kv_len,
        full_offsets=lists.full_offsets,
        full_runs=lists.full_runs,
        bounds_offsets=lists.bounds_offsets,
        bounds_runs=lists.bounds_runs,
        pattern_offsets=lists.pattern_offsets,
        pattern_blocks=lists.pattern_blocks,
        order=lists.order,
        patterns=descriptor.patterns,
        unread_runs=unread.reshape(-1, 2).astype(np.int32),
    )
