"""Quantized checkpoints: writing our own from any folder, reading ours, GPTQ's and AWQ's.

Our format is the source folder with config.json's `quantization_config` = {"quant_method": "slipstream", "method",
"group_size"} and, for each quantized module, in place of `<module>.weight`:

    <module>.qweight     int8 or float8_e4m3fn [out, in]: one scale a row; uint8 [out, in / 2]: four bits
    <module>.scales      float32 [out], or float16 [out, in / group size]
    <module>.smoothing   [in], where the weight was multiplied by it, so that inputs have to be divided by it

Embeddings, norms and routers stay as they were; an output layer that four bits would hurt most is int8.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from backends.engine.checkpoint import INDEX_FILE, SINGLE_FILE
from backends.engine.errors import ModelError
from backends.engine.linear import (
    DEFAULT_GROUP_SIZE,
    QUANTIZATIONS,
    BuiltLinear,
    Linear,
    make_linear,
    quantize_weight,
    quantized_linear,
)
from backends.engine.quantized_formats import (
    CONFIG_FIELD,
    OUR_METHOD,
    QuantizationConfig,
    TensorSource,
    awq_weight,
    gptq_weight,
)
from kernels.w4a16 import GroupWeight
from kernels.w8 import RowWeight

CONFIG_FILE = "config.json"
OUTPUT_LAYER = "lm_head"


def quantize_folder(
    source: Path,
    target: Path,
    method: str,
    *,
    group_size: int = DEFAULT_GROUP_SIZE,
    input_peaks: Mapping[str, Tensor] | None = None,
    progress: Callable[[int, int], None],
) -> None:
    """Writes the model of `source` to the new folder `target`, its linear layers rounded to `method`.

    `input_peaks`: the largest absolute input [in] of modules by name, from a calibration run; these are smoothed.
    `progress(done, total)` is called after each tensor. `target` appears when it is complete. One file of weights is
    held in memory at a time. Raises ModelError for an unknown method, a target that exists, or a source that cannot be
    read or is quantized already.
    """
    if method not in QUANTIZATIONS:
        raise ModelError(f"quantization {method!r} is unknown; known are {', '.join(QUANTIZATIONS)}")
    if target.exists():
        raise ModelError(f"{target} exists: name a folder that does not")
    config = _read_json(source / CONFIG_FILE)
    if CONFIG_FIELD in config:
        raise ModelError(f"{source / CONFIG_FILE}: the model is quantized already; start from its original")
    shards = _shards(source)
    total, done = sum(len(names) for names in shards.values()), 0
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    weight_map: dict[str, str] = {}
    for shard, names in shards.items():
        written: dict[str, Tensor] = {}
        with _opened(source / shard) as opened:
            for name in names:
                module = name.removesuffix(".weight")
                peaks = (input_peaks or {}).get(module)
                written |= _quantized_tensors(name, opened.get_tensor(name), method, group_size, peaks)
                done += 1
                progress(done, total)
        save_file(written, partial / shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(written, shard)
    if len(shards) > 1:
        _write_json(partial / INDEX_FILE, {"metadata": {}, "weight_map": weight_map})
    config[CONFIG_FIELD] = {"quant_method": OUR_METHOD, "method": method, "group_size": group_size}
    _write_json(partial / CONFIG_FILE, config)
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and path.name not in (CONFIG_FILE, INDEX_FILE):
            shutil.copyfile(path, partial / path.name)
    partial.rename(target)


def read_quantized(
    names: Sequence[str],
    tensors: TensorSource,
    config: QuantizationConfig,
    *,
    bias: Tensor | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Linear | None:
    """The modules `names` as one layer, their outputs in that order; None where the first of them is not quantized.

    `tensors` gives a tensor by its full name, None where there is none. `bias` [all outputs] on `device`; `dtype` is
    that of the inputs to come. Raises ModelError, which names the module, for parts that are missing or do not fit.
    """
    if tensors(f"{names[0]}.qweight") is None:
        return None
    parts = [_read_weight(name, tensors, config) for name in names]
    smoothings = [tensors(f"{name}.smoothing") for name in names]
    round_input = config.method == "w8a8"
    if all(smoothing is None for smoothing in smoothings):
        joined = _joined(parts)
        if joined is not None:
            return _linear(joined, bias, dtype, device, round_input=round_input)
    linears = []
    for part, smoothing in zip(parts, smoothings, strict=True):
        linear = _linear(part, None, dtype, device, round_input=round_input)
        linears.append(linear if smoothing is None else _smoothed(linear, smoothing.to(device, dtype)))

    def run(x: Tensor) -> Tensor:
        out = torch.cat([linear(x) for linear in linears], dim=1)
        return out if bias is None else out.add_(bias)

    return BuiltLinear(run, sum(linear.num_bytes for linear in linears))


def smoothing_scales(input_peaks: Tensor, weight: Tensor, *, strength: float = 0.5) -> Tensor:
    """What to multiply the weight's inputs with and divide the activations by, [in] float32.

    `input_peaks` [in]: largest absolute activations. `strength` 0 leaves all range to the activations, 1 moves all of
    it to the weights (Xiao et al., 2023, SmoothQuant, equation 4).
    """
    weight_peaks = weight.float().abs().amax(0).clamp_(min=1e-5)
    return input_peaks.float().clamp(min=1e-5).pow(strength) / weight_peaks.pow(1 - strength)


def _quantized_tensors(
    name: str, tensor: Tensor, method: str, group_size: int, input_peaks: Tensor | None
) -> dict[str, Tensor]:
    """What is written for the tensor `name`: itself, or its quantized parts."""
    module = name.removesuffix(".weight")
    if not _is_linear(name, tensor):
        return {name: tensor}
    parts: dict[str, Tensor] = {}
    if input_peaks is not None:
        smoothing = smoothing_scales(input_peaks, tensor)
        tensor = tensor.float() * smoothing
        parts[f"{module}.smoothing"] = smoothing
    # An odd width has no pairs to pack.
    to_int8 = method in ("int4", "nf4") and (module == OUTPUT_LAYER or tensor.shape[1] % 2 == 1)
    quantized = quantize_weight(tensor, "int8" if to_int8 else method, group_size=group_size)
    stored = quantized.packed if isinstance(quantized, GroupWeight) else quantized.stored
    return parts | {f"{module}.qweight": stored, f"{module}.scales": quantized.scales}


def _is_linear(name: str, tensor: Tensor) -> bool:
    module, _, kind = name.rpartition(".")
    # `gate` alone is a router of experts; a feed-forward's is called gate_proj.
    is_kept = module.endswith((".gate", "embed_tokens"))
    return kind == "weight" and tensor.dim() == 2 and tensor.is_floating_point() and not is_kept


def _read_weight(name: str, tensors: TensorSource, config: QuantizationConfig) -> RowWeight | GroupWeight | Tensor:
    """One module's weight [out, in]; a plain float32 tensor where no packed form of ours can hold it."""

    def part(kind: str) -> Tensor:
        tensor = tensors(f"{name}.{kind}")
        if tensor is None:
            raise ModelError(f"tensor '{name}.{kind}' is missing: a part of the model was not copied")
        return tensor

    match config.quant_method:
        case "gptq":
            return gptq_weight(name, part("qweight"), part("qzeros"), part("scales"), tensors(f"{name}.g_idx"), config)
        case "awq":
            return awq_weight(name, part("qweight"), part("qzeros"), part("scales"))
    stored, scales = part("qweight"), part("scales")
    if stored.dtype == torch.uint8:
        if scales.dim() != 2 or scales.shape[0] != stored.shape[0] or 2 * stored.shape[1] % scales.shape[1]:
            raise ModelError(f"{name}: scales {list(scales.shape)} do not fit qweight {list(stored.shape)}")
        return GroupWeight(stored, scales, is_nf4=config.method == "nf4")
    if scales.shape != stored.shape[:1]:
        raise ModelError(f"{name}: scales {list(scales.shape)} do not fit qweight {list(stored.shape)}")
    return RowWeight(stored, scales)


def _joined(parts: Sequence[RowWeight | GroupWeight | Tensor]) -> RowWeight | GroupWeight | Tensor | None:
    """One weight of all outputs, None where the parts are of different kinds."""
    first = parts[0]
    if len(parts) == 1:
        return first
    rows = [part for part in parts if isinstance(part, RowWeight)]
    if len(rows) == len(parts):
        return RowWeight(torch.cat([part.stored for part in rows]), torch.cat([part.scales for part in rows]))
    groups = [part for part in parts if isinstance(part, GroupWeight)]
    if len(groups) < len(parts) or len({part.scales.shape[1] for part in groups}) > 1:
        return None
    zeros = [part.zeros for part in groups if part.zeros is not None]
    if zeros and len(zeros) < len(parts):
        return None
    return GroupWeight(
        torch.cat([part.packed for part in groups]),
        torch.cat([part.scales for part in groups]),
        torch.cat(zeros) if zeros else None,
        groups[0].is_nf4,
    )


def _linear(
    weight: RowWeight | GroupWeight | Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    device: torch.device,
    *,
    round_input: bool,
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
    return quantized_linear(weight, bias, dtype=dtype, round_input=round_input)


def _smoothed(linear: Linear, smoothing: Tensor) -> Linear:
    inverse = smoothing.reciprocal()
    return BuiltLinear(lambda x: linear(x * inverse), linear.num_bytes + inverse.nbytes)


def _shards(folder: Path) -> dict[str, list[str]]:
    """The folder's safetensors files by name, each with its tensors."""
    if (folder / INDEX_FILE).exists():
        files = sorted(set(_read_json(folder / INDEX_FILE).get("weight_map", {}).values()))
    else:
        files = [SINGLE_FILE]
    shards = {}
    for file in files:
        with _opened(folder / file) as opened:
            shards[file] = list(opened.keys())
    return shards


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except FileNotFoundError as exc:
        raise ModelError(f"{path} does not exist: copy it into the model folder") from exc
    except (SafetensorError, OSError) as exc:
        raise ModelError(f"{path} is torn or no safetensors file ({exc}): copy it again") from exc


def _read_json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ModelError(f"{path} does not exist: copy it into the model folder") from exc
    except ValueError as exc:
        raise ModelError(f"{path} is no JSON ({exc}): copy it again") from exc
    if not isinstance(fields, dict):
        raise ModelError(f"{path} is no JSON object: copy it again")
    return fields


def _write_json(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
