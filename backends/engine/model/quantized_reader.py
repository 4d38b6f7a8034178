"""Layers of quantized checkpoints, ours and those of others, as layers of the engine: whole, or a rank's share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from backends.engine.errors import ModelError
from backends.engine.model.linear import BuiltLinear, Linear, make_linear, quantized_linear
from backends.engine.model.quantized_formats import QuantizationConfig, TensorSource, awq_weight, gptq_weight
from backends.engine.model.shard import WeightShare
from kernels.dispatch import QuantizedProduct
from kernels.products.quantized_product import quantized_product_reference
from kernels.products.w4a16 import SYMMETRIC_ZERO, GroupWeight
from kernels.products.w8 import RowWeight


def read_quantized(
    pieces: Sequence[WeightShare],
    tensors: TensorSource,
    config: QuantizationConfig,
    *,
    bias: Tensor | None,
    dtype: torch.dtype,
    device: torch.device,
    product: QuantizedProduct = quantized_product_reference,
) -> Linear | None:
    """The modules of `pieces` as one layer, their outputs in that order; None where the first is not quantized.

    `tensors` gives a tensor by its full name, None where there is none. `bias` [all outputs] on `device`; `dtype` is
    that of the inputs to come, `product` as `make_linear`. Raises ModelError, which names the module, for parts that
    are missing or do not fit.
    """
    if tensors(f"{pieces[0].name}.qweight") is None:
        return None
    parts = [_cut(_read_weight(piece, tensors, config), piece) for piece in pieces]
    smoothings = [_smoothing(piece, tensors) for piece in pieces]
    build = partial(_linear, dtype=dtype, device=device, round_input=config.method == "w8a8", product=product)
    joined = _joined(parts)
    first = smoothings[0]
    if joined is not None and all(_is_same(first, smoothing) for smoothing in smoothings[1:]):
        linear = build(joined, bias)
        return linear if first is None else _smoothed(linear, first.to(device, dtype))
    linears = []
    for part, smoothing in zip(parts, smoothings, strict=True):
        linear = build(part, None)
        linears.append(linear if smoothing is None else _smoothed(linear, smoothing.to(device, dtype)))

    def run(x: Tensor) -> Tensor:
        out = torch.cat([linear(x) for linear in linears], dim=1)
        return out if bias is None else out.add_(bias)

    return BuiltLinear(run, sum(linear.num_bytes for linear in linears))


def _read_weight(
    piece: WeightShare, tensors: TensorSource, config: QuantizationConfig
) -> RowWeight | GroupWeight | Tensor:
    """A module's whole weight [out, in]; a plain float32 tensor where no packed form of ours can hold it."""
    name = piece.name

    def part(kind: str) -> Tensor:
        tensor = tensors(f"{name}.{kind}")
        if tensor is None:
            raise ModelError(f"tensor '{name}.{kind}' is missing: a part of the model was not copied")
        return tensor

    match config.quant_method:
        case "gptq":
            weight: RowWeight | GroupWeight | Tensor = gptq_weight(
                name, part("qweight"), part("qzeros"), part("scales"), tensors(f"{name}.g_idx"), config
            )
        case "awq":
            weight = awq_weight(name, part("qweight"), part("qzeros"), part("scales"), config)
        case _:
            weight = _our_weight(name, part("qweight"), part("scales"), is_nf4=config.method == "nf4")
    found = _shape(weight)
    if found != (piece.out_size, piece.in_size):
        raise ModelError(
            f"{name}: the quantized weight has shape {list(found)}, expected {[piece.out_size, piece.in_size]} from "
            "config.json: the two do not belong together"
        )
    return weight


def _our_weight(name: str, stored: Tensor, scales: Tensor, *, is_nf4: bool) -> RowWeight | GroupWeight:
    if stored.dtype == torch.uint8:
        if scales.dim() != 2 or scales.shape[0] != stored.shape[0] or 2 * stored.shape[1] % scales.shape[1]:
            raise ModelError(f"{name}: scales {list(scales.shape)} do not fit qweight {list(stored.shape)}")
        return GroupWeight(stored, scales, is_nf4=is_nf4)
    if scales.shape != stored.shape[:1]:
        raise ModelError(f"{name}: scales {list(scales.shape)} do not fit qweight {list(stored.shape)}")
    return RowWeight(stored, scales)


def _shape(weight: RowWeight | GroupWeight | Tensor) -> tuple[int, ...]:
    match weight:
        case RowWeight():
            return tuple(weight.stored.shape)
        case GroupWeight():
            return weight.packed.shape[0], 2 * weight.packed.shape[1]
    return tuple(weight.shape)


def _smoothing(piece: WeightShare, tensors: TensorSource) -> Tensor | None:
    smoothing = tensors(f"{piece.name}.smoothing")
    if smoothing is None:
        return None
    if smoothing.shape != (piece.in_size,):
        raise ModelError(f"{piece.name}: smoothing {list(smoothing.shape)} does not fit {piece.in_size} inputs")
    return smoothing[piece.columns]


def _is_same(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first, second)


def _cut(weight: RowWeight | GroupWeight | Tensor, piece: WeightShare) -> RowWeight | GroupWeight | Tensor:
    """The piece of a whole weight."""
    if piece.is_whole:
        return weight
    match weight:
        case RowWeight():
            return RowWeight(piece.cut(weight.stored), piece.cut_rows(weight.scales))
        case GroupWeight():
            return _cut_groups(weight, piece)
    return piece.cut(weight)


def _cut_groups(weight: GroupWeight, piece: WeightShare) -> GroupWeight:
    """Groups that lie across the cut are written as several smaller ones with the same scale."""
    start, stop = piece.columns.start, piece.columns.stop
    size = math.gcd(weight.group_size, start, stop)
    if size % 2:
        raise ModelError(f"{piece.name}: inputs {start} to {stop} cannot be cut out of packed pairs; take fewer ranks")
    repeats = weight.group_size // size

    def cut(groups: Tensor) -> Tensor:
        return piece.cut_rows(groups).repeat_interleave(repeats, 1)[:, start // size : stop // size]

    zeros = None if weight.zeros is None else cut(weight.zeros)
    packed = piece.cut_rows(weight.packed)[:, start // 2 : stop // 2]
    return GroupWeight(packed, cut(weight.scales), zeros, weight.is_nf4)


def _joined(parts: Sequence[RowWeight | GroupWeight | Tensor]) -> RowWeight | GroupWeight | Tensor | None:
    """One weight of all outputs, None where the parts are of different kinds."""
    first = parts[0]
    if len(parts) == 1:
        return first
    plain = [part for part in parts if isinstance(part, Tensor)]
    if len(plain) == len(parts):
        return torch.cat(plain)
    rows = [part for part in parts if isinstance(part, RowWeight)]
    if len(rows) == len(parts):
        return RowWeight(torch.cat([part.stored for part in rows]), torch.cat([part.scales for part in rows]))
    groups = [part for part in parts if isinstance(part, GroupWeight)]
    if len(groups) < len(parts) or len({part.scales.shape[1] for part in groups}) > 1:
        return None
    zeros = None
    if any(part.zeros is not None for part in groups):
        zeros = torch.cat([_zeros(part) for part in groups])
    packed, scales = torch.cat([part.packed for part in groups]), torch.cat([part.scales for part in groups])
    return GroupWeight(packed, scales, zeros, groups[0].is_nf4)


def _zeros(weight: GroupWeight) -> Tensor:
    if weight.zeros is not None:
        return weight.zeros
    return torch.full_like(weight.scales, SYMMETRIC_ZERO, dtype=torch.uint8)


def _linear(
    weight: RowWeight | GroupWeight | Tensor,
    bias: Tensor | None,
    *,
    dtype: torch.dtype,
    device: torch.device,
    round_input: bool,
    product: QuantizedProduct,
) -> Linear:
    # Copies throughout: what was read may be a view of a mapped file.
    match weight:
        case RowWeight():
            weight = RowWeight(weight.stored.to(device, copy=True), weight.scales.to(device, torch.float32, copy=True))
        case GroupWeight():
            zeros = None if weight.zeros is None else weight.zeros.to(device, copy=True)
            packed, scales = weight.packed.to(device, copy=True), weight.scales.to(device, copy=True)
            weight = GroupWeight(packed, scales, zeros, weight.is_nf4)
        case _:
            return make_linear(weight.to(device, dtype, copy=True), bias, quantization=None)
    return quantized_linear(weight, bias, dtype=dtype, round_input=round_input, product=product)


def _smoothed(linear: Linear, smoothing: Tensor) -> Linear:
    inverse = smoothing.reciprocal()
    return BuiltLinear(lambda x: linear(x * inverse), linear.num_bytes + inverse.nbytes)
