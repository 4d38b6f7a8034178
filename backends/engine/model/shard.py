"""One rank's share of a model whose layers are divided among several devices (Shoeybi et al., 2019, Megatron-LM).

A layer that reads the whole hidden state is cut by its outputs, the one behind it by its inputs, after which the
ranks' results are added up. Where a model is not divided, the one rank's share is everything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from backends.engine.model.config import ModelConfig

Split = Literal["outputs", "inputs"]


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True, slots=True)
class Shard:
    """Number `rank` of `count`; `add_up` returns the sum of the ranks' tensors, to each of them the same bits."""

    rank: int = 0
    count: int = 1
    add_up: Callable[[Tensor], Tensor] = _unchanged

    def part(self, size: int, unit: int = 1) -> slice:
        """This rank's share of `size` neighbours, at least `unit` of them, which ranks then have in common."""
        length = max(size // self.count, unit)
        start = self.rank * size // self.count // length * length
        return slice(start, start + length)


@dataclass(frozen=True, slots=True)
class WeightShare:
    """What a rank holds of the weight [out_size, in_size] of the module `name`: these outputs, and these inputs."""

    name: str
    out_size: int
    in_size: int
    rows: tuple[slice, ...]
    columns: slice

    @classmethod
    def whole(cls, name: str, out_size: int, in_size: int) -> WeightShare:
        """All of it."""
        return cls(name, out_size, in_size, (slice(0, out_size),), slice(0, in_size))

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out."""
        return self == WeightShare.whole(self.name, self.out_size, self.in_size)

    def cut_rows(self, tensor: Tensor) -> Tensor:
        """[out_size, ...] -> [kept outputs, ...], a view where they are neighbours."""
        return tensor[self.rows[0]] if len(self.rows) == 1 else torch.cat([tensor[rows] for rows in self.rows])

    def cut(self, tensor: Tensor) -> Tensor:
        """[out_size, in_size] -> [kept outputs, kept inputs]."""
        return self.cut_rows(tensor[:, self.columns])


def pieces_of(
    names: Sequence[str], out_sizes: Sequence[int], in_size: int, shard: Shard, *, split: Split | None, unit: int = 1
) -> list[WeightShare]:
    """What `shard` holds of the modules `names`, which have `out_sizes` outputs each; a single name may have several.

    Each of `out_sizes` is divided by itself, in steps of `unit`, where the split is by outputs.
    """
    if len(names) < len(out_sizes) and (split != "outputs" or shard.count == 1):
        out_sizes = [sum(out_sizes)]
    kept = [shard.part(size, unit) if split == "outputs" else slice(0, size) for size in out_sizes]
    columns = shard.part(in_size) if split == "inputs" else slice(0, in_size)
    if len(names) == len(out_sizes):
        return [
            WeightShare(name, size, in_size, (rows,), columns)
            for name, size, rows in zip(names, out_sizes, kept, strict=True)
        ]
    (name,) = names
    starts = itertools.accumulate(out_sizes[:-1], initial=0)
    rows = tuple(slice(start + part.start, start + part.stop) for start, part in zip(starts, kept, strict=True))
    return [WeightShare(name, sum(out_sizes), in_size, rows, columns)]


@dataclass(frozen=True, slots=True)
class ShardKVShape:
    """The size of a rank's cache, as `kv_cache` takes it."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


def kv_shape(config: ModelConfig, shard: Shard) -> ShardKVShape:
    """A rank has the keys and values of its own KV heads; where these are fewer than ranks, several have the same."""
    return ShardKVShape(config.num_layers, max(config.num_kv_heads // shard.count, 1), config.head_dim)
