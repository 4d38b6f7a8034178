"""Matrix products with weights of four bits a number, a scale a group of inputs: the torch twin, and the layouts.

Two numbers lie in a byte, the even input in the low half. A code stands for code - zero (int4, zero 8 where there is
none), or for an entry of NF4's table (Dettmers et al., 2023, QLoRA, appendix E); times the group's scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

SMALLEST_SCALE = 2.0**-24
"""Floor of a float16 scale, so that a group of zeros divides."""
SYMMETRIC_ZERO = 8
TILE = 128
"""Inputs of a tile of the kernel's layout."""
QUARTER = TILE // 4
"""Inputs that a tile's words hold in one of their four pairs of codes, and the fewest that a scale is for."""
CODE_BITS = 15
"""Where a zero point lies within its group's scale."""

NF4_TABLE = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""Quantiles of the normal distribution, as the paper's appendix lists them."""


@dataclass(frozen=True, slots=True)
class GroupWeight:
    """A weight [out, in] of four bits.

    packed   [out, in / 2] uint8
    scales   [out, groups] floating, in / groups inputs each
    zeros    [out, groups] uint8 codes that stand for 0; None is 8 throughout
    is_nf4   the codes are entries of NF4_TABLE
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    is_nf4: bool = False

    @property
    def group_size(self) -> int:
        """Inputs that share a scale."""
        return 2 * self.packed.shape[1] // self.scales.shape[1]

    @property
    def num_bytes(self) -> int:
        """Bytes of codes, scales and zeros."""
        return self.packed.nbytes + self.scales.nbytes + (0 if self.zeros is None else self.zeros.nbytes)

    def codes(self) -> Tensor:
        """[out, in] uint8, 0..15."""
        return torch.stack((self.packed & 15, self.packed >> 4), dim=-1).flatten(1)

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The weight [out, in] in `dtype`."""
        codes = self.codes().view(*self.scales.shape, -1)
        if self.is_nf4:
            numbers = torch.tensor(NF4_TABLE, device=codes.device)[codes.long()]
        else:
            numbers = codes.float() - (SYMMETRIC_ZERO if self.zeros is None else self.zeros.unsqueeze(2))
        return (numbers * self.scales.float().unsqueeze(2)).flatten(1).to(dtype)


@dataclass(frozen=True, slots=True)
class TiledWeight:
    """The same weight as its kernel reads it: tiles of TILE inputs, the last one filled up with scales of 0.

    words       [out, 16 * tiles] int32. Word i of a tile holds the inputs 32 q + 2 i and 32 q + 2 i + 1 for q = 0..3,
                from bits 4 q and 16 + 4 q on: a quarter of neighbouring inputs is one shift and one mask away, in pairs
                that are 16 bits apart
    groups      [out, tiles * TILE / group_size] int32: the bits of a float32 scale, whose last four are the zero point
    num_inputs  of a row, without what fills it up
    group_size  inputs of a scale: QUARTER, twice or four times that
    table       [256, 2] in the type of the rows to come, where the codes are entries of NF4_TABLE: row 16 high + low is
                the numbers of two codes, (low's, high's)
    """

    words: Tensor
    groups: Tensor
    num_inputs: int
    group_size: int
    table: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of codes, scales and zeros."""
        return self.words.nbytes + self.groups.nbytes

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The weight [out, in] in `dtype`."""
        words = self.words.view(self.words.shape[0], -1, 16)
        # [out, tiles, 4, 16, 2]
        codes = torch.stack(
            [torch.stack([(words >> shift) & 15, (words >> shift + 16) & 15], 3) for shift in (0, 4, 8, 12)], 2
        )
        codes = codes.reshape(*self.groups.shape, self.group_size)
        if self.table is not None:
            numbers = self.table[:16, 0].float()[codes.long()]
        else:
            numbers = (codes - (self.groups & CODE_BITS).unsqueeze(2)).float()
        scales = (self.groups & ~CODE_BITS).view(torch.float32)
        return (numbers * scales.unsqueeze(2)).flatten(1)[:, : self.num_inputs].to(dtype)


def is_tileable(weight: GroupWeight, dtype: torch.dtype) -> bool:
    """Whether a kernel takes it with rows of `dtype`: groups are whole quarters of tiles, NF4 is in half precision."""
    return weight.group_size % QUARTER == 0 and not (weight.is_nf4 and dtype == torch.float32)


def tiled(weight: GroupWeight, dtype: torch.dtype) -> TiledWeight:
    """The weight, which `is_tileable`, in the layout of its kernel, for rows of `dtype`.

    Scales keep 20 bits: all of either half precision.
    """
    num_outputs, num_inputs = weight.packed.shape[0], 2 * weight.packed.shape[1]
    group_size = math.gcd(weight.group_size, TILE)
    num_tiles = -(-num_inputs // TILE)
    codes = functional.pad(weight.codes(), (0, num_tiles * TILE - num_inputs)).view(num_outputs, num_tiles, 4, 16, 2)
    words = torch.zeros(num_outputs, num_tiles, 16, dtype=torch.int32, device=codes.device)
    for quarter in range(4):
        for half in range(2):
            words |= codes[:, :, quarter, :, half].int() << (4 * quarter + 16 * half)
    scales = weight.scales.float().view(torch.int32) & ~CODE_BITS
    groups = scales | (SYMMETRIC_ZERO if weight.zeros is None else weight.zeros.int())
    groups = groups.repeat_interleave(weight.group_size // group_size, 1)
    groups = functional.pad(groups, (0, num_tiles * TILE // group_size - groups.shape[1]))
    table = None
    if weight.is_nf4:
        numbers = torch.tensor(NF4_TABLE, dtype=dtype, device=words.device)
        table = torch.stack((numbers.repeat(16), numbers.repeat_interleave(16)), 1)
    return TiledWeight(words.flatten(1), groups, num_inputs, group_size, table)


def pack_codes(codes: Tensor) -> Tensor:
    """[out, in] integers 0..15, `in` even -> [out, in / 2] uint8."""
    low, high = codes.to(torch.uint8).reshape(codes.shape[0], -1, 2).unbind(2)
    return low | high << 4


def quantize_int4(weight: Tensor, group_size: int, *, symmetric: bool = True) -> GroupWeight:
    """`weight` [out, in] to the nearest of each group's 16 levels: error <= scale / 2 for what lies between them.

    Symmetric levels are -8 to 7 times a scale of either sign, which puts a group's largest number at -8, or a tenth
    above that where the others then gain more than it loses: a sixth less error than 15 levels from end to end.
    Otherwise the levels reach from the group's smallest number to its largest. `group_size` divides `in` and is even.
    """
    groups = weight.float().reshape(weight.shape[0], -1, group_size)
    if symmetric:
        peaks = groups.gather(2, groups.abs().argmax(2, keepdim=True)).squeeze(2)
        tried = [_symmetric(groups, peaks * (-share / SYMMETRIC_ZERO)) for share in (1.0, 0.9)]
        (codes, scales, errors), (cut_codes, cut_scales, cut_errors) = tried
        is_cut = cut_errors < errors
        codes = torch.where(is_cut.unsqueeze(2), cut_codes, codes)
        return GroupWeight(pack_codes(codes.flatten(1)), torch.where(is_cut, cut_scales, scales))
    # Zero must be among the levels, or a group far from it would have no code for its zero point.
    low, high = groups.amin(2).clamp_(max=0), groups.amax(2).clamp_(min=0)
    scales = _stored_scales((high - low) / 15)
    zeros = (-low / scales.float()).round_().clamp_(0, 15)
    codes = ((groups / scales.float().unsqueeze(2)).round_() + zeros.unsqueeze(2)).clamp_(0, 15)
    return GroupWeight(pack_codes(codes.flatten(1)), scales, zeros.to(torch.uint8))


def quantize_nf4(weight: Tensor, group_size: int) -> GroupWeight:
    """`weight` [out, in] to the nearest entry of NF4_TABLE, scaled by each group's largest number."""
    groups = weight.float().reshape(weight.shape[0], -1, group_size)
    scales = _stored_scales(groups.abs().amax(2))
    table = torch.tensor(NF4_TABLE, device=weight.device)
    borders = (table[1:] + table[:-1]) / 2
    codes = torch.bucketize(groups / scales.float().unsqueeze(2), borders)
    return GroupWeight(pack_codes(codes.flatten(1)), scales, is_nf4=True)


def w4a16_linear_reference(x: Tensor, weight: GroupWeight | TiledWeight, bias: Tensor | None = None) -> Tensor:
    """x [tokens, in] times the weight's transpose, plus bias [out]: [tokens, out] in x's type."""
    return functional.linear(x, weight.dequantized(x.dtype), bias)


def _symmetric(groups: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(codes [out, groups, group size], scales as they are stored, summed squared errors [out, groups])."""
    scales = torch.where(scales.abs() < SMALLEST_SCALE, SMALLEST_SCALE, scales).to(torch.float16)
    wide = scales.float().unsqueeze(2)
    levels = (groups / wide).round_().clamp_(-SYMMETRIC_ZERO, SYMMETRIC_ZERO - 1)
    errors = (levels * wide - groups).square_().sum(2)
    return levels.add_(SYMMETRIC_ZERO), scales, errors


def _stored_scales(scales: Tensor) -> Tensor:
    return scales.clamp(min=SMALLEST_SCALE).to(torch.float16)
