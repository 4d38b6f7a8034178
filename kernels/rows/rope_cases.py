"""What the rotation-and-store kernel is tried with: random projections for shuffled slots of pages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.operation import Arguments, Case, Cost, cases_of
from kernels.paging import PAGE_SIZE, PagedKV, StorePlan
from kernels.rows.cases import random_rows, seeded

_BF16, _FP16, _INT8, _FP8 = torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Projection:
    """`kv_dtype` None: as `dtype`; `rotary_dim` 0: all of a head.

    `is_gapped`: rows of a wider tensor, pages of a pool with more heads. `num_unstored`: tokens whose slot is -1, every
    second one from the first on.
    """

    num_tokens: int
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    rotary_dim: int = 0
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    has_norms: bool = False
    offset: float = 0.0
    is_gapped: bool = False
    num_unstored: int = 0


def build_projection(shape: Projection, device: torch.device) -> Arguments:
    """Arguments of `kernels.dispatch.RopeStore`; slots that nothing is written to hold other numbers."""
    generator, gap = seeded(device), 3 if shape.is_gapped else 0
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    qkv = random_rows(shape.num_tokens, width, shape.dtype, generator, device, gap=gap)
    num_pages = -(-shape.num_tokens // PAGE_SIZE) + 1
    order = torch.randperm(num_pages * PAGE_SIZE, generator=torch.Generator().manual_seed(1))
    slots = order[: shape.num_tokens]
    slots[: 2 * shape.num_unstored : 2] = -1
    angles = random_rows(shape.num_tokens, (shape.rotary_dim or shape.head_dim) // 2, torch.float32, generator, device)
    plan = StorePlan(torch.cat((angles.cos(), angles.sin()), dim=1), slots.to(device))
    norms = random_rows(2, shape.head_dim, shape.dtype, generator, device)
    return {
        "qkv": qkv,
        "kv": _pages(shape, num_pages, generator, device),
        "plan": plan,
        "num_heads": shape.num_heads,
        "q_norm": norms[0] if shape.has_norms else None,
        "k_norm": norms[1] if shape.has_norms else None,
        "eps": 1e-5,
        "offset": shape.offset,
    }


def _pages(shape: Projection, num_pages: int, generator: torch.Generator | None, device: torch.device) -> PagedKV:
    dtype, heads = shape.kv_dtype or shape.dtype, shape.num_kv_heads + (3 if shape.is_gapped else 0)
    size = (num_pages, heads, PAGE_SIZE)

    def numbers(*extents: int) -> Tensor:
        return torch.randn(extents, generator=generator, device=device)

    stored = [(numbers(*size, shape.head_dim) * 40).to(dtype)[:, : shape.num_kv_heads] for _ in range(2)]
    if dtype == shape.dtype:
        return PagedKV(*stored)
    return PagedKV(*stored, *(numbers(*size).abs().half()[:, : shape.num_kv_heads] for _ in range(2)))


def rope_store_cost(arguments: Arguments) -> Cost:
    """Each projection, cosine and slot read once, each query, stored key and value written once."""
    qkv, kv, plan, num_heads = (arguments[name] for name in ("qkv", "kv", "plan", "num_heads"))
    num_tokens, num_kv_heads, head_dim = qkv.shape[0], kv.keys.shape[1], kv.keys.shape[3]
    num_stored = int((plan.slots >= 0).sum())
    scale_bytes = 0 if kv.key_scales is None else kv.key_scales.element_size()
    num_bytes = qkv.nbytes + plan.cos_sin.nbytes + plan.slots.nbytes
    num_bytes += num_tokens * num_heads * head_dim * qkv.element_size()
    num_bytes += 2 * num_stored * num_kv_heads * (head_dim * kv.keys.element_size() + scale_bytes)
    # Two products and a sum for each number that turns.
    return Cost(num_bytes, 3 * num_tokens * (num_heads + num_kv_heads) * plan.cos_sin.shape[1])


_SMALL = {
    "one-token": Projection(1),
    "ragged-heads": Projection(5, num_heads=9, num_kv_heads=3, dtype=_BF16),
    "many-heads": Projection(2, num_heads=12, num_kv_heads=12, head_dim=8),
    "norms": Projection(4, has_norms=True, is_gapped=True),
    "norms-offset-bf16": Projection(3, has_norms=True, offset=1.0, dtype=_BF16),
    "partial": Projection(3, head_dim=24, rotary_dim=6, is_gapped=True),
    "partial-norms-fp16": Projection(3, head_dim=20, rotary_dim=8, has_norms=True, dtype=_FP16),
    "odd-head": Projection(3, num_heads=3, num_kv_heads=1, head_dim=22),
    "unstored": Projection(8, num_unstored=3, is_gapped=True),
    "none-stored": Projection(2, num_unstored=1, num_heads=2, num_kv_heads=1),
    "no-tokens": Projection(0),
    "int8": Projection(5, dtype=_BF16, kv_dtype=_INT8, is_gapped=True, num_unstored=1),
    "int8-norms-float32": Projection(4, kv_dtype=_INT8, has_norms=True),
    "fp8": Projection(5, dtype=_BF16, kv_dtype=_FP8, has_norms=True, is_gapped=True),
    "fp8-partial-fp16": Projection(4, dtype=_FP16, kv_dtype=_FP8, head_dim=24, rotary_dim=16, num_unstored=2),
}
_LLAMA_8B = Projection(4096, num_heads=32, num_kv_heads=8, head_dim=128, dtype=_BF16)
_REAL = {
    "8b-1": replace(_LLAMA_8B, num_tokens=1),
    "8b-64": replace(_LLAMA_8B, num_tokens=64),
    "8b-4096": _LLAMA_8B,
    "8b-4096-fp8": replace(_LLAMA_8B, kv_dtype=_FP8),
    "8b-4096-int8": replace(_LLAMA_8B, kv_dtype=_INT8),
    "8b-4096-fp16": replace(_LLAMA_8B, dtype=_FP16),
    "qwen3-4096": replace(_LLAMA_8B, has_norms=True),
    "qwen3-4096-fp8": replace(_LLAMA_8B, has_norms=True, kv_dtype=_FP8),
    "phi-4096": replace(_LLAMA_8B, num_heads=24, rotary_dim=96),
    "gemma-4096": replace(_LLAMA_8B, num_heads=16, head_dim=256, has_norms=True, offset=1.0),
    "gemma-4096-int8": replace(_LLAMA_8B, num_heads=16, head_dim=256, has_norms=True, offset=1.0, kv_dtype=_INT8),
}


def rope_store_cases() -> list[Case]:
    """Heads of every kind of model, as they come from a joint projection."""
    return cases_of(build_projection, _SMALL, _REAL)
