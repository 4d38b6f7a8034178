"""The arithmetic and the bytes of each step, counted from its shape; over a device's peaks they are MFU and MBU.

Peaks are measured only where an option asks for it: it takes about half a second of the device at the start.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from backends.engine.kv.memory import page_bytes
from backends.engine.model.config import ModelConfig
from backends.engine.sizing import ModelShape
from backends.engine.step.flatten import Span
from kernels.paging import PAGE_SIZE

_PEAK_SIZE = {"cpu": 1024, "cuda": 8192}
_PEAK_BYTES = {"cpu": 2**26, "cuda": 2**31}
_PEAK_ROUNDS = 5


@dataclass(slots=True)
class ComputeCounts:
    """Since the start, of target and draft. A multiplication and an addition are two `operations`."""

    operations: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a device reaches: a large matrix product in the model's type, and a plain copy, read and written."""

    operations_per_s: float
    bytes_per_s: float


class ComputeCounter:
    """Adds the steps of one model up in `compute`.

    Counted are linear layers, attention, weights, keys and values; norms, activations and the sampler, some percent,
    are not. Experts count as many as tokens hit by chance. An embedding that is not the output layer too is not read.
    """

    def __init__(
        self, config: ModelConfig, compute: ComputeCounts, *, weight_bytes: int, kv_dtype: torch.dtype
    ) -> None:
        shape = ModelShape.of(config, config.architecture)
        self._shape = shape
        self._compute = compute
        share = 1.0 if config.tie_embeddings else 1 - shape.head_parameters / shape.num_parameters
        self._weight_bytes = weight_bytes * share
        experts = 3 * shape.hidden_size * shape.expert_size * shape.num_expert_layers * shape.num_experts
        self._expert_share = experts / (shape.num_parameters * share)
        self._kv_bytes = page_bytes(config, kv_dtype) // PAGE_SIZE // shape.num_layers
        self._pair_operations = 4 * config.num_heads * config.head_dim
        # How many layers see how far; 0 is everything.
        self._windows = sorted(Counter(config.windows).items())

    def add(self, spans: Sequence[Span], num_rows: int) -> None:
        """Counts a step over `spans`, with logits for `num_rows` of its tokens."""
        num_tokens, num_pairs, num_seen = 0, 0, 0
        for span in spans:
            count = len(span.tokens)
            num_tokens += count
            for window, num_layers in self._windows:
                num_pairs += num_layers * _pairs(span.start, count, window)
                end = span.start + count
                num_seen += num_layers * (min(end, window + count - 1) if window else end)
        shape, compute = self._shape, self._compute
        compute.operations += 2 * (num_tokens * shape.active_parameters + num_rows * shape.head_parameters)
        compute.operations += self._pair_operations * num_pairs
        weights = self._weight_bytes
        if shape.num_experts:
            weights *= 1 - self._expert_share * (1 - shape.experts_per_token / shape.num_experts) ** num_tokens
        compute.read_bytes += int(weights) + self._kv_bytes * num_seen
        compute.written_bytes += self._kv_bytes * num_tokens * shape.num_layers


def measure_peaks(device: torch.device, dtype: torch.dtype) -> Peaks:
    """The best of some rounds, with the number of threads that torch has."""
    size = _PEAK_SIZE[device.type]
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    source = torch.ones(_PEAK_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    product_s = copy_s = float("inf")
    for _ in range(_PEAK_ROUNDS):
        began = _finished_at(device)
        torch.mm(left, right)
        multiplied = _finished_at(device)
        target.copy_(source)
        copied = _finished_at(device)
        product_s, copy_s = min(product_s, multiplied - began), min(copy_s, copied - multiplied)
    return Peaks(2 * size**3 / product_s, 2 * source.nbytes / copy_s)


def _pairs(start: int, count: int, window: int) -> int:
    """Positions that `count` queries from `start` on see, added up."""
    num_full = count if not window else min(max(window - start, 0), count)
    # Query i of those that see everything before them sees start + i + 1 positions.
    return num_full * start + num_full * (num_full + 1) // 2 + (count - num_full) * window


def _finished_at(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
