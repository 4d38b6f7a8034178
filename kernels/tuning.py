"""How kernels are compiled, as data: threads, stages, and what the machine code then has to show.

Chosen with the compiler for sm_90 alone (registers, shared memory, copies in flight); not yet measured on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Config:
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
MOST_PROGRAMS = 4096
"""Programs of a decode launch; beyond them each takes several splits. About ten times what an H200 runs at once."""

MERGE = Config(num_warps=1, num_stages=1, blocks_per_sm=16)


def decode_config(dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int, rows: int) -> Config:
    """Of the decode kernel, by the types of queries and pages and the rows of a tile."""
    if dtype == torch.float32:
        return Config(num_warps=4, num_stages=2, blocks_per_sm=1)
    if head_dim > 128:
        return Config(num_warps=8, num_stages=2, blocks_per_sm=1, instructions=("LDGSTS",))
    if kv_dtype != dtype:
        # Pages of half the size: one more on its way makes up for the block less.
        return Config(num_warps=4, num_stages=4, blocks_per_sm=2, instructions=("LDGSTS",))
    return Config(num_warps=4, num_stages=3, blocks_per_sm=3 if rows == 16 else 2, instructions=("LDGSTS",))


def prefill_config(dtype: torch.dtype, head_dim: int) -> Config:
    """Of the prefill and shared-prefix kernels, by the type of the queries."""
    if dtype == torch.float32:
        return Config(num_warps=4, num_stages=2, blocks_per_sm=1)
    num_stages = 2 if head_dim > 128 else 3
    return Config(num_warps=8, num_stages=num_stages, blocks_per_sm=1, instructions=("HGMMA", "LDGSTS"))


def prefill_rows(dtype: torch.dtype, head_dim: int) -> int:
    """Query rows of their tiles: what registers hold, and a warp group's 64 or two of them where there is one."""
    if dtype == torch.float32:
        return 16
    return 64 if head_dim > 128 else 128
