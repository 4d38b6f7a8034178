"""GGUF files as Hugging Face folders: weights dequantized, names and row order as the decoder expects them.

The file's own tokenizer is not read; config.json and tokenizer come from a folder of the same model.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from backends.engine.errors import ModelError
from backends.engine.model.checkpoint import SINGLE_FILE, write_tensors

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""GGUF's names of modules and ours; those of a layer lie behind blk.N and model.layers.N."""
READ_ARCHITECTURES = ("llama", "qwen2", "qwen3")
SKIPPED = ("rope_freqs.weight",)
"""Derived from config.json, which has them too."""


def convert_gguf(
    path: Path,
    companion: Path,
    target: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    progress: Callable[[int, int], None],
) -> None:
    """Writes the GGUF file `path` as the new folder `target`, dequantized to `dtype`, unquantized tensors likewise.

    `companion`: a folder with the model's config.json and tokenizer; its weights are not looked at. All types that the
    gguf package dequantizes are read, Q4_0, Q8_0 and Q4_K among them. Holds the whole model in memory.
    `progress(done, total)` is called after each tensor. Raises ModelError for a file that is torn, an architecture or
    tensor that is unknown, a target that exists, or where the gguf package is missing.
    """
    if target.exists():
        raise ModelError(f"{target} exists: name a folder that does not")
    if not (companion / "config.json").exists():
        raise ModelError(f"{companion / 'config.json'} does not exist: name a folder with the model's config.json")
    tensors = _read(path, dtype, progress)
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for file in companion.iterdir():
        if file.is_file() and file.suffix not in (".safetensors", ".gguf") and not file.name.endswith(".index.json"):
            shutil.copyfile(file, partial / file.name)
    write_tensors(partial / SINGLE_FILE, tensors)
    partial.rename(target)


def _read(path: Path, dtype: torch.dtype, progress: Callable[[int, int], None]) -> dict[str, Tensor]:
    try:
        from gguf import GGUFReader
        from gguf.quants import dequantize
    except ImportError as exc:
        raise ModelError("the package 'gguf' is missing: pip install gguf") from exc
    try:
        reader = GGUFReader(path)
    except FileNotFoundError as exc:
        raise ModelError(f"{path} does not exist") from exc
    except (ValueError, IndexError, OSError) as exc:
        raise ModelError(f"{path} is torn or no GGUF file ({exc}): copy it again") from exc

    def field(name: str) -> object:
        found = reader.get_field(name)
        if found is None:
            raise ModelError(f"{path}: the field {name!r} is missing")
        return found.contents()

    architecture = field("general.architecture")
    if architecture not in READ_ARCHITECTURES:
        raise ModelError(
            f"{path}: architecture {architecture!r} is not read from GGUF; read are {', '.join(READ_ARCHITECTURES)}"
        )
    num_heads = int(str(field(f"{architecture}.attention.head_count")))
    num_kv_heads = int(str(field(f"{architecture}.attention.head_count_kv")))
    tensors: dict[str, Tensor] = {}
    for done, stored in enumerate(reader.tensors, start=1):
        if stored.name not in SKIPPED:
            weight = torch.from_numpy(dequantize(stored.data, stored.tensor_type).copy())
            if architecture == "llama" and ".attn_q." in stored.name:
                weight = _half_split(weight, num_heads)
            elif architecture == "llama" and ".attn_k." in stored.name:
                weight = _half_split(weight, num_kv_heads)
            tensors[_our_name(stored.name, path)] = weight.to(dtype)
        progress(done, len(reader.tensors))
    return tensors


def _our_name(name: str, path: Path) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    module, _, kind = name.rpartition(".")
    prefix = ""
    if module.startswith("blk."):
        _, number, module = module.split(".", 2)
        prefix = f"model.layers.{number}."
    if module not in NAMES:
        raise ModelError(f"{path}: tensor {name!r} has no place in the architectures that are read")
    return f"{prefix}{NAMES[module]}.{kind}"


def _half_split(weight: Tensor, num_heads: int) -> Tensor:
    """Rows [heads * head_dim, ...] whose rotary pairs are neighbours -> number i pairs with i + head_dim / 2."""
    return weight.reshape(num_heads, weight.shape[0] // num_heads // 2, 2, -1).transpose(1, 2).reshape(weight.shape)
