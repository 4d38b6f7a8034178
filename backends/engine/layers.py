"""The blocks of the decoder: one transformer layer, its feed-forward part, and routed experts."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from backends.engine.batch import Batch
from backends.engine.config import ExpertsConfig, ModelConfig
from backends.engine.weights import Weights
from kernels.dispatch import GatedActivation, Ops
from kernels.paging import PagedKV


class Layer:
    """Attention and feed-forward of one layer, each joined to the residual."""

    def __init__(self, config: ModelConfig, number: int, weights: Weights, ops: Ops) -> None:
        """Reads its weights. Raises ModelError."""
        self._config = config
        self._ops = ops
        window = config.windows[number]
        self._window = window if window < config.max_positions else 0
        prefix = f"model.layers.{number}."
        attention, hidden, head_dim = f"{prefix}self_attn.", config.hidden_size, config.head_dim
        query_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
        names = [f"{attention}{part}_proj" for part in (["qkv"] if config.fused_names else "qkv")]
        self._qkv = weights.linear(
            names, [query_size, kv_size, kv_size], hidden, bias=config.qkv_bias, split="outputs", unit=head_dim
        )
        self._output = weights.linear(
            [f"{attention}o_proj"], [hidden], query_size, bias=config.output_bias, split="inputs"
        )
        self._num_heads = config.num_heads // weights.shard.count
        self._q_norm, self._k_norm = (
            weights.tensor(f"{attention}{part}_norm.weight", head_dim) if config.qk_norm else None for part in "qk"
        )
        self._feed_forward = _feed_forward(config, number, weights, ops.gated_activation)
        self._attention_norm = weights.tensor(f"{prefix}input_layernorm.weight", hidden)
        after_attention = weights.tensor(f"{prefix}post_attention_layernorm.weight", hidden)
        if config.post_norms:
            self._attention_post_norm: Tensor | None = after_attention
            self._feed_forward_norm = weights.tensor(f"{prefix}pre_feedforward_layernorm.weight", hidden)
            self._feed_forward_post_norm: Tensor | None = weights.tensor(
                f"{prefix}post_feedforward_layernorm.weight", hidden
            )
        else:
            self._attention_post_norm = self._feed_forward_post_norm = None
            self._feed_forward_norm = after_attention

    def __call__(
        self, hidden: Tensor, residual: Tensor | None, batch: Batch, kv: PagedKV, cos_sin: Tensor, *, is_last: bool
    ) -> tuple[Tensor, Tensor]:
        """(what this layer's feed-forward adds, the residual it is to be added to).

        `hidden` [tokens, hidden_size] is what the layer before added, `residual` None is zero. The last layer goes on
        with `batch.rows` alone once their neighbours have been seen: both results are [rows, hidden_size].
        """
        config, norm = self._config, self._ops.rms_norm
        eps, offset = config.norm_eps, config.norm_offset
        normed, residual = norm(hidden, self._attention_norm, eps, residual=residual, offset=offset)
        queries = self._ops.rope_store(
            self._qkv(normed),
            cos_sin,
            batch.positions,
            kv,
            batch.slots,
            num_heads=self._num_heads,
            q_norm=self._q_norm,
            k_norm=self._k_norm,
            eps=eps,
            offset=offset,
        )
        attended = self._ops.paged_attention(
            queries,
            kv,
            batch.plan,
            scale=config.attention_scale,
            window=self._window,
            softcap=config.attention_softcap,
        ).flatten(1)
        if is_last:
            attended, residual = attended.index_select(0, batch.rows), residual.index_select(0, batch.rows)
        hidden = self._joining(self._output(attended), self._attention_post_norm)
        normed, residual = norm(hidden, self._feed_forward_norm, eps, residual=residual, offset=offset)
        return self._joining(self._feed_forward(normed), self._feed_forward_post_norm), residual

    def _joining(self, hidden: Tensor, post_norm: Tensor | None) -> Tensor:
        """A block's fresh output as it is added to the residual."""
        if post_norm is not None:
            hidden, _ = self._ops.rms_norm(hidden, post_norm, self._config.norm_eps, offset=self._config.norm_offset)
        if self._config.residual_multiplier != 1.0:
            hidden = hidden * self._config.residual_multiplier
        return hidden


class FeedForward(Protocol):
    """[tokens, hidden_size] -> [tokens, hidden_size], each row by itself."""

    def __call__(self, x: Tensor) -> Tensor:
        """The block's output, before the residual."""


class GatedMLP:
    """down(act(gate(x)) * up(x)), gate and up as one layer."""

    def __init__(self, config: ModelConfig, prefix: str, weights: Weights, activation: GatedActivation) -> None:
        """Reads its weights under `prefix`. Raises ModelError."""
        self._kind, self._activation = config.activation, activation
        hidden, size, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        names = ["gate_up_proj"] if config.fused_names else ["gate_proj", "up_proj"]
        self._gate_up = weights.linear(
            [f"{prefix}{name}" for name in names], [size, size], hidden, bias=bias, split="outputs"
        )
        self._down = weights.linear([f"{prefix}down_proj"], [hidden], size, bias=bias, split="inputs")

    def __call__(self, x: Tensor) -> Tensor:
        """See FeedForward."""
        return self._down(self._activation(self._gate_up(x), self._kind))


class RoutedExperts:
    """Each token through the few experts that its router prefers, weighted by their probability (Mixtral's form)."""

    def __init__(
        self, config: ModelConfig, experts: ExpertsConfig, prefix: str, weights: Weights, activation: GatedActivation
    ) -> None:
        """Reads its weights under `prefix`. Raises ModelError."""
        self._experts, self._kind, self._activation = experts, config.activation, activation
        hidden, size = config.hidden_size, experts.size
        gate, up, down = ("w1", "w3", "w2") if experts.names == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        # The router decides which weights are read at all; its few rows stay in the model's type.
        self._router = weights.linear([f"{prefix}gate"], [experts.count], hidden, quantized=False)
        self._gate_ups, self._downs = [], []
        for number in range(experts.count):
            expert = f"{prefix}experts.{number}."
            names = [f"{expert}{gate}", f"{expert}{up}"]
            self._gate_ups.append(weights.linear(names, [size, size], hidden, split="outputs"))
            self._downs.append(weights.linear([f"{expert}{down}"], [hidden], size, split="inputs", adds_up=False))
        self._add_up = weights.shard.add_up

    def __call__(self, x: Tensor) -> Tensor:
        """See FeedForward. Reads on the host which experts were chosen."""
        shares, chosen = self._router(x).softmax(dim=-1, dtype=torch.float32).topk(self._experts.per_token, dim=-1)
        if self._experts.is_normalized:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        # Sorted by expert: each one's tokens lie in a row.
        by_expert = chosen.flatten()
        order = by_expert.argsort(stable=True)
        tokens = order // self._experts.per_token
        scales = shares.to(x.dtype).flatten()[order, None]
        inputs, output = x[tokens], torch.zeros_like(x)
        start = 0
        for number, count in enumerate(by_expert.bincount(minlength=self._experts.count).tolist()):
            if count:
                part = slice(start, start + count)
                start += count
                inner = self._activation(self._gate_ups[number](inputs[part]), self._kind)
                output.index_add_(0, tokens[part], self._downs[number](inner) * scales[part])
        return self._add_up(output)


def _feed_forward(config: ModelConfig, number: int, weights: Weights, activation: GatedActivation) -> FeedForward:
    prefix, experts = f"model.layers.{number}.", config.experts
    if experts is None or number not in experts.layers:
        return GatedMLP(config, f"{prefix}mlp.", weights, activation)
    name = "block_sparse_moe" if experts.names == "mixtral" else "mlp"
    return RoutedExperts(config, experts, f"{prefix}{name}.", weights, activation)
