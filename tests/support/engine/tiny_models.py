"""Tiny random models of each family, saved as Hugging Face folders by transformers, which is also the judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 2,
}
"""What all families understand."""

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def tiny_config(family: str, **fields: Any) -> transformers.PretrainedConfig:
    """A transformers config, such as `tiny_config("Llama", head_dim=24)`; None removes a field of SHAPE."""
    shape = {name: value for name, value in (SHAPE | fields).items() if value is not None}
    config: transformers.PretrainedConfig = getattr(transformers, f"{family}Config")(**shape)
    return config


def save_tiny_model(folder: Path, config: transformers.PretrainedConfig, *, seed: int = 0) -> Callable[..., Any]:
    """Random weights for `config`, every one of them (norms and biases too), in `folder`; returns the model."""
    torch.manual_seed(seed)
    make: Callable[..., Any] = transformers.AutoModelForCausalLM.from_config
    model = make(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name
            parameter.normal_(0.0, 0.1 if parameter.dim() == 1 else 0.15)
            if is_norm and "gemma" not in config.model_type:
                parameter.add_(1.0)
    model.save_pretrained(folder)
    return model  # type: ignore[no-any-return]  # transformers is untyped here


def judge_logits(model: Callable[..., Any], tokens: Sequence[int]) -> Tensor:
    """[length, vocab] float32: the model's own answer to one sequence in one pass."""
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits.float()


def random_tokens(length: int, vocab_size: int, *, seed: int) -> list[int]:
    """Seeded token ids."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(vocab_size, (length,), generator=generator).tolist()
    return ids
