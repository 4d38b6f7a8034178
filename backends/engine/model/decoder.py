"""One decoder for every family we serve; what sets them apart are the flags of ModelConfig."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from backends.engine.model.config import ModelConfig, check_divisible
from backends.engine.model.layers import Layer, make_norm
from backends.engine.model.rope import rope_table
from backends.engine.model.shard import Shard
from backends.engine.model.weights import Observer, Weights
from backends.engine.step.batch import Batch
from kernels.dispatch import Ops
from kernels.paging import PagedKV, StorePlan


class Decoder:
    """A loaded model. Keeps nothing between steps: what a sequence has been through lies in its pages."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops, *, max_positions: int) -> None:
        """Reads all weights. Raises ModelError for a tensor that is missing or shaped otherwise."""
        self.config = config
        self.embedding = weights.tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        self.dtype = self.embedding.dtype
        # Rounded as the models were trained with it.
        self._embedding_multiplier = torch.tensor(config.embedding_multiplier, dtype=self.dtype).item()
        self.layers = [Layer(config, number, weights, ops) for number in range(config.num_layers)]
        self.norm = make_norm(config, weights.tensor("model.norm.weight", config.hidden_size), ops)
        tied = self.embedding if config.tie_embeddings else None
        self.head = weights.head(config.vocab_size, config.hidden_size, tied=tied)
        device = self.embedding.device
        self._cos_sin = rope_table(config.rope, max_positions, device)
        local = config.local_rope
        self._local_cos_sin = None if local is None else rope_table(local, max_positions, device)
        self.max_positions = max_positions
        self.weight_bytes = weights.num_bytes
        """Bytes of all parameters as they lie in memory, a tied embedding once; without the rope tables."""

    def forward(self, batch: Batch, kv: Sequence[PagedKV]) -> Tensor:
        """One step over the flat tokens of `batch`; writes their keys and values into `kv`, one entry a layer.

        Returns the final hidden states, normed, of `batch.rows`: [rows, hidden_size] in the model's type. Positions
        must lie below `max_positions`.
        """
        with torch.inference_mode():
            hidden = functional.embedding(batch.token_ids, self.embedding)
            if self._embedding_multiplier != 1.0:
                hidden = hidden * self._embedding_multiplier
            residual: Tensor | None = None
            last = len(self.layers) - 1
            store, local = self._store_plans(batch)
            for number, (layer, window) in enumerate(zip(self.layers, self.config.windows, strict=True)):
                where = local if window else store
                hidden, residual = layer(hidden, residual, batch, kv[number], where, is_last=number == last)
            hidden, _ = self.norm(hidden, residual=residual)
            return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden_size] as `forward` returns it -> [rows, vocab_size] float32."""
        with torch.inference_mode():
            logits = self.head(hidden).float()
            if self.config.logits_divisor != 1.0:
                logits = logits / self.config.logits_divisor
            if self.config.logits_softcap:
                logits = torch.tanh(logits / self.config.logits_softcap) * self.config.logits_softcap
            return logits

    def _store_plans(self, batch: Batch) -> tuple[StorePlan, StorePlan]:
        """For layers that see everything, and for windowed ones."""
        lasting = batch.plan.lasting
        store = StorePlan(self._cos_sin.index_select(0, batch.positions), batch.slots, lasting)
        if self._local_cos_sin is None:
            return store, store
        return store, StorePlan(self._local_cos_sin.index_select(0, batch.positions), batch.slots, lasting)


def load_decoder(
    folder: Path,
    *,
    dtype: torch.dtype | None,
    device: torch.device,
    ops: Ops,
    quantization: str | None = None,
    adapter: Path | None = None,
    max_positions: int | None = None,
    shard: Shard | None = None,
    observe: Observer | None = None,
    make: Callable[..., Decoder] = Decoder,
) -> Decoder:
    """The model of a Hugging Face folder: config.json and safetensors, with a PEFT LoRA folder merged in.

    `dtype` None is the checkpoint's. `max_positions`: the longest context to prepare for, the model's own by default;
    a shorter one saves memory, and decides which factors LongRoPE takes. `shard`: one rank's share of the layers.
    `observe` is told what goes into each layer; `make` builds the decoder, by default a plain one.
    Raises ModelError, which names the file and the field or tensor.
    """
    config = ModelConfig.from_folder(folder)
    weights = Weights(
        folder,
        dtype=dtype,
        device=device,
        quantization=quantization,
        stored=config.quantization,
        adapter=adapter,
        shard=shard,
        observe=observe,
        product=ops.quantized_product,
    )
    positions = config.max_positions if max_positions is None else min(max_positions, config.max_positions)
    check_divisible(config, weights.shard.count)
    decoder = make(config, weights, ops, max_positions=positions)
    weights.check_complete()
    return decoder
