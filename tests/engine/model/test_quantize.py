"""Quantized folders written and read back, and GPTQ and AWQ tensors packed here, number by number, and read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backends.engine.errors import ModelError
from backends.engine.model.json_fields import JsonFields
from backends.engine.model.quantize import quantize_folder, smoothing_scales
from backends.engine.model.quantized_formats import QuantizationConfig
from backends.engine.model.quantized_reader import read_quantized
from backends.engine.model.shard import WeightShare
from tests.support.kernels.packed_weights import Packer, pack_awq, pack_gptq, pack_gptq3

CPU = torch.device("cpu")
METHODS = ("int8", "w8a8", "int4", "nf4", "fp8")
WORST = {"int8": 0.02, "w8a8": 0.02, "int4": 0.2, "nf4": 0.2, "fp8": 0.04}
ATTENTION = "model.layers.0.self_attn."
GATE = "model.layers.0.mlp.gate.weight"


def write_model(folder: Path, *, sharded: bool = False) -> dict[str, Tensor]:
    """A folder with a few tensors of a model, and those tensors."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "model.embed_tokens.weight": (40, 128),
        "model.norm.weight": (128,),
        f"{ATTENTION}q_proj.weight": (64, 128),
        f"{ATTENTION}k_proj.weight": (32, 128),
        f"{ATTENTION}q_proj.bias": (64,),
        GATE: (4, 128),
        "lm_head.weight": (40, 128),
    }
    tensors = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}
    folder.mkdir()
    names = list(tensors)
    files = {"a.safetensors": names[:3], "b.safetensors": names[3:]} if sharded else {"model.safetensors": names}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    if sharded:
        weight_map = {name: file for file, held in files.items() for name in held}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (folder / "tokenizer.json").write_text("{}")
    return tensors


def quantization_config(fields: dict[str, object]) -> QuantizationConfig:
    """From the fields of config.json's object."""
    return QuantizationConfig.from_fields(JsonFields(fields, "config.json"))


def read_config(folder: Path) -> QuantizationConfig:
    """What the folder's config.json says of its quantization."""
    return quantization_config(json.loads((folder / "config.json").read_text())["quantization_config"])


def ignore(done: int, total: int) -> None:
    """No progress bar."""


@pytest.mark.parametrize("method", METHODS)
def test_quantize_folder_read_back_stays_near_the_original(tmp_path: Path, method: str) -> None:
    """Modules are read alone or joined, with their bias, and what is no linear layer stays bit by bit."""
    tensors = write_model(tmp_path / "model")
    quantize_folder(tmp_path / "model", tmp_path / "small", method, group_size=64, progress=ignore)
    written = load_file(tmp_path / "small/model.safetensors")
    names = [f"{ATTENTION}q_proj", f"{ATTENTION}k_proj"]
    pieces = [WeightShare.whole(name, size, 128) for name, size in zip(names, (64, 32), strict=True)]
    bias = torch.randn(96)
    x = torch.randn(5, 128)

    linear = read_quantized(
        pieces, written.get, read_config(tmp_path / "small"), bias=bias, dtype=torch.float32, device=CPU
    )

    assert linear is not None
    expected = x @ torch.cat([tensors[f"{name}.weight"] for name in names]).float().T
    assert (linear(x) - bias - expected).norm() <= WORST[method] * expected.norm()
    for kept in ("model.embed_tokens.weight", "model.norm.weight", f"{ATTENTION}q_proj.bias", GATE):
        assert torch.equal(written[kept], tensors[kept])
    assert f"{ATTENTION}q_proj.weight" not in written
    assert written["lm_head.qweight"].dtype == (torch.float8_e4m3fn if method == "fp8" else torch.int8)
    assert (tmp_path / "small/tokenizer.json").read_text() == "{}"


def test_quantize_folder_shards_keep_their_index_and_progress(tmp_path: Path) -> None:
    """Each file is written under its name, the index finds every tensor, and progress counts to the end."""
    tensors = write_model(tmp_path / "model", sharded=True)
    calls: list[tuple[int, int]] = []

    quantize_folder(
        tmp_path / "model", tmp_path / "small", "int8", progress=lambda done, total: calls.append((done, total))
    )

    weight_map = json.loads((tmp_path / "small/model.safetensors.index.json").read_text())["weight_map"]
    held = {name: file for file in ("a.safetensors", "b.safetensors") for name in load_file(tmp_path / "small" / file)}
    assert weight_map == held
    assert calls == [(done, len(tensors)) for done in range(1, len(tensors) + 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "small"]


def test_quantize_folder_is_written_for_whoever_may_read_the_folder(tmp_path: Path) -> None:
    """A model quantized by one account is served by another."""
    write_model(tmp_path / "model")
    quantize_folder(tmp_path / "model", tmp_path / "small", "int8", progress=lambda done, total: None)

    assert (tmp_path / "small").stat().st_mode & 0o044 == 0o044
    assert (tmp_path / "small/model.safetensors").stat().st_mode & 0o666 == (tmp_path / "small").stat().st_mode & 0o666


def test_quantize_folder_with_input_peaks_undoes_an_outlier(tmp_path: Path) -> None:
    """A smoothed module carries what its inputs must be divided by, and reads better than an unsmoothed one."""
    tensors = write_model(tmp_path / "model")
    x = torch.randn(16, 128)
    x[:, 3] *= 300
    name = f"{ATTENTION}q_proj"
    piece = WeightShare.whole(name, 64, 128)
    peaks = {name: x.abs().amax(0)}
    quantize_folder(tmp_path / "model", tmp_path / "plain", "w8a8", progress=ignore)
    quantize_folder(tmp_path / "model", tmp_path / "smooth", "w8a8", input_peaks=peaks, progress=ignore)
    # Only the small inputs tell: the outlier's own product drowns them.
    weight = tensors[f"{name}.weight"].float()
    errors = []
    for folder in (tmp_path / "plain", tmp_path / "smooth"):
        written = load_file(folder / "model.safetensors")
        linear = read_quantized([piece], written.get, read_config(folder), bias=None, dtype=torch.float32, device=CPU)
        assert linear is not None
        errors.append(float((linear(x) - x @ weight.T).norm()))

    assert errors[1] < errors[0] / 2


def test_smoothing_scales_strength_moves_all_or_nothing() -> None:
    """At 1 the activations become even; at 0 the weights do."""
    peaks, weight_peaks = torch.tensor([1.0, 100.0]), torch.tensor([8.0, 4.0])

    torch.testing.assert_close(smoothing_scales(peaks, weight_peaks, strength=1.0), peaks)
    torch.testing.assert_close(smoothing_scales(peaks, weight_peaks, strength=0.0), torch.tensor([1 / 8, 1 / 4]))


def test_quantize_folder_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    """Each refusal names what was wrong, and leaves nothing behind."""
    write_model(tmp_path / "model")
    quantize_folder(tmp_path / "model", tmp_path / "small", "int8", progress=ignore)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/config.json").write_text("{}")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/config.json").write_text("{}")
    (tmp_path / "torn/model.safetensors").write_bytes(b"\x08\x00")
    before = sorted(path.name for path in tmp_path.iterdir())

    for source, target, method, message in (
        ("model", "new", "int3", "'int3' is unknown; known are int8"),
        ("model", "small", "int8", "small exists"),
        ("small", "new", "int8", "quantized already"),
        ("empty", "new", "int8", r"model\.safetensors does not exist"),
        ("torn", "new", "int8", "torn or no safetensors"),
        ("nowhere", "new", "int8", r"config\.json does not exist"),
    ):
        with pytest.raises(ModelError, match=message):
            quantize_folder(tmp_path / source, tmp_path / target, method, progress=ignore)

    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_read_quantized_plain_module_is_none_and_torn_one_an_error(tmp_path: Path) -> None:
    """A module that stayed as it was is the caller's; one without its scales names them."""
    write_model(tmp_path / "model")
    quantize_folder(tmp_path / "model", tmp_path / "small", "int4", progress=ignore)
    written = load_file(tmp_path / "small/model.safetensors")
    config = read_config(tmp_path / "small")

    def read(name: str, num_out: int = 64) -> object:
        piece = WeightShare.whole(name, num_out, 128)
        return read_quantized([piece], written.get, config, bias=None, dtype=torch.float32, device=CPU)

    assert read("model.layers.0.mlp.gate") is None
    with pytest.raises(ModelError, match=r"q_proj: the quantized weight has shape \[64, 128\], expected \[48, 128\]"):
        read(f"{ATTENTION}q_proj", 48)
    written[f"{ATTENTION}q_proj.scales"] = torch.ones(3, 2)
    with pytest.raises(ModelError, match=r"q_proj: scales \[3, 2\] do not fit qweight \[64, 64\]"):
        read(f"{ATTENTION}q_proj")
    del written[f"{ATTENTION}q_proj.scales"]
    with pytest.raises(ModelError, match=r"q_proj\.scales' is missing"):
        read(f"{ATTENTION}q_proj")


FORMATS: dict[str, tuple[dict[str, object], Packer]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 64}, pack_gptq),
    "gptq-3-bits": ({"quant_method": "gptq", "bits": 3, "group_size": 64}, pack_gptq3),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}, pack_awq),
}


def foreign_module(packer: Packer, name: str, *, zero: int | None, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """A module of 128 inputs and 32 outputs in a foreign format, and its weight [32, 128]."""
    generator = torch.Generator().manual_seed(seed)
    codes_end = 8 if packer is pack_gptq3 else 16
    codes = torch.randint(0, codes_end, (128, 32), generator=generator)
    zeros = torch.randint(0, codes_end, (2, 32), generator=generator)
    if zero is not None:
        zeros.fill_(zero % codes_end)
    scales = (torch.rand(2, 32, generator=generator) * 0.02 + 0.001).half()
    qweight, qzeros = packer(codes.tolist(), zeros.tolist())
    weight = (codes - zeros.repeat_interleave(64, 0)).double() * scales.double().repeat_interleave(64, 0)
    return {f"{name}.qweight": qweight, f"{name}.qzeros": qzeros, f"{name}.scales": scales}, weight.T


@pytest.mark.parametrize("form", FORMATS.keys())
@pytest.mark.parametrize("zero", [8, None], ids=["symmetric", "zero-points"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])
def test_read_quantized_foreign_format_equals_its_definition(form: str, zero: int | None, dtype: torch.dtype) -> None:
    """Modules packed one number at a time read as (code - zero) * scale, joined in their order."""
    fields, packer = FORMATS[form]
    first, first_weight = foreign_module(packer, "q", zero=zero, seed=1)
    second, second_weight = foreign_module(packer, "k", zero=zero, seed=2)
    x = torch.randn(6, 128).to(dtype)

    linear = read_quantized(
        [WeightShare.whole(name, 32, 128) for name in "qk"],
        (first | second).get,
        quantization_config(fields),
        bias=None,
        dtype=dtype,
        device=CPU,
    )

    assert linear is not None
    expected = x.double() @ torch.cat([first_weight, second_weight]).T
    assert (linear(x).double() - expected).norm() <= 6e-3 * expected.norm()


SHORT = {
    # inputs, inputs of a scale
    "half": (192, 128),
    "quarter": (160, 128),
    "odd": (96, 65),
    "longer-than-the-inputs": (64, 128),
}


@pytest.mark.parametrize("form", FORMATS.keys())
@pytest.mark.parametrize("case", SHORT.keys())
@pytest.mark.parametrize("has_index", [False, True], ids=["plain", "g_idx"])
def test_read_quantized_short_last_group_has_its_own_scale(form: str, case: str, has_index: bool) -> None:
    """Where the group's size does not divide the inputs, the last group is short; it is neither refused nor are the
    groups taken to be even.
    """
    (fields, packer), (num_in, size) = FORMATS[form], SHORT[case]
    num_groups = -(-num_in // size)
    generator = torch.Generator().manual_seed(5)
    codes_end = 8 if packer is pack_gptq3 else 16
    codes = torch.randint(0, codes_end, (num_in, 32), generator=generator)
    zeros = torch.randint(0, codes_end, (num_groups, 32), generator=generator)
    scales = (torch.rand(num_groups, 32, generator=generator) * 0.02 + 0.001).half()
    qweight, qzeros = packer(codes.tolist(), zeros.tolist())
    groups = torch.arange(num_in) // size
    tensors = {"q.qweight": qweight, "q.qzeros": qzeros, "q.scales": scales}
    if has_index and "gptq" in form:
        tensors["q.g_idx"] = groups.int()
    x = torch.randn(6, num_in, generator=generator)

    linear = read_quantized(
        [WeightShare.whole("q", 32, num_in)],
        tensors.get,
        quantization_config(fields | {"group_size": size}),
        bias=None,
        dtype=torch.float32,
        device=CPU,
    )

    assert linear is not None
    expected = x.double() @ ((codes - zeros[groups]).double() * scales.double()[groups])
    assert (linear(x).double() - expected).norm() <= 6e-3 * expected.norm()


def test_read_quantized_gptq_sorted_inputs_find_their_groups() -> None:
    """With activation order the inputs of a group lie apart, and one such module among others changes nothing."""
    generator = torch.Generator().manual_seed(3)
    tensors, _ = foreign_module(pack_gptq, "q", zero=None, seed=1)
    plain, plain_weight = foreign_module(pack_gptq, "k", zero=None, seed=2)
    groups = torch.randperm(128, generator=generator) // 64
    tensors["q.g_idx"] = groups.int()
    # The same codes and zeros as before, each input now by its own group.
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 16, (128, 32), generator=generator)
    zeros = torch.randint(0, 16, (2, 32), generator=generator)
    weight = ((codes - zeros[groups]).double() * tensors["q.scales"].double()[groups]).T
    x, bias = torch.randn(6, 128), torch.randn(64)

    linear = read_quantized(
        [WeightShare.whole(name, 32, 128) for name in "qk"],
        (tensors | plain).get,
        quantization_config(FORMATS["gptq"][0]),
        bias=bias,
        dtype=torch.float32,
        device=CPU,
    )

    assert linear is not None
    expected = x.double() @ torch.cat([weight, plain_weight]).T + bias
    assert (linear(x).double() - expected).norm() <= 5e-3 * expected.norm()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "'quant_method' is 'bitsandbytes', expected one of slipstream, gptq, awq"),
        ({"quant_method": "slipstream", "method": "int3"}, "'method' is 'int3', expected one of int8, w8a8"),
        ({"quant_method": "gptq", "bits": 2}, "'bits' is 2, expected 4 or 3: gptq is read with no other"),
        ({"quant_method": "awq", "w_bit": 3}, "'w_bit' is 3, expected 4: awq is read with no other"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "'version' is 'gemv', expected 'gemm'"),
        ({}, "'quant_method' is None, expected one of slipstream, gptq, awq"),
    ],
    ids=["unknown", "our-method", "two-bits", "three-bits", "gemv", "empty"],
)
def test_quantization_config_other_formats_are_refused(fields: dict[str, object], message: str) -> None:
    """The message says what is read."""
    with pytest.raises(ModelError, match=message):
        quantization_config(fields)


@pytest.mark.parametrize("form", FORMATS.keys())
def test_read_quantized_foreign_shapes_that_disagree_are_refused(form: str) -> None:
    """Scales of another module are an error that names the module, not a wrong answer."""
    fields, packer = FORMATS[form]
    tensors, _ = foreign_module(packer, "q", zero=8, seed=1)
    tensors["q.scales"] = torch.ones(2, 24).half()

    with pytest.raises(ModelError, match=r"q: qzeros .* do not fit a weight of 128 inputs and 32 outputs"):
        read_quantized(
            [WeightShare.whole("q", 32, 128)],
            tensors.get,
            quantization_config(fields),
            bias=None,
            dtype=torch.float32,
            device=CPU,
        )
