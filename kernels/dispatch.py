"""The operations the engine is written in, chosen once: Triton kernels on CUDA, their torch twins elsewhere.

The engine is handed an `Ops` and never asks what device it runs on. Each operation is described in its own file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Protocol

from torch import Tensor

from kernels.paging import AttentionPlan, PagedKV


class RMSNorm(Protocol):
    """See `norm.py`."""

    def __call__(
        self, x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None, offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """(normed, x + residual); `residual` None counts as zero. Rows are scaled by `offset + weight`."""


class RopeStore(Protocol):
    """See `rope_store.py`."""

    def __call__(
        self,
        qkv: Tensor,
        cos_sin: Tensor,
        positions: Tensor,
        kv: PagedKV,
        slots: Tensor,
        *,
        num_heads: int,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 1e-6,
        offset: float = 0.0,
    ) -> Tensor:
        """Optional per-head q/k-norm, rotation by position, K and V (quantized if the pages are) into their slots.

        `qkv`: [tokens, (num_heads + 2 * kv_heads) * head_dim], queries first. `cos_sin`: [max positions, rotary_dim]
        float32, cosines in the first half; rotary_dim <= head_dim, the first rotary_dim numbers of a head turn.
        `positions`, `slots`: [tokens] int64, slot = page * PAGE_SIZE + offset, -1 stores nothing.
        Returns the queries, [tokens, num_heads, head_dim].
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
"""See `act.py`: [tokens, 2 * width], gate first -> act(gate) * up, [tokens, width]; kinds silu, gelu, gelu_tanh."""


@dataclass(frozen=True, slots=True)
class Ops:
    """One implementation of each operation."""

    rms_norm: RMSNorm
    rope_store: RopeStore
    paged_attention: PagedAttention
    gated_activation: GatedActivation


def select_ops(device_type: str, *, reference: bool = False) -> Ops:
    """The operations for "cpu" or "cuda"; `reference` takes the torch twins on either."""
    from kernels import act, norm, paged_attention, rope_store

    twins = Ops(
        rms_norm=norm.rms_norm_reference,
        rope_store=rope_store.rope_store_reference,
        paged_attention=paged_attention.paged_attention_reference,
        gated_activation=act.gated_activation_reference,
    )
    # Where there is CUDA but no Triton (Windows), the twins do its work.
    if reference or device_type != "cuda" or find_spec("triton") is None:
        return twins
    from kernels import paged_launch

    return replace(twins, paged_attention=paged_launch.paged_attention)
