"""A BERT's layers called directly, for the vectors of tokens of several texts in a row that do not see each other.

Reading answers is most of what a comparison costs. Without the library's module around each step, and with one product
for queries, keys and values, it takes a quarter less; in bfloat16, where the processor multiplies it, half of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

_Linear = Callable[["Tensor", str], "Tensor"]
"""Of [tokens, in] and what follows it, "none" or "gelu": [tokens, out]."""


class _Layer(NamedTuple):
    """`project`: to queries, keys and values, one behind the other."""

    project: _Linear
    attended: _Linear
    norm: Callable[[Tensor], Tensor]
    widen: _Linear
    narrow: _Linear
    last_norm: Callable[[Tensor], Tensor]


def token_layers(model: Any) -> TokenLayers | None:
    """Of a transformers model whose weights are not packed yet, as precise as is fast here; None where it is no BERT
    with GELU.
    """
    config = getattr(model, "config", None)
    is_bert = getattr(config, "model_type", "") == "bert" and getattr(config, "hidden_act", "") == "gelu"
    return TokenLayers(model, in_bfloat16=_multiplies_bfloat16()) if is_bert else None


class TokenLayers:
    """All layers of such a model."""

    def __init__(self, bert: Any, *, in_bfloat16: bool) -> None:
        """`in_bfloat16`: products are; sums and norms stay in float32."""
        import torch

        self._torch = torch
        self._embed = bert.embeddings
        self._num_heads: int = bert.config.num_attention_heads
        with torch.inference_mode():
            self._layers = [_layer(layer, in_bfloat16) for layer in bert.encoder.layer]

    def __call__(self, ids: Tensor, places: Tensor, lengths: Tensor) -> Tensor:
        """[tokens, dimension] of the ids and places of all texts' tokens, one text behind the other."""
        torch = self._torch
        x: Tensor = self._embed(
            input_ids=ids[None], position_ids=places[None], token_type_ids=torch.zeros_like(ids)[None]
        )[0]
        count, dimension = x.shape
        of_text = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        apart = torch.zeros(count, count).masked_fill_(of_text[:, None] != of_text, -math.inf)
        scale = (dimension / self._num_heads) ** -0.5
        for layer in self._layers:
            heads = layer.project(x, "none").view(count, 3, self._num_heads, -1).permute(1, 2, 0, 3).contiguous()
            # Of so few tokens faster than the library's way, which goes through them in blocks.
            weights = (scale * (heads[0] @ heads[1].transpose(1, 2)) + apart).softmax(dim=2)
            seen = (weights @ heads[2]).transpose(0, 1).reshape(count, dimension)
            x = layer.norm(x + layer.attended(seen, "none"))
            x = layer.last_norm(x + layer.narrow(layer.widen(x, "gelu"), "none"))
        return x


def _layer(layer: Any, in_bfloat16: bool) -> _Layer:
    import torch

    def linear(*heads: Any) -> _Linear:
        weight, bias = (torch.cat([getattr(head, name) for head in heads]) for name in ("weight", "bias"))
        return _linear(weight, bias, in_bfloat16)

    attention = layer.attention
    return _Layer(
        linear(attention.self.query, attention.self.key, attention.self.value),
        linear(attention.output.dense),
        attention.output.LayerNorm,
        linear(layer.intermediate.dense),
        linear(layer.output.dense),
        layer.output.LayerNorm,
    )


def _linear(weight: Tensor, bias: Tensor, in_bfloat16: bool) -> _Linear:
    """float32 out, unless GELU follows. Weights lie as the processor's library reads them, where that can be had."""
    import torch

    pack: Any = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if pack is None or linear is None:

        def plain(x: Tensor, then: str) -> Tensor:
            y = torch.nn.functional.linear(x, weight, bias)
            return torch.nn.functional.gelu(y) if then == "gelu" else y

        return plain
    dtype = torch.bfloat16 if in_bfloat16 else torch.float32
    packed, own_bias = pack(weight.detach().to(dtype), None), bias.detach().to(dtype)

    def fused(x: Tensor, then: str) -> Tensor:
        y: Tensor = linear(x.to(dtype), packed, own_bias, then, [], "none" if then == "gelu" else "")
        return y if then == "gelu" else y.float()

    return fused


def _multiplies_bfloat16() -> bool:
    """Whether the processor does so itself: where it is imitated float32 is faster."""
    import torch

    can: Any = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return can is not None and bool(can())
