"""A Llama folder as GGUF in q8_0, for llama.cpp. Norms stay in float32, as its own converter has it."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_ORDINARY, _CONTROL = 1, 3


def export_q8_0(folder: Path, path: Path, gguf: ModuleType) -> None:
    """Writes the folder's model to `path`; `gguf` is the package of that name."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, folder)
    for name, tensor in load_file(folder / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        if stem.startswith("model.layers."):
            number, _, part = stem.removeprefix("model.layers.").partition(".")
            target = f"blk.{number}.{_NAMES[part]}.weight"
        else:
            target = f"{_NAMES[stem]}.weight"
        tensor = tensor.float()
        if stem.endswith(("q_proj", "k_proj")):
            tensor = _interleaved(tensor, heads if stem.endswith("q_proj") else kv_heads)
        if tensor.dim() == 1:
            writer.add_tensor(target, tensor.numpy())
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(target, gguf.quants.quantize(tensor.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, folder: Path) -> None:
    """The vocabulary of a byte-level BPE; the first three entries are control tokens."""
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL] * 3 + [_ORDINARY] * (len(tokens) - 3))
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _interleaved(weight: Tensor, num_heads: int) -> Tensor:
    """Rows of each head from the half-split rotary order of Hugging Face to the pairs that llama.cpp turns."""
    out_size, in_size = weight.shape
    pairs = weight.view(num_heads, 2, out_size // num_heads // 2, in_size)
    return torch.transpose(pairs, 1, 2).reshape(out_size, in_size).contiguous()
