"""The operations the engine is written in, chosen once: Triton kernels on CUDA, their torch twins elsewhere.

The engine is handed an `Ops` and never asks what device it runs on. Each operation is described in its own file. Also
the list of all kernels, by which tests and benchmarks try them one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

import torch
from torch import Tensor

from kernels.attention.plan import AttentionPlan
from kernels.choice.sample import SampleRows
from kernels.fallback import Fallbacks
from kernels.operation import Op
from kernels.paging import PagedKV, StorePlan
from kernels.products.quantized_product import BuiltProduct
from kernels.products.w4a16 import GroupWeight
from kernels.products.w8 import RowWeight


class RMSNorm(Protocol):
    """See `rows/norm.py`."""

    def __call__(
        self, x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None, offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """(normed, x + residual); `residual` None counts as zero. Rows are scaled by `offset + weight`."""


class RopeStore(Protocol):
    """See `rows/rope_store.py`."""

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
    """See `attention/paged_attention.py`, and on CUDA `attention/launch.py`."""

    def __call__(
        self, q: Tensor, kv: PagedKV, plan: AttentionPlan, *, scale: float, window: int = 0, softcap: float = 0.0
    ) -> Tensor:
        """Causal attention of [tokens, heads, head_dim] over the plan's pages; same shape out.

        `window` > 0: a query sees its last `window` positions, its own included. `softcap` > 0: scores become
        softcap * tanh(score / softcap).
        """


GatedActivation = Callable[[Tensor, str], Tensor]
"""See `rows/act.py`: [tokens, 2 * width], gate first -> act(gate) * up, [tokens, width]; silu, gelu, gelu_tanh."""


class QuantizedProduct(Protocol):
    """See `products/quantized_product.py`, and on CUDA `products/launch.py`."""

    def __call__(
        self, weight: RowWeight | GroupWeight, bias: Tensor | None, *, dtype: torch.dtype, round_input: bool = False
    ) -> BuiltProduct:
        """The product with a weight for rows of `dtype`, made once; `bias` [out] is of that type.

        `round_input`: rows are rounded to the weight's eight bits, by a scale each.
        """


class MoE(Protocol):
    """See `products/moe.py`."""

    def __call__(self, x: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, chosen: Tensor, kind: str) -> Tensor:
        """The sum over a token's `chosen` experts of share * down(act(gate(x)) * up(x)), [tokens, hidden]."""


class Sample(Protocol):
    """See `choice/sample.py`."""

    def __call__(self, logits: Tensor, rows: SampleRows, stream: int) -> Tensor:
        """One token a row, [rows] int64, of [rows, vocab] float32."""


class SampleWithLogprobs(Protocol):
    """See `choice/sample.py`."""

    def __call__(self, logits: Tensor, rows: SampleRows, stream: int) -> tuple[Tensor, Tensor]:
        """The tokens, and their log-probabilities by the logits alone, [rows] float32."""


class SampleWithProbs(Protocol):
    """See `choice/sample.py`."""

    def __call__(self, logits: Tensor, rows: SampleRows, stream: int) -> tuple[Tensor, Tensor]:
        """The tokens, and the distributions they were drawn from, [rows, vocab] float32."""


class Probabilities(Protocol):
    """See `choice/sample.py`."""

    def __call__(self, logits: Tensor, rows: SampleRows) -> Tensor:
        """The distributions that tokens would be drawn from, [rows, vocab] float32."""


class Reject(Protocol):
    """See `choice/reject.py`."""

    def __call__(
        self, probs: Tensor, draft_probs: Tensor, drafts: Tensor, row_starts: Tensor, rows: SampleRows
    ) -> tuple[Tensor, Tensor]:
        """How many drafts of each sequence are accepted, and the token that follows them: two [sequences] int64."""


MODULES = {
    "paged_decode": "attention.decode_kernel",
    "paged_prefill": "attention.prefill_kernel",
    "cascade": "attention.cascade_kernel",
    "norm": "rows.norm_kernel",
    "act": "rows.act_kernel",
    "rope_store": "rows.rope_store_kernel",
    "w4a16": "products.w4a16_kernel",
    "w8": "products.w8_kernel",
    "quantize_rows": "rows.quantize_rows_kernel",
    "w8a8": "products.w8a8_kernel",
    "sample": "choice.sample_kernel",
    "probabilities": "choice.probabilities_kernel",
    "reject": "choice.reject_kernel",
    "moe": "products.moe_kernel",
}
"""Where the kernel of each operation stands, which has it as `OP`; some are parts of an operation of `Ops`."""


def op_names() -> list[str]:
    """The names of all operations that have a kernel. Does not import Triton."""
    return list(MODULES)


def load_ops() -> list[Op]:
    """All of them. Imports Triton."""
    return [cast("Op", import_module(f"kernels.{name}").OP) for name in MODULES.values()]


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


def has_kernels(device_type: str, *, reference: bool = False) -> bool:
    """Whether kernels do the work on "cpu" or "cuda". Where there is CUDA but no Triton (Windows), the twins do."""
    return not reference and device_type == "cuda" and find_spec("triton") is not None


def select_ops(device_type: str, *, reference: bool = False, fallbacks: Fallbacks | None = None) -> Ops:
    """The operations for "cpu" or "cuda"; `reference` takes the torch twins on either.

    `fallbacks` learns of kernels that cannot run here (None: nobody asks), whose work their twins do.
    """
    from kernels.attention import paged_attention
    from kernels.choice import reject, sample
    from kernels.products import moe, quantized_product
    from kernels.rows import act, norm, rope_store

    twins = Ops(
        rms_norm=norm.rms_norm_reference,
        rope_store=rope_store.rope_store_reference,
        paged_attention=paged_attention.paged_attention_reference,
        gated_activation=act.gated_activation_reference,
        quantized_product=quantized_product.quantized_product_reference,
        moe=moe.moe_reference,
        sample=sample.sample_reference,
        sample_with_logprobs=sample.sample_with_logprobs_reference,
        sample_with_probs=sample.sample_with_probs_reference,
        probabilities=sample.probabilities_reference,
        reject=reject.reject_reference,
    )
    if not has_kernels(device_type, reference=reference):
        return twins
    from kernels.attention.launch import prepare_paged_attention
    from kernels.choice.probabilities_kernel import prepare_probabilities
    from kernels.choice.reject_kernel import prepare_reject
    from kernels.choice.sample_kernel import prepare_sample, prepare_tokens, prepare_with_probs
    from kernels.products.launch import Products
    from kernels.products.moe_kernel import prepare_moe
    from kernels.rows.act_kernel import prepare_gated_activation
    from kernels.rows.norm_kernel import prepare_rms_norm
    from kernels.rows.rope_store_kernel import prepare_queries

    fallbacks = Fallbacks() if fallbacks is None else fallbacks
    guarded = fallbacks.guarded
    return Ops(
        rms_norm=guarded("rms_norm", prepare_rms_norm, twins.rms_norm),
        rope_store=guarded("rope_store", prepare_queries, twins.rope_store),
        paged_attention=guarded("paged_attention", prepare_paged_attention, twins.paged_attention),
        gated_activation=guarded("gated_activation", prepare_gated_activation, twins.gated_activation),
        quantized_product=Products(fallbacks),
        moe=guarded("moe", prepare_moe, twins.moe),
        sample=guarded("sample", prepare_tokens, twins.sample),
        sample_with_logprobs=guarded("sample_with_logprobs", prepare_sample, twins.sample_with_logprobs),
        sample_with_probs=guarded("sample_with_probs", prepare_with_probs, twins.sample_with_probs),
        probabilities=guarded("probabilities", prepare_probabilities, twins.probabilities),
        reject=guarded("reject", prepare_reject, twins.reject),
    )
