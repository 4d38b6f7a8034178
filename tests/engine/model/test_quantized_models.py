"""Whole checkpoints with quantized layers, ours and foreign ones, against the same numbers as a plain checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backends.engine.errors import ModelError
from backends.engine.model.calibrate import collect_input_peaks
from backends.engine.model.decoder import Decoder, load_decoder
from backends.engine.model.quantize import quantize_folder
from kernels.dispatch import select_ops
from kernels.products.w4a16 import GroupWeight
from kernels.products.w8 import RowWeight
from tests.support.engine.engine_batches import run_sequences
from tests.support.engine.tiny_models import random_tokens, save_tiny_model, tiny_config
from tests.support.kernels.packed_weights import Packer, pack_awq, pack_gptq, pack_gptq3

OPS = select_ops("cpu")
GROUP_SIZE = 16
TOKENS = random_tokens(40, 97, seed=1)
EIGHT_BITS = 1 if torch.cpu._is_vnni_supported() else 2
"""How many times the rounding of eight bits is felt: activations have seven where a processor lacks VNNI."""
SHAPE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
"""With SHAPE of the tiny models: every layer's inputs and outputs are multiples of 32, as three bits want it."""
FORMATS: dict[str, tuple[dict[str, Any], Packer, int, bool]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4}, pack_gptq, 16, False),
    "gptq-act-order": ({"quant_method": "gptq", "bits": 4, "desc_act": True}, pack_gptq, 16, True),
    "gptq-3-bits": ({"quant_method": "gptq", "bits": 3}, pack_gptq3, 8, False),
    "gptq-3-bits-act-order": ({"quant_method": "gptq", "bits": 3, "desc_act": True}, pack_gptq3, 8, True),
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, pack_awq, 16, False),
}
"""config.json's object, the packer, the number of codes, and whether inputs are sorted by activation."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2, for its biases."""
    path = tmp_path_factory.mktemp("model") / "plain"
    save_tiny_model(path, tiny_config("Qwen2", head_dim=None, **SHAPE))
    return path


def load(folder: Path, **options: Any) -> Decoder:
    """In float32, with the twins."""
    return load_decoder(folder, dtype=torch.float32, device=torch.device("cpu"), ops=OPS, **options)


def logits(folder: Path, **options: Any) -> Tensor:
    """Of one sequence, in chunks and then token by token."""
    (rows,) = run_sequences(load(folder, **options), [TOKENS], num_decode=3, chunk=16)
    return rows


def copy_with(folder: Path, target: Path, tensors: dict[str, Tensor], **fields: Any) -> Path:
    """The folder with other tensors, and with fields in its config.json."""
    shutil.copytree(folder, target)
    save_file(tensors, target / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | fields))
    return target


def is_layer(name: str) -> bool:
    """Whether foreign formats pack it."""
    return name.endswith("_proj.weight")


def foreign_pair(folder: Path, form: str, target: Path) -> tuple[Path, Path]:
    """(a checkpoint in a foreign format, a plain one with the numbers that it stands for), both random."""
    fields, packer, num_codes, is_sorted = FORMATS[form]
    generator = torch.Generator().manual_seed(3)
    packed: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if not is_layer(name):
            packed[name] = plain[name] = weight
            continue
        module, (num_out, num_in) = name.removesuffix(".weight"), weight.shape
        num_groups = num_in // GROUP_SIZE
        codes = torch.randint(0, num_codes, (num_in, num_out), generator=generator)
        zeros = torch.randint(0, num_codes, (num_groups, num_out), generator=generator)
        scales = (torch.rand(num_groups, num_out, generator=generator) * 0.04 + 0.01).half()
        groups = torch.arange(num_in) // GROUP_SIZE
        if is_sorted:
            groups = groups[torch.randperm(num_in, generator=generator)]
            packed[f"{module}.g_idx"] = groups.int()
        packed[f"{module}.qweight"], packed[f"{module}.qzeros"] = packer(codes.tolist(), zeros.tolist())
        packed[f"{module}.scales"] = scales
        plain[name] = ((codes - zeros[groups]) * scales.float()[groups]).T.contiguous()
    fields = {**fields, "group_size": GROUP_SIZE}
    return (
        copy_with(folder, target / "packed", packed, quantization_config=fields),
        copy_with(folder, target / "plain", plain),
    )


def dequantized(folder: Path, original: Path, target: Path) -> Path:
    """A checkpoint of our format written out as a plain one, with what it stands for."""
    stored = load_file(folder / "model.safetensors")
    plain = {}
    for name, weight in load_file(original / "model.safetensors").items():
        module = name.removesuffix(".weight")
        codes, scales = stored.get(f"{module}.qweight"), stored.get(f"{module}.scales")
        if codes is None or scales is None:
            plain[name] = weight
            continue
        is_nf4 = "nf4" in folder.name
        read = GroupWeight(codes, scales, is_nf4=is_nf4) if scales.dim() == 2 else RowWeight(codes, scales)
        plain[name] = read.dequantized(torch.float32)
        if f"{module}.smoothing" in stored:
            plain[name] /= stored[f"{module}.smoothing"]
    return copy_with(original, target, plain)


@pytest.mark.parametrize("form", FORMATS)
def test_foreign_checkpoint_gives_the_logits_of_its_numbers(folder: Path, tmp_path: Path, form: str) -> None:
    """Packed by a packer of its own, with biases, joined layers, an embedding and a head in the model's type."""
    packed, plain = foreign_pair(folder, form, tmp_path)

    torch.testing.assert_close(logits(packed), logits(plain), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("method", "worst"),
    [("int8", EIGHT_BITS * 0.06), ("w8a8", EIGHT_BITS * 0.06), ("int4", 0.03), ("nf4", 0.03), ("fp8", 1e-3)],
)
def test_our_checkpoint_gives_the_logits_of_its_numbers(
    folder: Path, tmp_path: Path, method: str, worst: float
) -> None:
    """int8, which is the head of four-bit models too, rounds activations on a CPU; fp8 is unpacked, so it is exact."""
    quantize_folder(folder, tmp_path / method, method, group_size=GROUP_SIZE, progress=lambda *_: None)

    found, expected = logits(tmp_path / method), logits(dequantized(tmp_path / method, folder, tmp_path / "plain"))

    assert (found - expected).norm() <= worst * expected.norm()
    assert not torch.allclose(found, logits(folder), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["int8", "fp8", "nf4"])
def test_our_checkpoint_equals_quantizing_on_load(folder: Path, tmp_path: Path, method: str) -> None:
    """The head of a four-bit model included, which has eight bits either way; as large in memory, too."""
    quantize_folder(folder, tmp_path / "small", method, progress=lambda *_: None)

    torch.testing.assert_close(logits(tmp_path / "small"), logits(folder, quantization=method), atol=1e-3, rtol=1e-3)
    assert load(tmp_path / "small").weight_bytes == load(folder, quantization=method).weight_bytes


def test_calibrated_checkpoint_undoes_an_outlier(folder: Path, tmp_path: Path) -> None:
    """Where one input of a layer towers over the others, w8a8 without calibration is several times worse."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("layernorm.weight"):
            tensor[5] *= 200
        elif name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")):
            tensor[:, 5] /= 200
    source = copy_with(folder, tmp_path / "outlier", tensors)
    expected = logits(source)
    peaks = collect_input_peaks(source, [TOKENS[:20], TOKENS[20:]], progress=lambda *_: None)
    errors = {}
    for name, found in (("plain", None), ("calibrated", peaks)):
        quantize_folder(source, tmp_path / name, "w8a8", input_peaks=found, progress=lambda *_: None)
        errors[name] = float((logits(tmp_path / name) - expected).norm() / expected.norm())

    assert errors["calibrated"] < errors["plain"] / 3
    assert errors["calibrated"] < EIGHT_BITS * 0.05


def test_input_peaks_are_those_of_every_layer(folder: Path) -> None:
    """Each module is there under its own name, with the largest input it saw, over all sequences."""
    peaks = collect_input_peaks(folder, [TOKENS[:9], TOKENS], progress=lambda *_: None)

    modules = {name.removesuffix(".weight") for name in load_file(folder / "model.safetensors") if is_layer(name)}
    assert set(peaks) == {*modules, "lm_head"}
    seen: list[Tensor] = []
    decoder = load(folder, observe=lambda names, x: seen.append(x) if "lm_head" in names else None)
    run_sequences(decoder, [TOKENS[:9]], num_decode=0, chunk=64)
    run_sequences(decoder, [TOKENS], num_decode=0, chunk=64)
    torch.testing.assert_close(peaks["lm_head"], torch.cat(seen).abs().amax(0))
    layer = "model.layers.0.self_attn."
    assert torch.equal(peaks[f"{layer}q_proj"], peaks[f"{layer}v_proj"])
    assert not torch.equal(peaks[f"{layer}q_proj"], peaks[f"{layer}o_proj"])


def test_input_peaks_of_nothing_are_refused(folder: Path) -> None:
    """A text without tokens calibrates nothing."""
    with pytest.raises(ModelError, match="no tokens to calibrate with"):
        collect_input_peaks(folder, [[]], progress=lambda *_: None)


Refusal = Callable[[Path], dict[str, Any]]
REFUSALS: dict[str, tuple[Refusal, str]] = {
    "quantized-twice": (lambda _: {"quantization": "int4"}, r"quantized already \(gptq\), so they cannot take quantiz"),
    "adapter": (lambda path: {"adapter": path}, "cannot take an adapter: start from the original"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_quantized_checkpoint_refuses_what_needs_the_original(folder: Path, tmp_path: Path, case: str) -> None:
    """The message says what the weights are, and what to do."""
    packed, _ = foreign_pair(folder, "gptq", tmp_path)
    options, message = REFUSALS[case]

    with pytest.raises(ModelError, match=message):
        load(packed, **options(tmp_path))


def test_quantized_checkpoint_of_another_shape_is_refused(folder: Path, tmp_path: Path) -> None:
    """Weights and config.json that do not belong together are told by the module's name."""
    packed, _ = foreign_pair(folder, "awq", tmp_path)
    config = json.loads((packed / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}))

    message = r"model\.safetensors: .*mlp\.gate_proj: the quantized weight has shape \[96, 64\], expected \[128"
    with pytest.raises(ModelError, match=message):
        load(packed)
