"""Quantized checkpoints of our own, written from any folder.

The format is the source folder with config.json's `quantization_config` = {"quant_method": "slipstream", "method",
"group_size"} and, for each quantized module, in place of `<module>.weight`:

    <module>.qweight     int8 or float8_e4m3fn [out, in]: one scale a row; uint8 [out, in / 2]: four bits
    <module>.scales      float32 [out], or float16 [out, in / group size]
    <module>.smoothing   [in], where the weight was multiplied by it, so that inputs have to be divided by it

Embeddings, norms and routers stay as they were; an output layer that four bits would hurt most is int8.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backends.engine.errors import ModelError
from backends.engine.model.checkpoint import INDEX_FILE, Checkpoint, write_tensors
from backends.engine.model.json_fields import JsonFields
from backends.engine.model.linear import DEFAULT_GROUP_SIZE, FOUR_BITS, OUTPUT_LAYER, QUANTIZATIONS, quantize_weight
from backends.engine.model.quantized_formats import CONFIG_FIELD, OUR_METHOD
from kernels.products.w4a16 import GroupWeight

CONFIG_FILE = "config.json"


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

    `input_peaks`: the largest absolute input [in] of modules by name, as `calibrate` finds them; these are smoothed.
    `progress(done, total)` is called after each tensor. `target` appears when it is complete. One file of weights is
    held in memory at a time. Raises ModelError for an unknown method, a target that exists, or a source that cannot be
    read or is quantized already.
    """
    if method not in QUANTIZATIONS:
        raise ModelError(f"quantization {method!r} is unknown; known are {', '.join(QUANTIZATIONS)}")
    if target.exists():
        raise ModelError(f"{target} exists: name a folder that does not")
    config = dict(JsonFields.from_file(source / CONFIG_FILE).values)
    if CONFIG_FIELD in config:
        raise ModelError(f"{source / CONFIG_FILE}: the model is quantized already; start from its original")
    checkpoint = Checkpoint.from_folder(source)
    files = checkpoint.names_by_file
    smoothings = _smoothings(checkpoint, input_peaks or {})
    total, done = len(checkpoint.names), 0
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    weight_map: dict[str, str] = {}
    for path, names in files.items():
        written: dict[str, Tensor] = {}
        for name in names:
            smoothing = smoothings.get(name.removesuffix(".weight"))
            written |= _quantized_tensors(name, checkpoint.stored(name), method, group_size, smoothing)
            done += 1
            progress(done, total)
        write_tensors(partial / path.name, written)
        weight_map |= dict.fromkeys(written, path.name)
    if len(files) > 1:
        _write_json(partial / INDEX_FILE, {"metadata": {}, "weight_map": weight_map})
    config[CONFIG_FIELD] = {"quant_method": OUR_METHOD, "method": method, "group_size": group_size}
    _write_json(partial / CONFIG_FILE, config)
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and path.name not in (CONFIG_FILE, INDEX_FILE):
            shutil.copyfile(path, partial / path.name)
    partial.rename(target)


def smoothing_scales(input_peaks: Tensor, weight_peaks: Tensor, *, strength: float = 0.5) -> Tensor:
    """What to multiply the weight's inputs with and divide the activations by, [in] float32.

    `input_peaks`, `weight_peaks` [in]: largest absolute activations and weights of each input. `strength` 0 leaves all
    range to the activations, 1 moves all of it to the weights (Xiao et al., 2023, SmoothQuant, equation 4).
    """
    return input_peaks.float().clamp(min=1e-5).pow(strength) / weight_peaks.float().clamp(min=1e-5).pow(1 - strength)


def _smoothings(checkpoint: Checkpoint, input_peaks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The smoothing of each module that has peaks.

    Neighbours that read the same inputs, as queries, keys and values do, get the same one, so that they stay one layer.
    """
    neighbours: dict[tuple[str, bytes], list[str]] = defaultdict(list)
    for module, peaks in input_peaks.items():
        if f"{module}.weight" in checkpoint.names:
            neighbours[module.rpartition(".")[0], peaks.float().cpu().numpy().tobytes()].append(module)
    smoothings: dict[str, Tensor] = {}
    for modules in neighbours.values():
        weight_peaks = torch.stack([checkpoint.stored(f"{module}.weight").float().abs().amax(0) for module in modules])
        smoothing = smoothing_scales(input_peaks[modules[0]].cpu(), weight_peaks.amax(0))
        smoothings |= dict.fromkeys(modules, smoothing)
    return smoothings


def _quantized_tensors(
    name: str, tensor: Tensor, method: str, group_size: int, smoothing: Tensor | None
) -> dict[str, Tensor]:
    """What is written for the tensor `name`: itself, or its quantized parts."""
    module = name.removesuffix(".weight")
    if not _is_linear(name, tensor):
        return {name: tensor}
    parts: dict[str, Tensor] = {}
    if smoothing is not None:
        tensor = tensor.float() * smoothing
        # A copy, for two names must not share their memory in a file.
        parts[f"{module}.smoothing"] = smoothing.clone()
    # An odd width has no pairs to pack.
    to_int8 = method in FOUR_BITS and (module == OUTPUT_LAYER or tensor.shape[1] % 2 == 1)
    quantized = quantize_weight(tensor, "int8" if to_int8 else method, group_size=group_size)
    stored = quantized.packed if isinstance(quantized, GroupWeight) else quantized.stored
    return parts | {f"{module}.qweight": stored, f"{module}.scales": quantized.scales}


def _is_linear(name: str, tensor: Tensor) -> bool:
    module, _, kind = name.rpartition(".")
    # `gate` alone is a router of experts; a feed-forward's is called gate_proj.
    is_kept = module.endswith((".gate", "embed_tokens"))
    return kind == "weight" and tensor.dim() == 2 and tensor.is_floating_point() and not is_kept


def _write_json(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
