"""GGUF files written with the gguf package and read back as folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from backends.engine.errors import ModelError
from backends.engine.model.decoder import load_decoder
from backends.engine.model.gguf_file import NAMES, convert_gguf
from kernels.dispatch import select_ops
from tests.support.engine.engine_batches import run_sequences
from tests.support.engine.tiny_models import SHAPE, random_tokens, save_tiny_model, tiny_config

gguf = pytest.importorskip("gguf")
HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 8, 4, 32, 256


def ignore(done: int, total: int) -> None:
    """No progress bar."""


def weights() -> dict[str, Tensor]:
    """A few tensors by the decoder's names."""
    generator = torch.Generator().manual_seed(0)
    layer = "model.layers.11."
    shapes = {
        "model.embed_tokens.weight": (40, HIDDEN),
        f"{layer}input_layernorm.weight": (HIDDEN,),
        f"{layer}self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
        f"{layer}self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        f"{layer}mlp.down_proj.weight": (HIDDEN, 512),
    }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write_gguf(path: Path, architecture: str, quantization: str, *, extra: str | None = None) -> None:
    """The tensors of `weights` as llama.cpp's converter lays them out, matrices in `quantization`."""
    names = {
        "embed_tokens": "token_embd.weight",
        "input_layernorm": "blk.11.attn_norm.weight",
        "q_proj": "blk.11.attn_q.weight",
        "k_proj": "blk.11.attn_k.weight",
        "down_proj": "blk.11.ffn_down.weight",
    }
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    kind = gguf.GGMLQuantizationType[quantization]
    for name, weight in weights().items():
        module = name.split(".")[-2]
        if architecture == "llama" and module in ("q_proj", "k_proj"):
            # Number i and i + head_dim / 2 of a head become neighbours.
            order = [half * HEAD_DIM // 2 + i for i in range(HEAD_DIM // 2) for half in (0, 1)]
            weight = weight.view(-1, HEAD_DIM, HIDDEN)[:, order].reshape(weight.shape)
        data = weight.numpy()
        if weight.dim() == 2:
            writer.add_tensor(names[module], gguf.quants.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(names[module], data)
    if extra is not None:
        writer.add_tensor(extra, torch.ones(32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_companion(folder: Path) -> Path:
    """A folder with what a GGUF file lacks."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize(("quantization", "bound"), [("F32", 0.0), ("BF16", 4e-3), ("Q8_0", 0.01), ("Q4_0", 0.12)])
def test_convert_gguf_reads_back_what_was_written(
    tmp_path: Path, architecture: str, quantization: str, bound: float
) -> None:
    """Names, row order of the rotary heads and numbers return, as near as the file's type allows."""
    write_gguf(tmp_path / "model.gguf", architecture, quantization)
    calls: list[tuple[int, int]] = []

    convert_gguf(
        tmp_path / "model.gguf",
        write_companion(tmp_path / "companion"),
        tmp_path / "model",
        dtype=torch.float32,
        progress=lambda done, total: calls.append((done, total)),
    )

    read = load_file(tmp_path / "model/model.safetensors")
    expected = weights()
    assert read.keys() == expected.keys()
    for name, weight in expected.items():
        assert (read[name] - weight).norm() <= bound * weight.norm()
    assert calls[-1] == (len(expected), len(expected))
    assert json.loads((tmp_path / "model/config.json").read_text()) == {"model_type": "llama"}


def test_convert_gguf_q4_k_block_by_its_definition(tmp_path: Path) -> None:
    """A Q4_K block packed here number by number: d * scale * code - dmin * min, with 6-bit scales and mins."""
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 16, (8, 32), generator=generator).tolist()
    scales, mins = (torch.randint(0, 64, (8,), generator=generator).tolist() for _ in range(2))
    d, dmin = 0.5, 0.25
    packed_scales = [0] * 12
    for i in range(4):
        packed_scales[i] = scales[i] | (scales[i + 4] >> 4) << 6
        packed_scales[i + 4] = mins[i] | (mins[i + 4] >> 4) << 6
        packed_scales[i + 8] = scales[i + 4] & 15 | (mins[i + 4] & 15) << 4
    quants = [codes[2 * pair][i] | codes[2 * pair + 1][i] << 4 for pair in range(4) for i in range(32)]
    header = torch.tensor([d, dmin], dtype=torch.float16).view(torch.uint8).tolist()
    block = torch.tensor([*header, *packed_scales, *quants], dtype=torch.uint8)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_tensor("output.weight", block.unsqueeze(0).numpy(), raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    convert_gguf(
        tmp_path / "model.gguf",
        write_companion(tmp_path / "companion"),
        tmp_path / "model",
        dtype=torch.float32,
        progress=ignore,
    )

    expected = [d * scales[i] * code - dmin * mins[i] for i in range(8) for code in codes[i]]
    read = load_file(tmp_path / "model/model.safetensors")["lm_head.weight"]
    torch.testing.assert_close(read, torch.tensor([expected]))


def test_convert_gguf_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    """Each refusal names the file and what was wrong, and leaves nothing behind."""
    companion = write_companion(tmp_path / "companion")
    write_gguf(tmp_path / "good.gguf", "llama", "F32")
    write_gguf(tmp_path / "other.gguf", "mamba", "F32")
    write_gguf(tmp_path / "extra.gguf", "llama", "F32", extra="blk.0.ssm_a.weight")
    (tmp_path / "torn.gguf").write_bytes((tmp_path / "good.gguf").read_bytes()[:90])
    (tmp_path / "text.gguf").write_text("not a model, but long enough to hold a header")
    before = sorted(path.name for path in tmp_path.iterdir())

    for file, base, target, message in (
        ("none.gguf", companion, "new", r"none\.gguf does not exist"),
        ("torn.gguf", companion, "new", r"torn\.gguf is torn or no GGUF file"),
        ("text.gguf", companion, "new", r"text\.gguf is torn or no GGUF file"),
        ("other.gguf", companion, "new", "architecture 'mamba' is not read from GGUF; read are llama"),
        ("extra.gguf", companion, "new", r"'blk\.0\.ssm_a\.weight' has no place"),
        ("good.gguf", tmp_path, "new", r"config\.json does not exist"),
        ("good.gguf", companion, "companion", "companion exists"),
    ):
        with pytest.raises(ModelError, match=message):
            convert_gguf(tmp_path / file, base, tmp_path / target, progress=ignore)

    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_convert_gguf_of_a_whole_model_gives_its_logits(tmp_path: Path) -> None:
    """What the decoder reads back is the model that was written, rotary heads in order."""
    save_tiny_model(tmp_path / "original", tiny_config("Llama"))
    ours_to_gguf = {ours: theirs for theirs, ours in NAMES.items()}
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    for name, weight in load_file(tmp_path / "original/model.safetensors").items():
        module, prefix = name.removesuffix(".weight"), ""
        if module.startswith("model.layers."):
            number, module = module.removeprefix("model.layers.").split(".", 1)
            prefix = f"blk.{number}."
        if module.endswith(("q_proj", "k_proj")):
            heads = weight.view(-1, 2, SHAPE["head_dim"] // 2, weight.shape[1])
            weight = heads.transpose(1, 2).reshape(weight.shape)
        writer.add_tensor(f"{prefix}{ours_to_gguf[module]}.weight", weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    convert_gguf(
        tmp_path / "model.gguf", tmp_path / "original", tmp_path / "model", dtype=torch.float32, progress=ignore
    )

    tokens = random_tokens(20, SHAPE["vocab_size"], seed=1)
    found, expected = (
        run_sequences(
            load_decoder(tmp_path / name, dtype=None, device=torch.device("cpu"), ops=select_ops("cpu")),
            [tokens],
            num_decode=2,
            chunk=16,
        )[0]
        for name in ("model", "original")
    )
    assert torch.equal(found, expected)
