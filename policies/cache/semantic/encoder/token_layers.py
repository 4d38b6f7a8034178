"""A BERT's layers called directly, for the vectors of tokens of several texts in a row that do not see each other.

Reading answers is most of what a comparison costs. Without the library's module around each step, and with one product
for queries, keys and values, it takes a quarter less; in bfloat16, where the processor multiplies it, half of that; and
where attention sees a table with a row for each text, as bfloat16 too, another third less than in one long row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor, dtype

_Linear = Callable[["Tensor", str], "Tensor"]
"""Of [tokens, in] and what follows it, "none" or "gelu": [tokens, out], as precise as products are."""
Adapters = Mapping[str, NDArray[np.float32]]
"""What is added to linear layers' weights, as two thin factors by the layer's name in the model: `NAME.up` [out, rank]
and `NAME.down` [rank, in].
"""
_TOKENS_AT_ONCE = 16
"""The processor's library compiles its products for each number of rows anew, in 7 ms of a BERT of six layers."""


class _Layer(NamedTuple):
    """`project`: to queries, keys and values, one behind the other."""

    project: _Linear
    attended: _Linear
    norm: Callable[[Tensor], Tensor]
    widen: _Linear
    narrow: _Linear
    last_norm: Callable[[Tensor], Tensor]


def token_layers(model: Any, adapters: Adapters | None = None) -> TokenLayers | None:
    """Of a transformers model whose weights are not packed yet, as precise as is fast here, with `adapters` added; None
    where it is no BERT with GELU.
    """
    config = getattr(model, "config", None)
    is_bert = getattr(config, "model_type", "") == "bert" and getattr(config, "hidden_act", "") == "gelu"
    return TokenLayers(model, adapters, in_bfloat16=_multiplies_bfloat16()) if is_bert else None


class TokenLayers:
    """All layers of such a model."""

    def __init__(self, bert: Any, adapters: Adapters | None = None, *, in_bfloat16: bool) -> None:
        """`in_bfloat16`: products are; sums and norms stay in float32."""
        import torch

        self._torch = torch
        embeddings = bert.embeddings
        self._dtype = torch.bfloat16 if in_bfloat16 else torch.float32
        self._num_heads: int = bert.config.num_attention_heads
        with torch.inference_mode():
            self._words = embeddings.word_embeddings.weight
            # No text here has a second part.
            self._places = embeddings.position_embeddings.weight + embeddings.token_type_embeddings.weight[0]
            self._norm = _norm(embeddings.LayerNorm)
            self._layers = [
                _layer(layer, f"encoder.layer.{number}", adapters or {}, self._dtype)
                for number, layer in enumerate(bert.encoder.layer)
            ]

    def __call__(self, ids: Tensor, places: Tensor, lengths: Tensor) -> Tensor:
        """[tokens, dimension] of the ids and places of all texts' tokens, one text behind the other."""
        torch = self._torch
        table = _Table(lengths, self._dtype)
        padding = torch.zeros(table.num_padding, dtype=torch.long)
        x = self._norm(self._words[torch.cat((ids, padding))] + self._places[torch.cat((places, padding))])
        dimension = x.shape[1]
        for layer in self._layers:
            heads = table.of(layer.project(x, "none")).view(*table.shape, 3, self._num_heads, -1)
            seen = torch.nn.functional.scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4), table.mask)
            seen = table.back(seen.transpose(1, 2).reshape(-1, dimension))
            x = layer.norm(x + layer.attended(seen, "none"))
            x = layer.last_norm(x + layer.narrow(layer.widen(x, "gelu"), "none"))
        return x[: len(ids)]


class _Table:
    """A row for each text, as long as the longest: in it no text's tokens see another's, nor are they multiplied.

    The last one is filled up until all texts together have a multiple of so many tokens as are multiplied at once.
    """

    def __init__(self, lengths: Tensor, dtype: dtype) -> None:
        import torch

        self.num_padding = -int(lengths.sum()) % _TOKENS_AT_ONCE
        filled = lengths.clone()
        filled[-1] += self.num_padding
        longest = int(filled.max())
        places = torch.arange(longest)
        is_row, is_token = places < filled[:, None], places < lengths[:, None]
        self.shape = len(lengths), longest
        """[texts, tokens]."""
        self.mask: Tensor | None = None
        """What is added to attention, [texts, 1, 1, tokens]; None where all of it is tokens."""
        if not is_token.all():
            self.mask = torch.zeros(is_token.shape, dtype=dtype).masked_fill_(~is_token, -math.inf)[:, None, None]
        self._is_full = bool(is_row.all())
        starts = filled.cumsum(0) - filled
        self._sources = torch.where(is_row, starts[:, None] + places, 0).flatten()
        self._targets = is_row.flatten().nonzero()[:, 0]

    def of(self, rows: Tensor) -> Tensor:
        """[texts * tokens, width] of [all texts' tokens, width]."""
        return rows if self._is_full else rows.index_select(0, self._sources)

    def back(self, rows: Tensor) -> Tensor:
        """[all texts' tokens, width] of [texts * tokens, width]."""
        return rows if self._is_full else rows.index_select(0, self._targets)


def _layer(layer: Any, name: str, adapters: Adapters, dtype: dtype) -> _Layer:
    import torch

    def linear(*places: str) -> _Linear:
        heads = [layer.get_submodule(place) for place in places]
        weights = [head.weight for head in heads]
        for at, place in enumerate(places):
            up, down = (adapters.get(f"{name}.{place}.{side}") for side in ("up", "down"))
            if up is not None and down is not None:
                weights[at] = weights[at] + torch.from_numpy(up @ down)
        return _linear(torch.cat(weights), torch.cat([head.bias for head in heads]), dtype)

    return _Layer(
        linear("attention.self.query", "attention.self.key", "attention.self.value"),
        linear("attention.output.dense"),
        _norm(layer.attention.output.LayerNorm),
        linear("intermediate.dense"),
        linear("output.dense"),
        _norm(layer.output.LayerNorm),
    )


def _norm(norm: Any) -> Callable[[Tensor], Tensor]:
    """The same without the library's call, which takes as long as the norm of a question does."""
    import torch

    return partial(
        torch.layer_norm, normalized_shape=norm.normalized_shape, weight=norm.weight, bias=norm.bias, eps=norm.eps
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
