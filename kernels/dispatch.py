"""The operations the engine is written in, chosen once: Triton kernels on CUDA, their torch twins elsewhere.

The engine is handed an `Ops` and never asks what device it runs on. Each operation is described in its own file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from kernels.paging import AttentionPlan, PagedKV, StorePlan
from kernels.products import BuiltProduct
from kernels.sample import SampleRows
from kernels.w4a16 import GroupWeight
from kernels.w8 import RowWeight


class RMSNorm(Protocol):
    """See `norm_kernel.py`."""

    def __call__(
        self, x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None, offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """(normed, x + residual); `residual` None counts as zero. Rows are scaled by `offset + weight`."""


class RopeStore(Protocol):
    """See `rope_store_kernel.py`."""

    def __call__(
        self,
        qkv: Tensor,
        kv: PagedKV,
        plan: StorePlan,
        *,
        num_heads: int,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 1e-6,
        offset: float = 0.0,
    ) -> Tensor:
        """Optional per-head q/k-norm, rotation, K and V (quantized if the pages are) into their slots.

        `qkv`: [tokens, (num_heads + 2 * kv_heads) * head_dim], queries first. The first rotary_dim <= head_dim numbers
        of a head turn, as `plan` says. Returns the queries, [tokens, num_heads, head_dim].
        """


class PagedAttention(Protocol):
    """See `paged_decode.py` and `paged_prefill.py`."""

    def __call__(
        self, q: Tensor, kv: PagedKV, plan: AttentionPlan, *, scale: float, window: int = 0, softcap: float = 0.0
    ) -> Tensor:
        """Causal attention of [tokens, heads, head_dim] over the plan's pages; same shape out.

        `window` > 0: a query sees its last `window` positions, its own included. `softcap` > 0: scores become
        softcap * tanh(score / softcap).
        """


GatedActivation = Callable[[Tensor, str], Tensor]
"""See `act_kernel.py`: [tokens, 2 * width], gate first -> act(gate) * up, [tokens, width]; silu, gelu, gelu_tanh."""


class QuantizedProduct(Protocol):
    """See `w4a16_kernel.py`, `w8_kernel.py` and `w8a8_kernel.py`."""

    def __call__(
        self, weight: RowWeight | GroupWeight, bias: Tensor | None, *, dtype: torch.dtype, round_input: bool = False
    ) -> BuiltProduct:
        """The product with a weight for rows of `dtype`, made once; `bias` [out] is of that type.

        `round_input`: rows are rounded to the weight's eight bits, by a scale each.
        """


class MoE(Protocol):
    """See `moe.py`."""

    def __call__(self, x: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, chosen: Tensor, kind: str) -> Tensor:
        """The sum over a token's `chosen` experts of share * down(act(gate(x)) * up(x)), [tokens, hidden]."""


class Sample(Protocol):
    """See `sample.py`."""

    def __call__(self, logits: Tensor, rows: SampleRows, stream: int) -> Tensor:
        """One token a row, [rows] int64, of [rows, vocab] float32."""


class SampleWithLogprobs(Protocol):
    """See `sample.py`."""

    def __call__(self, logits: Tensor, rows: SampleRows, stream: int) -> tuple[Tensor, Tensor]:
        """The tokens, and their log-probabilities by the logits alone, [rows] float32."""


class SampleWithProbs(Protocol):
    """See `sample.py`."""

    def __call__(self, logits: Tensor, rows: SampleRows, stream: int) -> tuple[Tensor, Tensor]:
        """The tokens, and the distributions they were drawn from, [rows, vocab] float32."""


class Probabilities(Protocol):
    """See `sample.py`."""

    def __call__(self, logits: Tensor, rows: SampleRows) -> Tensor:
        """The distributions that tokens would be drawn from, [rows, vocab] float32."""


class Reject(Protocol):
    """See `reject.py`."""

    def __call__(
        self, probs: Tensor, draft_probs: Tensor, drafts: Tensor, row_starts: Tensor, rows: SampleRows
    ) -> tuple[Tensor, Tensor]:
        """How many drafts of each sequence are accepted, and the token that follows them: two [sequences] int64."""


@dataclass(frozen=True, slots=True)
class Ops:
    """One implementation of each operation."""

    rms_norm: RMSNorm
    rope_store: RopeStore
    paged_attention: PagedAttention
    gated_activation: GatedActivation
    quantized_product: QuantizedProduct
    moe: MoE
    sample: Sample
    sample_with_logprobs: SampleWithLogprobs
    sample_with_probs: SampleWithProbs
    probabilities: Probabilities
    reject: Reject


def select_ops(device_type: str, *, reference: bool = False) -> Ops:
    """The operations for "cpu" or "cuda"; `reference` takes the torch twins on either."""
    from kernels import act, moe, norm, paged_attention, products, reject, rope_store, sample

    twins = Ops(
        rms_norm=norm.rms_norm_reference,
        rope_store=rope_store.rope_store_reference,
        paged_attention=paged_attention.paged_attention_reference,
        gated_activation=act.gated_activation_reference,
        quantized_product=products.quantized_product_reference,
        moe=moe.moe_reference,
        sample=sample.sample_reference,
        sample_with_logprobs=sample.sample_with_logprobs_reference,
        sample_with_probs=sample.sample_with_probs_reference,
        probabilities=sample.probabilities_reference,
        reject=reject.reject_reference,
    )
    # Where there is CUDA but no Triton (Windows), the twins do its work.
    if reference or device_type != "cuda" or find_spec("triton") is None:
        return twins
    from kernels import (
        act_kernel,
        moe_kernel,
        norm_kernel,
        paged_launch,
        probabilities_kernel,
        product_launch,
        reject_kernel,
        rope_store_kernel,
        sample_kernel,
    )

    return Ops(
        rms_norm=norm_kernel.rms_norm,
        rope_store=rope_store_kernel.rope_store,
        paged_attention=paged_launch.paged_attention,
        gated_activation=act_kernel.gated_activation,
        quantized_product=product_launch.quantized_product,
        moe=moe_kernel.moe,
        sample=sample_kernel.sample,
        sample_with_logprobs=sample_kernel.sample_with_logprobs,
        sample_with_probs=sample_kernel.sample_with_probs,
        probabilities=probabilities_kernel.probabilities,
        reject=reject_kernel.reject,
    )
