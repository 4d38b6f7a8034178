"""How kernels are compiled, as data: threads, stages, and what the machine code then has to show.

Of attention and of quantized products the fastest on an H200 of those that were tried (docs/kernels.md); of the others
as the compiler for sm_90 has it (registers, shared memory, copies in flight).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import torch


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """One way to compile a kernel.

    `blocks_per_sm`: programs that a multiprocessor is to hold at once, which bounds their registers and shared memory.
    `instructions`: what the machine code must contain (HGMMA: warp-group products; LDGSTS: asynchronous copies).
    """

    num_warps: int
    num_stages: int
    blocks_per_sm: int
    instructions: tuple[str, ...] = ()


SPLIT = 512
"""Positions that one program of the decode kernel attends to. Fixed, so that a row's result does not depend on how
many other rows there are."""
MAX_QUERY = 8
"""Queries a sequence, at most, that the decode kernel takes."""
SHARED_POSITIONS = 131_072
"""Positions that have to be read once less before a step leaves its captured graph for it. Computed: at 4 KiB a layer
and position they take 120 us, about what launching a layer's kernels one by one does."""
MOST_PROGRAMS = 4096
"""Programs of a decode launch; beyond them each takes several splits. About ten times what an H200 runs at once."""

MERGE = LaunchConfig(num_warps=1, num_stages=1, blocks_per_sm=16)


def decode_config(dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int, rows: int) -> LaunchConfig:
    """Of the decode kernel, by the types of queries and pages and the rows of a tile."""
    if dtype == torch.float32:
        return LaunchConfig(num_warps=4, num_stages=2, blocks_per_sm=1)
    if head_dim > 128:
        return LaunchConfig(num_warps=8, num_stages=2, blocks_per_sm=1, instructions=("LDGSTS",))
    if kv_dtype != dtype and rows == 16:
        # Each warp loads the queries' fragments anew for every page: half the warps, half of that.
        return LaunchConfig(num_warps=2, num_stages=3, blocks_per_sm=4, instructions=("LDGSTS",))
    return LaunchConfig(num_warps=4, num_stages=3, blocks_per_sm=3 if rows == 16 else 2, instructions=("LDGSTS",))


def prefill_config(dtype: torch.dtype, head_dim: int) -> LaunchConfig:
    """Of the prefill and shared-prefix kernels, by the type of the queries."""
    if dtype == torch.float32:
        return LaunchConfig(num_warps=4, num_stages=2, blocks_per_sm=1)
    num_stages = 2 if head_dim > 128 else 3
    return LaunchConfig(num_warps=8, num_stages=num_stages, blocks_per_sm=1, instructions=("HGMMA", "LDGSTS"))


def prefill_rows(dtype: torch.dtype, head_dim: int) -> int:
    """Query rows of their tiles: what registers hold, and a warp group's 64 or two of them where there is one."""
    if dtype == torch.float32:
        return 16
    return 64 if head_dim > 128 else 128


ACT_BLOCK = 1024
"""Numbers of a row that one program of the gated activation computes."""


def row_config(block: int, *, numbers_per_thread: int = 16) -> LaunchConfig:
    """Of kernels that hold a row, or `block` numbers of it, in registers."""
    num_warps = min(32, max(1, block // (32 * numbers_per_thread)))
    return LaunchConfig(num_warps=num_warps, num_stages=1, blocks_per_sm=min(16, 32 // num_warps))


HEADS = 8
"""Heads of a token that one program of the rotation-and-store kernel takes."""


def rope_store_config(head_dim: int) -> LaunchConfig:
    """Of the rotation-and-store kernel: 16 numbers a thread."""
    num_warps = 2 if head_dim <= 128 else 4
    return LaunchConfig(num_warps=num_warps, num_stages=1, blocks_per_sm=32 // num_warps)


CUTOFF_LANES = 2048
"""Residue classes of which a row's largest entries are kept: a few hundred entries rarely have five in one of them."""
CUTOFF = LaunchConfig(num_warps=8, num_stages=3, blocks_per_sm=2, instructions=("LDGSTS",))
RACE_COUNTERS = 512
"""Random counters, of four tokens each, in one part of a row."""
RACE = LaunchConfig(num_warps=4, num_stages=1, blocks_per_sm=6)
WINNER = LaunchConfig(num_warps=1, num_stages=1, blocks_per_sm=16)
PROBABILITIES_BLOCK = 2048
"""Tokens that one program writes."""
PROBABILITIES = LaunchConfig(num_warps=4, num_stages=1, blocks_per_sm=8)
PENALTIES_BLOCK = 2048
"""Tokens that one program reads and writes."""
PENALTIES = LaunchConfig(num_warps=4, num_stages=1, blocks_per_sm=8)


@dataclass(frozen=True, slots=True)
class Tile:
    """Outputs and rows of a matrix product that one program computes, and how it is compiled."""

    outputs: int
    rows: int
    config: LaunchConfig

    def count(self, num_rows: int, num_outputs: int) -> int:
        """Tiles of a whole product."""
        return -(-num_outputs // self.outputs) * -(-num_rows // self.rows)


FEW_ROWS = 16
"""Rows up to which a product's time is that of reading its weights."""
INPUTS = 128
"""Inputs of a tile of eight-bit weights."""
SPLIT_ROWS = 64
"""Rows up to which tiles of outputs alone may not fill the device, so that inputs are split as well."""
SMALLEST_SPLIT = 1024
"""Inputs of a split, at least."""
MERGE_OUTPUTS = 1024
"""Outputs of a row that one program puts together from its splits."""
MERGE_SPLITS = LaunchConfig(num_warps=4, num_stages=1, blocks_per_sm=8)
_FILLED = 132
"""Programs that keep each of an H200's multiprocessors busy."""


def few_rows_tile(num_rows: int, num_outputs: int, dtype: torch.dtype) -> Tile:
    """Of up to FEW_ROWS rows of `dtype`. Each warp sums up a slice of the inputs; outputs alone decide how many."""
    rows = 8 if num_rows <= 8 else FEW_ROWS
    # Few outputs fill the device with small tiles; wide ones read the rows less often.
    is_small = num_outputs <= 8192
    outputs = 16 if is_small and rows == 8 else 32
    if dtype == torch.float32:
        return Tile(outputs, rows, LaunchConfig(num_warps=4, num_stages=2, blocks_per_sm=1))
    num_stages = 4 if is_small or rows == 8 else 2
    return Tile(outputs, rows, LaunchConfig(4, num_stages, blocks_per_sm=2, instructions=("LDGSTS",)))


_PRODUCT_OF = MappingProxyType({torch.int8: "IGMMA", torch.float8_e4m3fn: "QGMMA"})
"""A warp group's product, by the type of its right operand; HGMMA for any other."""


def many_rows_tile(num_rows: int, num_outputs: int, dtype: torch.dtype, *, is_narrow: bool = False) -> Tile:
    """Of more rows of `dtype`; `is_narrow`: tiles of 128 rows would take too many registers.

    The size of a tile changes no sum's order.
    """
    if dtype == torch.float32:
        return Tile(32, 16, LaunchConfig(num_warps=4, num_stages=2, blocks_per_sm=1))
    instructions = (_PRODUCT_OF.get(dtype, "HGMMA"), "LDGSTS")
    rows = 32 if num_rows <= 32 else 64 if num_rows <= 64 or is_narrow else 128
    small = Tile(64, rows, LaunchConfig(num_warps=4, num_stages=3, blocks_per_sm=2, instructions=instructions))
    if rows == 64:
        wide, least = (
            Tile(128, rows, LaunchConfig(8, num_stages=3, blocks_per_sm=1, instructions=instructions)),
            _FILLED,
        )
    elif rows == 128 and dtype in _PRODUCT_OF:
        # The sums of so many rows go to a single warp group, and pay where there are tiles in plenty.
        wide = Tile(128, rows, LaunchConfig(4, num_stages=3, blocks_per_sm=1, instructions=instructions))
        least = 3 * _FILLED
    else:
        return small
    return wide if wide.count(num_rows, num_outputs) >= least else small


def count_input_splits(tile: Tile, num_rows: int, num_outputs: int, num_inputs: int) -> int:
    """Parts of the inputs that are summed up by programs of their own: by the weight's size, up to SPLIT_ROWS rows."""
    if num_rows > SPLIT_ROWS:
        return 1
    num_tiles = -(-num_outputs // tile.outputs)
    wanted = 1 if num_tiles >= _FILLED else -(-2 * _FILLED // num_tiles)
    return max(1, min(wanted, num_inputs // SMALLEST_SPLIT))


MOE_INPUTS = 64
"""Inputs of a tile of an expert's weights."""
MOE_ROUTE = LaunchConfig(num_warps=4, num_stages=1, blocks_per_sm=4)
MOE_SUM_BLOCK = 1024
"""Numbers of a token that one program adds up."""
MOE_SUM = LaunchConfig(num_warps=4, num_stages=1, blocks_per_sm=8)


def moe_tile(num_pairs: int, num_experts: int, dtype: torch.dtype) -> Tile:
    """Of the products of experts, by the pairs of token and expert; an expert's last tile is filled up."""
    if dtype == torch.float32:
        return Tile(32, 16, LaunchConfig(num_warps=4, num_stages=2, blocks_per_sm=1))
    if num_pairs <= FEW_ROWS * num_experts:
        return Tile(64, FEW_ROWS, LaunchConfig(num_warps=4, num_stages=4, blocks_per_sm=2, instructions=("LDGSTS",)))
    return Tile(64, 64, LaunchConfig(num_warps=4, num_stages=3, blocks_per_sm=2, instructions=("HGMMA", "LDGSTS")))
