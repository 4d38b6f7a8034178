"""A loaded model in the shortest loop there is: contiguous keys and values, all prompts in step, no scheduler.

What paging, scheduling and events cost is the engine's time over this one's. Linear layers, norms and feed-forward
blocks are the engine's own; where its weights happen to lie makes them up to 8 % quicker or slower, so copies of them
would not do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from backends.engine.model.decoder import Decoder
from backends.engine.model.rope import rope_table


class PlainLlama:
    """A Llama of `decoder`'s weights, for prompts of one length. To be used in inference mode."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        config = self._config = decoder.config
        self._table = rope_table(config.rope, config.max_positions, decoder.embedding.device)

    def steps(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Iterator[list[int]]:
        """`num_tokens` steps, each of which brings every prompt's next greedy token; the first computes the prompts."""
        config = self._config
        batch, num_prompt = len(prompts), len(prompts[0])
        shape = (config.num_layers, 2, batch, config.num_kv_heads, num_prompt + num_tokens, config.head_dim)
        cache = torch.empty(shape, dtype=self._decoder.dtype)
        ids, at = torch.tensor(prompts), 0
        for _ in range(num_tokens):
            logits = self.logits(ids, at, cache)
            at += ids.shape[1]
            ids = logits.argmax(1, keepdim=True)
            yield ids.flatten().tolist()

    def logits(self, ids: Tensor, at: int, cache: Tensor) -> Tensor:
        """[batch, tokens] int64 from position `at` on -> the logits behind the last, [batch, vocab] float32.

        `cache`: [layers, 2, batch, kv_heads, positions, D] in the model's type, written from `at` on.
        """
        config, decoder = self._config, self._decoder
        batch, count = ids.shape
        hidden, residual = functional.embedding(ids.flatten(), decoder.embedding), None
        cos, sin = self._table[at : at + count].view(1, count, 1, 2, -1).unbind(3)
        for layer, (keys, values) in zip(decoder.layers, cache.unbind(0), strict=True):
            normed, residual = layer.attention_norm(hidden, residual=residual)
            heads = layer.qkv(normed).view(batch, count, -1, config.head_dim)
            turning, value = heads.split_with_sizes((config.num_heads + config.num_kv_heads, config.num_kv_heads), 2)
            first, second = turning.float().chunk(2, -1)
            turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(heads.dtype)
            query, key = turned.transpose(1, 2).split_with_sizes((config.num_heads, config.num_kv_heads), 1)
            keys[:, :, at : at + count], values[:, :, at : at + count] = key, value.transpose(1, 2)
            attended = self._attend(query, keys[:, :, : at + count], values[:, :, : at + count])
            if layer is decoder.layers[-1] and count > 1:
                # Nobody looks at the others any more.
                attended, residual = (x.view(batch, count, -1)[:, -1] for x in (attended, residual))
            normed, residual = layer.feed_forward_norm(layer.output(attended), residual=residual)
            hidden = layer.feed_forward(normed)
        hidden, _ = decoder.norm(hidden, residual=residual)
        return decoder.head(hidden).float()

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """[batch, heads, tokens, D] over [batch, kv_heads, positions, D] -> [batch * tokens, heads * D]."""
        batch, num_heads, count, head_dim = query.shape
        if count == 1:
            # The heads that share a KV head are rows of one product.
            rows = query.reshape(batch, keys.shape[1], -1, head_dim)
            return functional.scaled_dot_product_attention(rows, keys, values).reshape(batch, -1)
        out = functional.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).reshape(batch * count, num_heads * head_dim)
