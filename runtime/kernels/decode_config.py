"""Block shapes of the decode kernel, and into how many shares it cuts the keys.

Nothing is timed: shapes come from a list by their shared memory, shares from a count of programs.
Neither has been compared with others on a GPU.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

from cmask.runtime.kernels.budget import ITEMSIZE, padded_dim

MAX_SPLITS = 64
PARTIAL_MIB = 128  # that partial results may take
_PROGRAMS_OF_PROCESSOR = 2  # that fit on a multiprocessor together
_LEAST_BLOCKS = 4  # of a share: less does not pay for its partial result
_SHARE_COST = 2  # [blocks] starting a program, and its partial result
_MERGE_COST = 4  # [blocks] the second launch
_RAGGED_SPLITS = 16  # at least, where one sequence may be much longer than the others
_RAGGED_BLOCKS = 16  # of such a share at least
_SCRATCH = 6144  # [bytes] reductions over warps


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """Block shape and launch parameters of the decode kernel.

    A program holds `block_m` packed rows (the query heads of a key head, times the queries) and
    walks their keys `block_n` at a time, `num_stages` - 1 blocks of keys and values in flight
    while it works on another.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int

    def shared_memory_bytes(self, *, head_dim: int, v_head_dim: int, itemsize: int) -> int:
        """Keys and values in flight, the queries, the weights of one block, scratch.

        From 64 rows on Hopper multiplies from shared memory: the block worked on is there, too.
        """
        both = (padded_dim(head_dim) + padded_dim(v_head_dim)) * itemsize
        held = self.block_m * (padded_dim(head_dim) + self.block_n) * itemsize
        blocks = self.num_stages - (self.block_m < 64)
        return held + max(1, blocks) * self.block_n * both + _SCRATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLaunch:
    """What a launch takes besides tensors; flat for the custom operator.

    num_splits    shares of the keys of each packed block
    least_blocks  that a share holds, so that short sequences have fewer shares
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    num_splits: int
    least_blocks: int

    def integers(self) -> list[int]:
        """The fields in their order."""
        return list(astuple(self))

    @staticmethod
    def from_integers(integers: list[int]) -> DecodeLaunch:
        """The inverse of `integers`."""
        names = (each.name for each in fields(DecodeLaunch))
        return DecodeLaunch(**dict(zip(names, integers, strict=True)))


# (block_n, num_stages): the first that fits
_HALF = ((64, 3), (64, 2), (32, 3), (32, 2), (16, 2), (16, 1))
_FLOAT32 = ((16, 2), (16, 1))


def choose_decode_config(
    *,
    packed_rows: int,
    dtype: str,
    head_dim: int,
    v_head_dim: int,
    page_size: int,
    shared_memory_limit: int,
) -> DecodeConfig:
    """The first configuration of the list that fits: same question, same answer.

    packed_rows: query heads of a key head, times queries.
    dtype: "bfloat16", "float16" or "float32".
    page_size: [keys] of a paged cache; 0 for a contiguous one.
    shared_memory_limit: [bytes] that one program of the device may have.
    """
    is_wide = max(padded_dim(head_dim), padded_dim(v_head_dim)) > 128
    # an address for each key of a block, or twice as many sums, fill a thread's registers
    is_large = is_wide or page_size % 64 > 0
    most = 16 if dtype == "float32" else 32 if is_large else 64
    block_m = min(most, max(16, 1 << (packed_rows - 1).bit_length()))
    for block_n, stages in _FLOAT32 if dtype == "float32" else _HALF:
        if is_large and block_n > 32:
            continue
        config = DecodeConfig(
            block_m=block_m,
            block_n=block_n,
            num_warps=4 if block_m == 16 and not is_wide and dtype != "float32" else 8,
            num_stages=stages,
        )
        needed = config.shared_memory_bytes(
            head_dim=head_dim, v_head_dim=v_head_dim, itemsize=ITEMSIZE[dtype]
        )
        if needed <= shared_memory_limit:
            return config
    raise ValueError(
        f"no configuration of the decode kernel fits {shared_memory_limit} bytes of shared memory "
        f"with head_dim {head_dim}, v head_dim {v_head_dim} and {dtype}"
    )


def choose_splits(
    *, programs: int, blocks: int, processors: int, is_ragged: bool, share_bytes: int
) -> tuple[int, int]:
    """(num_splits, least_blocks): the cheapest by a count of blocks, the fewest of equals.

    programs: packed blocks, over batch and key heads.  blocks: that the longest of them walks.
    is_ragged: sequences may be much shorter than that, which only the device knows.
    share_bytes: what the partial results of one share of all programs take.
    """
    least = _RAGGED_BLOCKS if is_ragged else _LEAST_BLOCKS
    most = min(MAX_SPLITS, -(-blocks // least), (PARTIAL_MIB << 20) // max(1, share_bytes))
    at_once = _PROGRAMS_OF_PROCESSOR * processors
    cheapest, chosen = float("inf"), 1
    for splits in range(1, most + 1):
        waves = -(-programs * splits // at_once)
        cost = waves * (-(-blocks // splits) + _SHARE_COST) + _MERGE_COST * (splits > 1)
        if cost < cheapest:
            cheapest, chosen = cost, splits
    if is_ragged:
        chosen = max(chosen, min(_RAGGED_SPLITS, most))
    return chosen, least
