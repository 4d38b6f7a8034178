"""What a quantized checkpoint says of itself, and the layouts of others, of four or three bits, unpacked into ours.

Both keep weights as [in, out] with eight numbers in an int32 (or 32 in three). GPTQ packs along the inputs, AWQ along
the outputs and in the order of AWQ_ORDER; GPTQ's first format stores zero points less one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from backends.engine.errors import ModelError
from backends.engine.model.json_fields import JsonFields
from backends.engine.model.linear import QUANTIZATIONS
from kernels.products.w4a16 import SYMMETRIC_ZERO, GroupWeight, pack_codes

CONFIG_FIELD = "quantization_config"
OUR_METHOD = "slipstream"
READ_BITS: Mapping[str, tuple[int, ...]] = MappingProxyType({"gptq": (4, 3), "awq": (4,)})
"""Formats of others, and the bits a number that we read of each."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbouring outputs lies in each nibble of AWQ's int32, lowest first."""

TensorSource = Callable[[str], Tensor | None]
"""A tensor by its full name, None where there is none."""


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """config.json's `quantization_config`: whose format, for ours which method, and GPTQ's bits a number.

    `group_size`: inputs of a scale, None where the file does not say, or says that all share one.
    """

    quant_method: str
    method: str
    bits: int = 4
    has_stored_zero_less_one: bool = False
    group_size: int | None = None

    @classmethod
    def from_fields(cls, fields: JsonFields) -> QuantizationConfig:
        """Raises ModelError for a format that is not read, which says what is."""
        quant_method = fields.raw("quant_method")
        if quant_method == OUR_METHOD:
            method = fields.raw("method")
            if method not in QUANTIZATIONS:
                raise fields.invalid("method", f"one of {', '.join(QUANTIZATIONS)}")
            return cls(OUR_METHOD, method)
        if quant_method not in READ_BITS:
            known = ", ".join((OUR_METHOD, *READ_BITS))
            raise fields.invalid("quant_method", f"one of {known}: weights in another form are not read")
        name = "w_bit" if "bits" not in fields and "w_bit" in fields else "bits"
        if fields.raw(name) not in READ_BITS[quant_method]:
            read = " or ".join(str(bits) for bits in READ_BITS[quant_method])
            raise fields.invalid(name, f"{read}: {quant_method} is read with no other")
        if quant_method == "awq" and fields.text("version", "gemm").lower() != "gemm":
            raise fields.invalid("version", "'gemm': awq is read in no other layout")
        is_first_format = quant_method == "gptq" and fields.raw("checkpoint_format") != "gptq_v2"
        size_name = "q_group_size" if "group_size" not in fields and "q_group_size" in fields else "group_size"
        group_size = fields.whole(size_name, -1, minimum=-1)
        return cls(quant_method, "int4", fields.whole(name), is_first_format, group_size if group_size > 0 else None)


def gptq_weight(
    name: str, qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor | None, config: QuantizationConfig
) -> GroupWeight | Tensor:
    """The weight [out, in] of GPTQ's qweight [in * bits / 32, out], qzeros [groups, out * bits / 32], scales [groups,
    out].

    The last group may be short. Inputs that were sorted by activation (`g_idx` [in], a group for each) have no groups
    of neighbours: their weight comes back unpacked, float32. Raises ModelError where the shapes do not fit.
    """
    bits, largest = config.bits, 2**config.bits - 1
    num_in, num_out = qweight.shape[0] * 32 // bits, qweight.shape[1]
    size = _group_size(name, num_in, num_out, qzeros, scales, config)
    codes = _numbers(qweight.T, bits)
    zeros = _numbers(qzeros, bits).T
    if config.has_stored_zero_less_one:
        zeros = (zeros + 1) & largest
    num_groups = scales.shape[0]
    in_order = torch.arange(num_in) // size
    if g_idx is not None and not torch.equal(g_idx.cpu().long(), in_order):
        groups = g_idx.cpu().long()
        if groups.numel() != num_in or int(groups.min()) < 0 or int(groups.max()) >= num_groups:
            raise ModelError(f"{name}: g_idx does not name one of {num_groups} groups for each of {num_in} inputs")
        return (codes - zeros[:, groups]).float() * scales.T.float()[:, groups]
    return _packed(codes, zeros, scales, size)


def awq_weight(
    name: str, qweight: Tensor, qzeros: Tensor, scales: Tensor, config: QuantizationConfig
) -> GroupWeight | Tensor:
    """The weight [out, in] of AWQ's qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out].

    As `gptq_weight` where the last group is short. Raises ModelError where the shapes do not fit.
    """
    num_in, num_out = qweight.shape[0], qweight.shape[1] * 8
    size = _group_size(name, num_in, num_out, qzeros, scales, config)
    back = [AWQ_ORDER.index(output) for output in range(8)]
    codes = _nibbles(qweight)[:, :, back].flatten(1).T
    zeros = _nibbles(qzeros)[:, :, back].flatten(1).T
    return _packed(codes, zeros, scales, size)


def _packed(codes: Tensor, zeros: Tensor, scales: Tensor, size: int) -> GroupWeight | Tensor:
    """`codes` [out, in] and `zeros` [out, groups] int32, `scales` [groups, out]; `size` inputs a group, the last
    one's perhaps fewer.

    Our groups are all of one size, so beside a short one all are cut to what divides both; where that is no pair of
    inputs, the weight comes back unpacked, float32.
    """
    num_in, scales = codes.shape[1], scales.T
    even = math.gcd(size, num_in)
    if even % 2:
        groups = torch.arange(num_in, device=codes.device) // size
        return (codes - zeros[:, groups]).float() * scales.float()[:, groups]
    if even < size:
        zeros, scales = (part.repeat_interleave(size // even, 1)[:, : num_in // even] for part in (zeros, scales))
    is_symmetric = bool((zeros == SYMMETRIC_ZERO).all())
    return GroupWeight(
        pack_codes(codes), scales.contiguous(), None if is_symmetric else zeros.to(torch.uint8).contiguous()
    )


def _nibbles(words: Tensor) -> Tensor:
    """[n, m] int32 -> [n, m, 8] int32, the lowest four bits first."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    return (words.unsqueeze(2) >> shifts) & 15


def _numbers(words: Tensor, bits: int) -> Tensor:
    """[n, m] int32 -> [n, m * 32 / bits] int32 numbers of 4 or 3 bits, which lie side by side from the lowest on."""
    if bits == 4:
        return _nibbles(words).flatten(1)
    # 32 numbers lie in three words, number 21 across a border of 64 bits.
    first, second, third = (words.long() & 0xFFFFFFFF).reshape(words.shape[0], -1, 3).unsqueeze(3).unbind(2)
    low, high = first | second << 32, second >> 31 | third << 1
    parts = (low >> 3 * torch.arange(21), high >> 3 * torch.arange(11))
    return (torch.cat(parts, dim=2) & 7).flatten(1).int()


def _group_size(
    name: str, num_in: int, num_out: int, qzeros: Tensor, scales: Tensor, config: QuantizationConfig
) -> int:
    """Inputs of a scale. The last group is short where the file's size does not divide the inputs; where that size does
    not give the groups that there are, they are taken to be even. Raises ModelError where neither fits.
    """
    bits, num_groups = config.bits, scales.shape[0]
    unit = 32 // math.gcd(32, bits)
    is_fitting = (
        scales.shape[1:] == (num_out,)
        and qzeros.shape == (num_groups, num_out * bits // 32)
        and num_groups > 0
        and num_in % unit == num_out % unit == 0
    )
    if is_fitting and config.group_size is not None and -(-num_in // config.group_size) == num_groups:
        return min(config.group_size, num_in)
    if is_fitting and num_in % num_groups == 0:
        return num_in // num_groups
    raise ModelError(
        f"{name}: qzeros {list(qzeros.shape)} and scales {list(scales.shape)} do not fit a weight of {num_in} "
        f"inputs and {num_out} outputs: the file is no {bits}-bit checkpoint of its quant_method"
    )
