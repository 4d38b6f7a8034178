"""The same weights in the shortest loop there is: contiguous keys and values, all prompts in step, no scheduler.

What paging, scheduling and events cost is the engine's time over this one's. Linear layers and norms are the engine's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from backends.engine.config import ModelConfig
from backends.engine.linear import Linear
from backends.engine.rope import rope_table
from backends.engine.weights import Weights
from kernels.act import gated_activation_reference
from kernels.norm import rms_norm_reference


class PlainLlama:
    """A Llama without biases, for prompts of one length."""

    def __init__(self, folder: Path, *, quantization: str | None = None) -> None:
        """Raises ModelError."""
        self._config = config = ModelConfig.from_folder(folder)
        device = torch.device("cpu")
        weights = Weights(folder, dtype=None, device=device, quantization=quantization)
        hidden, size = config.hidden_size, config.intermediate_size
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self._embedding = weights.tensor("model.embed_tokens.weight", config.vocab_size, hidden)
        self._layers = []
        for number in range(config.num_layers):
            prefix = f"model.layers.{number}"
            names = [f"{prefix}.self_attn.{part}_proj" for part in "qkv"]
            self._layers.append(
                _Layer(
                    weights.linear(names, [queries, keys, keys], hidden),
                    weights.linear([f"{prefix}.self_attn.o_proj"], [hidden], queries),
                    weights.linear([f"{prefix}.mlp.{part}_proj" for part in ("gate", "up")], [size, size], hidden),
                    weights.linear([f"{prefix}.mlp.down_proj"], [hidden], size),
                    weights.tensor(f"{prefix}.input_layernorm.weight", hidden),
                    weights.tensor(f"{prefix}.post_attention_layernorm.weight", hidden),
                )
            )
        self._norm = weights.tensor("model.norm.weight", hidden)
        self._head = weights.linear(["lm_head"], [config.vocab_size], hidden)
        self._table = rope_table(config.rope, config.max_positions, device)

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """Greedy tokens a second over all prompts, `num_tokens` for each."""
        began = time.perf_counter()
        config = self._config
        batch, num_prompt = len(prompts), len(prompts[0])
        shape = (config.num_layers, 2, batch, config.num_kv_heads, num_prompt + num_tokens, config.head_dim)
        cache = torch.empty(shape, dtype=self._embedding.dtype)
        ids, at = torch.tensor(prompts), 0
        made = []
        for _ in range(num_tokens):
            logits = self._forward(ids, at, cache)
            at += ids.shape[1]
            ids = logits.argmax(1, keepdim=True)
            made.append(ids.flatten().tolist())
        return batch * len(made) / (time.perf_counter() - began)

    def _forward(self, ids: Tensor, at: int, cache: Tensor) -> Tensor:
        """[batch, tokens] from position `at` on -> the logits behind the last, [batch, vocab]."""
        config = self._config
        batch, count = ids.shape
        hidden, residual = functional.embedding(ids.flatten(), self._embedding), None
        cos, sin = self._table[at : at + count].view(1, count, 1, 2, -1).unbind(3)
        for layer, (keys, values) in zip(self._layers, cache.unbind(0), strict=True):
            normed, residual = rms_norm_reference(hidden, layer.attention_norm, config.norm_eps, residual=residual)
            heads = layer.qkv(normed).view(batch, count, -1, config.head_dim)
            turning, value = heads.split_with_sizes((config.num_heads + config.num_kv_heads, config.num_kv_heads), 2)
            first, second = turning.float().chunk(2, -1)
            turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(heads.dtype)
            query, key = turned.transpose(1, 2).split_with_sizes((config.num_heads, config.num_kv_heads), 1)
            keys[:, :, at : at + count], values[:, :, at : at + count] = key, value.transpose(1, 2)
            attended = self._attend(query, keys[:, :, : at + count], values[:, :, : at + count])
            hidden = layer.output(attended)
            normed, residual = rms_norm_reference(hidden, layer.feed_forward_norm, config.norm_eps, residual=residual)
            hidden = layer.down(gated_activation_reference(layer.gate_up(normed), config.activation))
        hidden, _ = rms_norm_reference(hidden, self._norm, config.norm_eps, residual=residual)
        return self._head(hidden.view(batch, count, -1)[:, -1]).float()

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """[batch, heads, tokens, D] over [batch, kv_heads, positions, D] -> [batch * tokens, heads * D]."""
        batch, num_heads, count, head_dim = query.shape
        if count == 1:
            # The heads that share a KV head are rows of one product.
            rows = query.reshape(batch, keys.shape[1], -1, head_dim)
            return functional.scaled_dot_product_attention(rows, keys, values).reshape(batch, -1)
        out = functional.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).reshape(batch * count, num_heads * head_dim)


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: Linear
    output: Linear
    gate_up: Linear
    down: Linear
    attention_norm: Tensor
    feed_forward_norm: Tensor
