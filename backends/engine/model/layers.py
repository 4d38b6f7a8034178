"""The blocks of the decoder: one transformer layer, its feed-forward part, and routed experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from backends.engine.model.config import ExpertsConfig, ModelConfig
from backends.engine.model.weights import Weights
from backends.engine.step.batch import Batch
from kernels.dispatch import GatedActivation, Ops
from kernels.paging import PagedKV, StorePlan


class Layer:
    """Attention and feed-forward of one layer, each joined to the residual."""

    def __init__(self, config: ModelConfig, number: int, weights: Weights, ops: Ops) -> None:
        """Reads its weights. Raises ModelError."""
        window = config.windows[number]
        prefix = f"model.layers.{number}."
        attention, hidden, head_dim = f"{prefix}self_attn.", config.hidden_size, config.head_dim
        query_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim

        def norm(name: str) -> Norm:
            return make_norm(config, weights.tensor(f"{prefix}{name}_layernorm.weight", hidden), ops)

        names = [f"{attention}{part}_proj" for part in (["qkv"] if config.fused_names else "qkv")]
        self.qkv = weights.linear(
            names, [query_size, kv_size, kv_size], hidden, bias=config.qkv_bias, split="outputs", unit=head_dim
        )
        q_norm, k_norm = (
            weights.tensor(f"{attention}{part}_norm.weight", head_dim) if config.qk_norm else None for part in "qk"
        )
        self._rope_store = partial(
            ops.rope_store,
            num_heads=config.num_heads // weights.shard.count,
            q_norm=q_norm,
            k_norm=k_norm,
            eps=config.norm_eps,
            offset=config.norm_offset,
        )
        self._attend = partial(
            ops.paged_attention,
            scale=config.attention_scale,
            window=window if window < config.max_positions else 0,
            softcap=config.attention_softcap,
        )
        output = weights.linear([f"{attention}o_proj"], [hidden], query_size, bias=config.output_bias, split="inputs")
        feed_forward = _feed_forward(config, number, weights, ops)
        self.attention_norm = norm("input")
        self.feed_forward_norm = norm("pre_feedforward" if config.post_norms else "post_attention")
        post_attention, post_feed_forward = (
            norm(f"post_{part}") if config.post_norms else None for part in ("attention", "feedforward")
        )
        self.output = _joining(output, post_attention, config.residual_multiplier)
        self.feed_forward = _joining(feed_forward, post_feed_forward, config.residual_multiplier)

    def __call__(
        self, hidden: Tensor, residual: Tensor | None, batch: Batch, kv: PagedKV, store: StorePlan, *, is_last: bool
    ) -> tuple[Tensor, Tensor]:
        """(what this layer's feed-forward adds, the residual it is to be added to).

        `hidden` [tokens, hidden_size] is what the layer before added, `residual` None is zero. The last layer goes on
        with `batch.rows` alone once their neighbours have been seen: both results are [rows, hidden_size].
        """
        normed, residual = self.attention_norm(hidden, residual=residual)
        queries = self._rope_store(self.qkv(normed), kv, store)
        attended = self._attend(queries, kv, batch.plan).flatten(1)
        if is_last:
            attended, residual = attended.index_select(0, batch.rows), residual.index_select(0, batch.rows)
        normed, residual = self.feed_forward_norm(self.output(attended), residual=residual)
        return self.feed_forward(normed), residual


Norm = partial[tuple[Tensor, Tensor]]
"""`RMSNorm` with its weight: of x and `residual=`."""


def make_norm(config: ModelConfig, weight: Tensor, ops: Ops) -> Norm:
    """The model's norm with `weight` [hidden_size]."""
    return partial(ops.rms_norm, weight=weight, eps=config.norm_eps, offset=config.norm_offset)


def _joining(
    block: Callable[[Tensor], Tensor], post_norm: Norm | None, multiplier: float
) -> Callable[[Tensor], Tensor]:
    """`block`, with what it gives normed and scaled before it is added to the residual, where the model does that."""
    if post_norm is None and multiplier == 1.0:
        return block

    def run(x: Tensor) -> Tensor:
        out = block(x)
        if post_norm is not None:
            out, _ = post_norm(out)
        return out if multiplier == 1.0 else out * multiplier

    return run


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

    def __init__(self, config: ModelConfig, experts: ExpertsConfig, prefix: str, weights: Weights, ops: Ops) -> None:
        """Reads its weights under `prefix`. Raises ModelError."""
        self._experts, self._kind, self._ops = experts, config.activation, ops
        hidden, size = config.hidden_size, experts.size
        gate, up, down = ("w1", "w3", "w2") if experts.names == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        # The router decides which weights are read at all; its few rows stay in the model's type.
        self._router = weights.linear([f"{prefix}gate"], [experts.count], hidden, quantized=False)
        modules = [f"{prefix}experts.{number}." for number in range(experts.count)]
        gate_ups = [[f"{expert}{gate}", f"{expert}{up}"] for expert in modules]
        self._gate_ups, self._downs = [], []
        self._stacked: tuple[Tensor, Tensor] | None = None
        gate_up = weights.stacked(gate_ups, [size, size], hidden, split="outputs")
        if gate_up is None:
            for names, expert in zip(gate_ups, modules, strict=True):
                self._gate_ups.append(weights.linear(names, [size, size], hidden, split="outputs"))
                self._downs.append(weights.linear([f"{expert}{down}"], [hidden], size, split="inputs", adds_up=False))
        else:
            downs = weights.stacked([[f"{expert}{down}"] for expert in modules], [hidden], size, split="inputs")
            assert downs is not None, "they are smaller, and only large ones are laid out anew"
            self._stacked = gate_up, downs
        self._add_up = weights.shard.add_up

    def __call__(self, x: Tensor) -> Tensor:
        """See FeedForward."""
        shares, chosen = self._router(x).softmax(dim=-1, dtype=torch.float32).topk(self._experts.per_token, dim=-1)
        if self._experts.is_normalized:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        if self._stacked is not None:
            return self._add_up(self._ops.moe(x, *self._stacked, shares, chosen, self._kind))
        return self._add_up(self._in_turn(x, shares, chosen))

    def _in_turn(self, x: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
        """One expert after the other. Reads on the host which experts were chosen."""
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
                inner = self._ops.gated_activation(self._gate_ups[number](inputs[part]), self._kind)
                output.index_add_(0, tokens[part], self._downs[number](inner) * scales[part])
        return output


def _feed_forward(config: ModelConfig, number: int, weights: Weights, ops: Ops) -> FeedForward:
    prefix, experts = f"model.layers.{number}.", config.experts
    if experts is None or number not in experts.layers:
        return GatedMLP(config, f"{prefix}mlp.", weights, ops.gated_activation)
    name = "block_sparse_moe" if experts.names == "mixtral" else "mlp"
    return RoutedExperts(config, experts, f"{prefix}{name}.", weights, ops)
