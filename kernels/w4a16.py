"""Matrix products with weights of four bits a number, a scale a group of inputs: the torch twin, and the layout.

Two numbers lie in a byte, the even input in the low half. A code stands for code - zero (int4, zero 8 where there is
none), or for an entry of NF4's table (Dettmers et al., 2023, QLoRA, appendix E); times the group's scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

SMALLEST_SCALE = 2.0**-24
"""Floor of a float16 scale, so that a group of zeros divides."""
SYMMETRIC_ZERO = 8

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


def w4a16_linear_reference(x: Tensor, weight: GroupWeight, bias: Tensor | None = None) -> Tensor:
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
