"""What a quantized checkpoint says of itself, and the 4-bit layouts of others unpacked into ours.

Both keep weights as [in, out] with eight numbers in an int32. GPTQ packs along the inputs, AWQ along the outputs and
in the order of AWQ_ORDER; GPTQ's first format stores zero points less one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backends.engine.errors import ModelError
from kernels.w4a16 import SYMMETRIC_ZERO, GroupWeight, pack_codes

CONFIG_FIELD = "quantization_config"
OUR_METHOD = "slipstream"
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbouring outputs lies in each nibble of AWQ's int32, lowest first."""

TensorSource = Callable[[str], Tensor | None]
"""A tensor by its full name, None where there is none."""


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """config.json's `quantization_config`: whose format, and for ours which method."""

    quant_method: str
    method: str
    has_stored_zero_less_one: bool = False

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> QuantizationConfig:
        """Raises ModelError for a format that is not read, which says what is."""
        quant_method = fields.get("quant_method")
        if quant_method == OUR_METHOD:
            return cls(quant_method, str(fields.get("method")))
        if quant_method not in ("gptq", "awq"):
            raise ModelError(f"quant_method {quant_method!r} is not read; read are {OUR_METHOD}, gptq and awq")
        bits = fields.get("bits", fields.get("w_bit"))
        if bits != 4:
            raise ModelError(f"{quant_method} with {bits} bits is not read; only 4 bits are")
        if quant_method == "awq" and fields.get("version", "gemm") != "gemm":
            raise ModelError(f"awq version {fields['version']!r} is not read; only gemm is")
        is_first_format = quant_method == "gptq" and fields.get("checkpoint_format", "gptq") != "gptq_v2"
        return cls(quant_method, "int4", is_first_format)


def gptq_weight(
    name: str, qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor | None, config: QuantizationConfig
) -> GroupWeight | Tensor:
    """The weight [out, in] of GPTQ's qweight [in / 8, out], qzeros [groups, out / 8], scales [groups, out].

    Inputs that were sorted by activation (`g_idx` [in], a group for each) have no groups of neighbours: their weight
    comes back unpacked, float32. Raises ModelError where the shapes do not fit.
    """
    num_in, num_out = qweight.shape[0] * 8, qweight.shape[1]
    _check_shapes(name, num_in, num_out, qzeros, scales)
    codes = _nibbles(qweight).permute(1, 0, 2).reshape(num_out, num_in)
    zeros = _nibbles(qzeros).flatten(1).T
    if config.has_stored_zero_less_one:
        zeros = (zeros + 1) & 15
    num_groups = scales.shape[0]
    in_order = torch.arange(num_in) // (num_in // num_groups)
    if g_idx is not None and not torch.equal(g_idx.cpu().long(), in_order):
        groups = g_idx.cpu().long()
        if groups.numel() != num_in or int(groups.min()) < 0 or int(groups.max()) >= num_groups:
            raise ModelError(f"{name}: g_idx does not name one of {num_groups} groups for each of {num_in} inputs")
        return (codes - zeros[:, groups]).float() * scales.T.float()[:, groups]
    return _packed(codes, zeros, scales)


def awq_weight(name: str, qweight: Tensor, qzeros: Tensor, scales: Tensor) -> GroupWeight:
    """The weight [out, in] of AWQ's qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out].

    Raises ModelError where the shapes do not fit.
    """
    num_in, num_out = qweight.shape[0], qweight.shape[1] * 8
    _check_shapes(name, num_in, num_out, qzeros, scales)
    back = [AWQ_ORDER.index(output) for output in range(8)]
    codes = _nibbles(qweight)[:, :, back].flatten(1).T
    zeros = _nibbles(qzeros)[:, :, back].flatten(1).T
    return _packed(codes, zeros, scales)


def _packed(codes: Tensor, zeros: Tensor, scales: Tensor) -> GroupWeight:
    """`codes` [out, in] and `zeros` [out, groups] int32, `scales` [groups, out]."""
    is_symmetric = bool((zeros == SYMMETRIC_ZERO).all())
    return GroupWeight(
        pack_codes(codes), scales.T.contiguous(), None if is_symmetric else zeros.to(torch.uint8).contiguous()
    )


def _nibbles(words: Tensor) -> Tensor:
    """[n, m] int32 -> [n, m, 8] int32, the lowest four bits first."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    return (words.unsqueeze(2) >> shifts) & 15


def _check_shapes(name: str, num_in: int, num_out: int, qzeros: Tensor, scales: Tensor) -> None:
    num_groups = scales.shape[0]
    is_fitting = (
        scales.shape[1:] == (num_out,)
        and qzeros.shape == (num_groups, num_out // 8)
        and num_groups > 0
        and num_in % num_groups == 0
    )
    if not is_fitting:
        raise ModelError(
            f"{name}: qzeros {list(qzeros.shape)} and scales {list(scales.shape)} do not fit a weight of {num_in} "
            f"inputs and {num_out} outputs: the file is no 4-bit checkpoint of its quant_method"
        )
