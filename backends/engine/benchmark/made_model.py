"""A Llama of 77 million random weights as a Hugging Face folder: what speed is measured on without a download.

640 wide, 12 layers, 10 heads of 64 on 5 KV heads, 1792 between, 16384 tokens, the head apart from the embedding.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 16384,
    "hidden_size": 640,
    "intermediate_size": 1792,
    "num_hidden_layers": 12,
    "num_attention_heads": 10,
    "num_key_value_heads": 5,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SPECIAL = ("<unk>", "<s>", "</s>")
_STANDARD_DEVIATION = 0.02


def make_model(folder: Path, *, seed: int = 0, config: dict[str, object] | None = None, device: str = "cpu") -> None:
    """Writes config.json, model.safetensors in bf16 and a byte-level tokenizer; `config` replaces fields.

    `device` draws the weights, others than another would.
    """
    chosen = _CONFIG | (config or {})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(chosen), encoding="utf-8")
    save_file(_weights(chosen, seed, device), folder / "model.safetensors", metadata={"format": "pt"})
    _save_tokenizer(folder, int(str(chosen["vocab_size"])))


def random_prompts(count: int, num_tokens: int, seed: int) -> list[list[int]]:
    """Prompts of the made model's ordinary tokens, no two alike."""
    rng = Random(seed)
    return [[rng.randrange(512, 16384) for _ in range(num_tokens)] for _ in range(count)]


def _weights(config: dict[str, object], seed: int, device: str) -> dict[str, torch.Tensor]:
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")
    vocab, hidden, inner, num_layers, head_dim = (int(str(config[name])) for name in names)
    queries, keys = (int(str(config[f"num_{kind}_heads"])) * head_dim for kind in ("attention", "key_value"))
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (vocab, hidden))
    for number in range(num_layers):
        layer = f"model.layers.{number}"
        shapes |= {
            f"{layer}.self_attn.q_proj.weight": (queries, hidden),
            f"{layer}.self_attn.k_proj.weight": (keys, hidden),
            f"{layer}.self_attn.v_proj.weight": (keys, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, queries),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
        }
    generator = torch.Generator(device).manual_seed(seed)
    weights = {
        name: (torch.randn(shape, generator=generator, device=device) * _STANDARD_DEVIATION).bfloat16().cpu()
        for name, shape in shapes.items()
    }
    norms = [f"model.layers.{number}.{part}" for number in range(num_layers) for part in _NORMS]
    return weights | {f"{name}.weight": torch.ones(hidden, dtype=torch.bfloat16) for name in (*norms, "model.norm")}


def _save_tokenizer(folder: Path, vocab_size: int) -> None:
    entries = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    entries += [f"w{number}" for number in range(vocab_size - len(entries))]
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    # llama.cpp takes no byte-level vocabulary without a merge.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("w", "0")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    # ctranslate2 asks for all three by name.
    fields = dict(zip(("unk_token", "bos_token", "eos_token"), _SPECIAL, strict=True))
    fields["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(fields), encoding="utf-8")


_NORMS = ("input_layernorm", "post_attention_layernorm")
