"""What a model needs of a GPU, and how fast it could be there at best: memory and rooflines by arithmetic alone.

Nothing is loaded and PyTorch is not needed. A step of the model reads its weights and every sequence's keys and values
once, and multiplies. Linear layers take as long as the slower of the two; attention, which only reads, comes on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.engine.model.config import ModelConfig

PAGE_TOKENS = 64
"""Tokens in a page of keys and values; as in `kernels.paging`."""
FREE_SHARE = 0.85
"""Of the memory that weights leave, for keys and values; as the engine divides it."""
CONTEXT_BYTES = 2**29
"""What CUDA takes for itself before anything is loaded, about."""
BANDWIDTH_SHARE = 4.3 / 4.8
"""Of a data sheet's bandwidth, what a plain copy reaches; measured on an H200."""
COMPUTE_SHARE = 790 / 989
"""Of a data sheet's operations, what a large bf16 product reaches; measured on an H200."""

_GROUP_SIZE = 128
_DENSE_BYTES = 2.0
_SCALE_BYTES = 2
"""Of a float16 scale: one for each group of four-bit weights, one for each quantized key and value."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its data sheet: `flops` of bf16 and `int8_ops`, a multiplication and an addition being two."""

    name: str
    memory_bytes: int
    bytes_per_s: float
    flops: float
    int8_ops: float

    @property
    def reachable_bytes_per_s(self) -> float:
        """Bandwidth that programs see."""
        return self.bytes_per_s * BANDWIDTH_SHARE

    @property
    def reachable_flops(self) -> float:
        """Operations a second that programs see in bf16."""
        return self.flops * COMPUTE_SHARE

    @property
    def reachable_int8_ops(self) -> float:
        """Operations a second that programs see in int8."""
        return self.int8_ops * COMPUTE_SHARE

    def linear_flops(self, precision: Precision) -> float:
        """Operations a second of linear layers with such weights, which are mostly unpacked to bf16 first."""
        return self.reachable_int8_ops if precision.is_int8_product else self.reachable_flops


@dataclass(frozen=True, slots=True)
class Precision:
    """What weights are kept in. `is_int8_product`: activations are int8 as well, so the product is."""

    name: str
    bytes_per_weight: float
    is_int8_product: bool = False

    @property
    def bytes_per_head_weight(self) -> float:
        """Of the output layer, which keeps eight bits where the others have four."""
        return max(self.bytes_per_weight, 1.0)


_FOUR_BITS = 0.5 + _SCALE_BYTES / _GROUP_SIZE

PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "bf16": Precision("bf16", _DENSE_BYTES),
        "int8": Precision("int8", 1.0),
        "w8a8": Precision("w8a8", 1.0, is_int8_product=True),
        "fp8": Precision("fp8", 1.0),
        "int4": Precision("int4", _FOUR_BITS),
        "nf4": Precision("nf4", _FOUR_BITS),
    }
)
"""The model's own type, which counts as bf16, and every quantization of the engine; scales of rows are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a decoder that its costs follow from. Norms and biases, below a thousandth, are left out.

    `windows`: per layer, how many last positions a query sees, 0 for all. `num_expert_layers` of the layers send a
    token through `experts_per_token` of `num_experts` experts, `expert_size` wide.
    """

    name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    tie_embeddings: bool
    windows: tuple[int, ...]
    num_experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    num_expert_layers: int = 0

    @classmethod
    def of(cls, config: ModelConfig, name: str) -> ModelShape:
        """The shape of a model folder's configuration."""
        experts = config.experts
        return cls(
            name=name,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            max_positions=config.max_positions,
            tie_embeddings=config.tie_embeddings,
            windows=config.windows,
            num_experts=0 if experts is None else experts.count,
            experts_per_token=0 if experts is None else experts.per_token,
            expert_size=0 if experts is None else experts.size,
            num_expert_layers=0 if experts is None else len(experts.layers),
        )

    @property
    def num_parameters(self) -> int:
        """All of them, a tied embedding once."""
        heads = self.head_parameters if self.tie_embeddings else 2 * self.head_parameters
        return self._shared_parameters + self.num_experts * self._expert_parameters + heads

    @property
    def active_parameters(self) -> int:
        """Those of the linear layers that one token passes through; without embedding and output layer."""
        return self._shared_parameters + self.experts_per_token * self._expert_parameters

    @property
    def head_parameters(self) -> int:
        """Those of the output layer."""
        return self.vocab_size * self.hidden_size

    @property
    def _shared_parameters(self) -> int:
        """Linear layers that every token passes through."""
        attention = 2 * (self.num_heads + self.num_kv_heads) * self.head_dim * self.hidden_size
        router = self.num_experts * self.hidden_size * self.num_expert_layers
        dense = 3 * self.hidden_size * self.intermediate_size * (self.num_layers - self.num_expert_layers)
        return attention * self.num_layers + dense + router

    @property
    def _expert_parameters(self) -> int:
        """One expert, over all layers that have it."""
        return 3 * self.hidden_size * self.expert_size * self.num_expert_layers

    def weight_bytes(self, precision: Precision) -> float:
        """What the weights take in memory. The embedding stays in bf16; a tied one is kept a second time as output."""
        linear = self._shared_parameters + self.num_experts * self._expert_parameters
        is_shared = self.tie_embeddings and precision.bytes_per_weight == _DENSE_BYTES
        embedding = 0.0 if is_shared else _DENSE_BYTES
        return linear * precision.bytes_per_weight + self.head_parameters * (
            precision.bytes_per_head_weight + embedding
        )

    def step_bytes(self, precision: Precision, num_tokens: int) -> float:
        """What a step over `num_tokens` tokens reads of the weights: of experts, as many as tokens hit by chance."""
        share = 1 - (1 - self.experts_per_token / self.num_experts) ** num_tokens if self.num_experts else 0.0
        experts = share * self.num_experts * self._expert_parameters
        linear = (self._shared_parameters + experts) * precision.bytes_per_weight
        return linear + self.head_parameters * precision.bytes_per_head_weight

    def kv_bytes_per_token(self, kv_dtype: str) -> int:
        """Keys and values of one token over all layers. `kv_dtype`: auto (bf16), int8 or fp8."""
        number = _DENSE_BYTES * self.head_dim if kv_dtype == "auto" else self.head_dim + _SCALE_BYTES
        return round(2 * self.num_layers * self.num_kv_heads * number)

    def seen_share(self, context: int) -> float:
        """Of the keys and values of `context` tokens, the share that a new token sees: layers may have windows."""
        return sum(min(window or context, context) for window in self.windows) / (self.num_layers * context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is asked of the model: `concurrency` sequences of `context` tokens at once."""

    context: int
    concurrency: int
    kv_dtype: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One precision on one GPU. Bytes, seconds, tokens a second.

    `fits`: sequences whose whole context has room, 0 where not even the weights do; `total_bytes`: weights, and the
    keys and values of all that were asked for. `ttft_s`: a lone prompt of the whole context. `alone_tokens_per_s` and
    `together_tokens_per_s` are those of one sequence, and of `batch` (those asked for, as far as they fit) added up;
    None where nothing fits.
    """

    precision: str
    weight_bytes: float
    kv_bytes: int
    total_bytes: float
    fits: int
    batch: int
    ttft_s: float | None
    alone_tokens_per_s: float | None
    together_tokens_per_s: float | None


def estimate(shape: ModelShape, gpu: Gpu, precision: Precision, demand: Workload) -> Estimate:
    """What it takes and the best that it could do; a real engine stays below."""
    weight_bytes = shape.weight_bytes(precision)
    sequence_bytes = -(-demand.context // PAGE_TOKENS) * PAGE_TOKENS * shape.kv_bytes_per_token(demand.kv_dtype)
    room = (gpu.memory_bytes - CONTEXT_BYTES - weight_bytes) * FREE_SHARE
    fits = max(int(room // sequence_bytes), 0)
    batch = min(fits, demand.concurrency)
    alone, together = (
        count / step_s(shape, gpu, precision, demand, batch=count) if count else None
        for count in (min(batch, 1), batch)
    )
    return Estimate(
        precision=precision.name,
        weight_bytes=weight_bytes,
        kv_bytes=sequence_bytes * demand.concurrency,
        total_bytes=weight_bytes + sequence_bytes * demand.concurrency,
        fits=fits,
        batch=batch,
        ttft_s=prefill_s(shape, gpu, precision, demand.context) if fits else None,
        alone_tokens_per_s=alone,
        together_tokens_per_s=together,
    )


def step_s(shape: ModelShape, gpu: Gpu, precision: Precision, demand: Workload, *, batch: int) -> float:
    """The least time of a step that gives each of `batch` sequences a token, their contexts full."""
    reading_s = shape.step_bytes(precision, batch) / gpu.reachable_bytes_per_s
    operations = 2 * batch * (shape.active_parameters + shape.head_parameters)
    kv_bytes = batch * demand.context * shape.kv_bytes_per_token(demand.kv_dtype) * shape.seen_share(demand.context)
    linear_s = max(reading_s, operations / gpu.linear_flops(precision))
    return linear_s + kv_bytes / gpu.reachable_bytes_per_s


def prefill_s(shape: ModelShape, gpu: Gpu, precision: Precision, num_tokens: int) -> float:
    """The least time until the first token of an answer to a lone prompt of `num_tokens`."""
    reading_s = shape.step_bytes(precision, num_tokens) / gpu.reachable_bytes_per_s
    linear_s = 2 * num_tokens * shape.active_parameters / gpu.linear_flops(precision)
    seen = sum(_pairs(num_tokens, window) for window in shape.windows)
    attention_s = 4 * shape.num_heads * shape.head_dim * seen / gpu.reachable_flops
    return max(reading_s, linear_s) + attention_s


def _pairs(num_tokens: int, window: int) -> float:
    """Pairs of a query and a key it sees, in one layer."""
    outside = max(num_tokens - window, 0) if window else 0
    return (num_tokens**2 - outside**2) / 2
