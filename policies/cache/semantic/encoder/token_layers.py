"""A BERT's layers called directly, for the vectors of tokens of several texts in a row that do not see each other.

Reading answers is most of what a comparison costs. Without the library's module around each step, and with one product
for queries, keys and values, it takes a quarter less; in bfloat16, where the processor multiplies it, half of that; and
where attention sees a table with a row for each text, as bfloat16 too, another third less than in one long row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, dtype

_Linear = Callable[["Tensor", str], "Tensor"]
"""Of [tokens, in] and what follows it, "none" or "gelu": [tokens, out], as precise as products are."""


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
        self._dtype = torch.bfloat16 if in_bfloat16 else torch.float32
        self._num_heads: int = bert.config.num_attention_heads
        with torch.inference_mode():
            self._layers = [_layer(layer, self._dtype) for layer in bert.encoder.layer]

    def __call__(self, ids: Tensor, places: Tensor, lengths: Tensor) -> Tensor:
        """[tokens, dimension] of the ids and places of all texts' tokens, one text behind the other."""
        torch = self._torch
        x: Tensor = self._embed(
            input_ids=ids[None], position_ids=places[None], token_type_ids=torch.zeros_like(ids)[None]
        )[0]
        dimension = x.shape[1]
        table = _Table(lengths, places, self._dtype)
        for layer in self._layers:
            heads = table.of(layer.project(x, "none")).view(*table.shape, 3, self._num_heads, -1)
            seen = torch.nn.functional.scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4), table.mask)
            seen = table.back(seen.transpose(1, 2).reshape(-1, dimension))
            x = layer.norm(x + layer.attended(seen, "none"))
            x = layer.last_norm(x + layer.narrow(layer.widen(x, "gelu"), "none"))
        return x


class _Table:
    """A row for each text, as long as the longest: in it no text's tokens see another's, nor are they multiplied."""

    def __init__(self, lengths: Tensor, places: Tensor, dtype: dtype) -> None:
        import torch

        longest = int(lengths.max())
        self.shape = len(lengths), longest
        """[texts, tokens]."""
        self.mask: Tensor | None = None
        """What is added to attention, [texts, 1, 1, tokens]; None where all texts are equally long."""
        is_token = torch.arange(longest) < lengths[:, None]
        if not is_token.all():
            starts = lengths.cumsum(0) - lengths
            self._sources = torch.where(is_token, starts[:, None] + torch.arange(longest), 0).flatten()
            self._targets = torch.repeat_interleave(torch.arange(len(lengths)) * longest, lengths) + places
            self.mask = torch.zeros(is_token.shape, dtype=dtype).masked_fill_(~is_token, -math.inf)[:, None, None]

    def of(self, rows: Tensor) -> Tensor:
        """[texts * tokens, width] of [tokens, width]."""
        if self.mask is None:
            return rows
        return rows.index_select(0, self._sources)

    def back(self, rows: Tensor) -> Tensor:
        """[tokens, width] of [texts * tokens, width]."""
        return rows if self.mask is None else rows.index_select(0, self._targets)


def _layer(layer: Any, dtype: dtype) -> _Layer:
    import torch

    def linear(*heads: Any) -> _Linear:
        weight, bias = (torch.cat([getattr(head, name) for head in heads]) for name in ("weight", "bias"))
        return _linear(weight, bias, dtype)

    attention = layer.attention
    return _Layer(
        linear(attention.self.query, attention.self.key, attention.self.value),
        linear(attention.output.dense),
        attention.output.LayerNorm,
        linear(layer.intermediate.dense),
        linear(layer.output.dense),
        layer.output.LayerNorm,
    )


def _linear(weight: Tensor, bias: Tensor, dtype: dtype) -> _Linear:
    """As precise out as its products are. Weights lie as the processor's library reads them, where that can be had."""
    import torch

    pack: Any = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    weight, bias = weight.detach().to(dtype), bias.detach().to(dtype)
    if pack is None or linear is None:

        def plain(x: Tensor, then: str) -> Tensor:
            y = torch.nn.functional.linear(x.to(dtype), weight, bias)
            return torch.nn.functional.gelu(y) if then == "gelu" else y

        return plain
    packed = pack(weight, None)

    def fused(x: Tensor, then: str) -> Tensor:
        y: Tensor = linear(x.to(dtype), packed, bias, then, [], "none" if then == "gelu" else "")
        return y

    return fused


def _multiplies_bfloat16() -> bool:
    """Whether the processor does so itself: where it is imitated float32 is faster."""
    import torch

    can: Any = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return can is not None and bool(can())
