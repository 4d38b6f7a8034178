"""What the attention kernels are tried with: random sequences over shuffled pages, as small and as large as needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from kernels.attention.plan import AttentionPlan
from kernels.attention.shared_prefix import find_shared_prefixes
from kernels.operation import Arguments, Case, Cost
from kernels.paging import PAGE_SIZE, PagedKV
from kernels.tuning import SPLIT

_SEED = 20


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """A step: `sequences` as (queries, length).

    `kv_dtype` None: as `dtype`. `is_gapped`: rows of a wider joint projection, pages of a pool with more heads, a table
    with more columns. `num_shared`: leading pages that all sequences have in common.
    """

    sequences: Sequence[tuple[int, int]]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    window: int = 0
    softcap: float = 0.0
    is_gapped: bool = False
    num_shared: int = 0


def build(shape: AttentionShape, device: torch.device) -> Arguments:
    """Arguments of `kernels.dispatch.PagedAttention`; every slot that no token was written to holds NaN."""
    generator = None if device.type == "meta" else torch.Generator(device).manual_seed(_SEED)
    tables = _page_tables(shape)
    # Page 0, which fills tables up, belongs to nobody, and neither does the last.
    num_pages = max((page for pages in tables for page in pages), default=0) + 2
    width = max(1, *(len(pages) for pages in tables))
    gap = 3 if shape.is_gapped else 0
    table = torch.tensor([pages + [0] * (width + gap - len(pages)) for pages in tables], dtype=torch.int32)
    used = torch.zeros(num_pages, dtype=torch.int32)
    for pages, (_, length) in zip(tables, shape.sequences, strict=True):
        for number, page in enumerate(pages):
            used[page] = min(PAGE_SIZE, length - number * PAGE_SIZE)
    queries = torch.tensor([count for count, _ in shape.sequences], dtype=torch.int32)
    starts = torch.cat((torch.zeros(1, dtype=torch.int32), queries.cumsum(0).int()))
    lengths = torch.tensor([length for _, length in shape.sequences], dtype=torch.int32)
    plan = AttentionPlan(
        table.to(device)[:, :width], starts.to(device), lengths.to(device), int(queries.max()), int(lengths.max())
    )
    wide = (int(starts[-1]), shape.num_heads + gap, shape.head_dim)
    q = torch.randn(wide, generator=generator, device=device, dtype=torch.float32).to(shape.dtype)
    kv = _pages(shape, used.to(device), generator, gap)
    return {
        "q": q[:, : shape.num_heads],
        "kv": kv,
        "plan": plan,
        "scale": shape.head_dim**-0.5,
        "window": shape.window,
        "softcap": shape.softcap,
    }


def build_shared(shape: AttentionShape, device: torch.device) -> Arguments:
    """Arguments of `cascade`: as `build`, with the groups that the page tables show."""
    arguments = build(shape, device)
    del arguments["window"]
    first_positions = [length - count for count, length in shape.sequences]
    return {**arguments, "shared": find_shared_prefixes(_page_tables(shape), first_positions, device)}


def _page_tables(shape: AttentionShape) -> list[list[int]]:
    """Shuffled pages of each sequence, from 1 on."""
    counts = [-(-length // PAGE_SIZE) for _, length in shape.sequences]
    num_pages = shape.num_shared + sum(max(0, count - shape.num_shared) for count in counts)
    order = (torch.randperm(num_pages, generator=torch.Generator().manual_seed(_SEED)) + 1).tolist()
    common, free = order[: shape.num_shared], iter(order[shape.num_shared :])
    return [common[:count] + [next(free) for _ in range(count - shape.num_shared)] for count in counts]


def _pages(shape: AttentionShape, used: Tensor, generator: torch.Generator | None, gap: int) -> PagedKV:
    """Random pages, of which `used` [pages] says how many slots were written to."""
    device, dtype = used.device, shape.kv_dtype or shape.dtype
    size = (used.shape[0], shape.num_kv_heads + gap, PAGE_SIZE)
    is_stale = (torch.arange(PAGE_SIZE, device=device) >= used[:, None])[:, None]
    tensors, scales = [], []
    for _ in range(2):
        if dtype == torch.int8:
            stored = torch.randint(-127, 128, (*size, shape.head_dim), generator=generator, device=device).to(dtype)
        else:
            floats = torch.randn((*size, shape.head_dim), generator=generator, device=device)
            stored = floats.masked_fill_(is_stale[..., None], math.nan).to(dtype)
        tensors.append(stored[:, : shape.num_kv_heads])
        scale = torch.rand(size, generator=generator, device=device) * (0.02 if dtype == torch.int8 else 1.0) + 0.005
        scales.append(scale.masked_fill_(is_stale, math.nan).half()[:, : shape.num_kv_heads])
    return PagedKV(*tensors, *scales) if dtype in (torch.int8, torch.float8_e4m3fn) else PagedKV(*tensors)


def attention_cost(arguments: Arguments) -> Cost:
    """Of causal attention: each visible key and value once, and a product with either for each pair of head and key."""
    q, kv, plan, window = (arguments[name] for name in ("q", "kv", "plan", "window"))
    counts, lengths = plan.query_starts.diff().tolist(), plan.kv_lengths.tolist()
    num_read, num_pairs = 0, 0
    for count, length in zip(counts, lengths, strict=True):
        if length:
            num_read += min(length, window + count - 1) if window else length
            seen = (min(length - count + 1 + query, window or length) for query in range(count))
            num_pairs += sum(seen)
    _, num_heads, head_dim = q.shape
    return Cost(
        num_bytes=num_read * kv.keys.shape[1] * _slot_bytes(kv) + 2 * q.numel() * q.element_size(),
        num_operations=4 * num_pairs * num_heads * head_dim,
    )


def cascade_cost(arguments: Arguments) -> Cost:
    """Of the same attention with each group's shared splits read once."""
    kv, shared = arguments["kv"], arguments["shared"]
    whole = attention_cost({**arguments, "window": 0})
    repeated = int(((shared.group_starts.diff() - 1) * shared.num_shared).sum()) * SPLIT * kv.keys.shape[1]
    return Cost(whole.num_bytes - repeated * _slot_bytes(kv), whole.num_operations)


def _slot_bytes(kv: PagedKV) -> int:
    """Of one position of one KV head."""
    scale_bytes = 0 if kv.key_scales is None else kv.key_scales.element_size()
    return 2 * (kv.keys.shape[3] * kv.keys.element_size() + scale_bytes)


_BF16, _FP16, _INT8, _FP8 = torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn
_SMALL_DECODE = {
    "first-token": AttentionShape([(1, 1)]),
    "page-borders": AttentionShape([(1, 63), (1, 64), (1, 65), (1, 129)], dtype=_BF16),
    "split-borders": AttentionShape([(1, 511), (1, 512), (1, 513)], num_heads=2, num_kv_heads=1),
    "three-splits": AttentionShape([(1, 1100), (1, 40)], num_heads=2, num_kv_heads=1, dtype=_BF16),
    "many-splits": AttentionShape([(1, 8300)], num_heads=1, num_kv_heads=1),
    "verify": AttentionShape([(5, 70), (2, 66), (8, 8), (1, 600)], num_kv_heads=1, dtype=_BF16, is_gapped=True),
    "padded-rows": AttentionShape([(1, 90), (1, 0), (1, 64), (1, 0)], is_gapped=True),
    "padded-rows-split": AttentionShape([(1, 530), (1, 0)], num_heads=1, num_kv_heads=1),
    "seven-to-one": AttentionShape([(1, 100), (3, 77)], num_heads=7, num_kv_heads=1, head_dim=24, dtype=_FP16),
    "odd-head": AttentionShape([(1, 100)], num_heads=3, num_kv_heads=3, head_dim=20),
    "window": AttentionShape([(1, 300), (1, 30), (4, 600)], num_heads=2, num_kv_heads=1, dtype=_BF16, window=65),
    "window-of-one": AttentionShape([(1, 600), (1, 64)], num_heads=2, num_kv_heads=1, window=1),
    "softcap": AttentionShape([(1, 100), (2, 65)], softcap=2.0),
    "window-softcap": AttentionShape([(1, 700)], num_heads=2, num_kv_heads=1, dtype=_FP16, window=600, softcap=5.0),
    "int8": AttentionShape([(1, 100), (1, 520), (3, 65)], num_kv_heads=1, head_dim=32, dtype=_BF16, kv_dtype=_INT8),
    "fp8": AttentionShape([(1, 100), (1, 65)], head_dim=32, dtype=_BF16, kv_dtype=_FP8, is_gapped=True),
    "int8-fp16": AttentionShape([(1, 65)], dtype=_FP16, kv_dtype=_INT8, window=40, is_gapped=True),
    "fp8-float32": AttentionShape([(2, 130)], kv_dtype=_FP8, softcap=3.0),
}
_SMALL_PREFILL = {
    "whole-prompt": AttentionShape([(70, 70)], dtype=_BF16),
    "one-token": AttentionShape([(1, 1)]),
    "tile-borders": AttentionShape([(63, 63), (64, 64), (65, 65)], num_kv_heads=1, num_heads=2, dtype=_BF16),
    "chunk-after-prefix": AttentionShape([(30, 158), (9, 64)], dtype=_BF16, is_gapped=True),
    "ragged-mix": AttentionShape([(1, 200), (33, 97), (1, 3), (70, 70), (2, 129), (1, 0)], num_kv_heads=1, dtype=_BF16),
    "nothing-to-do": AttentionShape([(0, 40), (20, 0), (0, 0), (12, 12)], num_heads=2, num_kv_heads=1),
    "seven-to-one": AttentionShape([(40, 100)], num_heads=7, num_kv_heads=1, head_dim=24, dtype=_FP16),
    "window": AttentionShape([(80, 200), (20, 20)], num_heads=2, num_kv_heads=1, dtype=_BF16, window=40),
    "softcap": AttentionShape([(40, 90)], num_heads=2, num_kv_heads=1, softcap=2.0),
    "window-softcap": AttentionShape([(20, 300)], num_heads=2, num_kv_heads=1, window=65, softcap=3.0),
    "long-prefix": AttentionShape([(12, 2200)], num_heads=2, num_kv_heads=1, dtype=_BF16),
    "int8": AttentionShape([(30, 150)], num_heads=2, num_kv_heads=1, head_dim=32, dtype=_BF16, kv_dtype=_INT8),
    "fp8": AttentionShape([(70, 70)], num_heads=2, head_dim=32, dtype=_BF16, kv_dtype=_FP8, is_gapped=True),
    "fp8-fp16-window": AttentionShape([(20, 100)], dtype=_FP16, kv_dtype=_FP8, window=50),
}
_LLAMA_8B = AttentionShape([(1, 4096)] * 64, num_heads=32, num_kv_heads=8, head_dim=128, dtype=_BF16)
_GEMMA = replace(_LLAMA_8B, num_heads=8, num_kv_heads=4, head_dim=256)
_RAGGED = [(1, 128 << (number % 7)) for number in range(64)]
_REAL_DECODE = {
    "8b-64x4096": _LLAMA_8B,
    "8b-1x32768": replace(_LLAMA_8B, sequences=[(1, 32768)]),
    "8b-ragged": replace(_LLAMA_8B, sequences=_RAGGED),
    "8b-1x512": replace(_LLAMA_8B, sequences=[(1, 512)]),
    "8b-verify-16x4096": replace(_LLAMA_8B, sequences=[(4, 4096)] * 16),
    "8b-verify-8-16x4096": replace(_LLAMA_8B, sequences=[(8, 4096)] * 16),
    "8b-64x4096-fp16": replace(_LLAMA_8B, dtype=_FP16),
    "8b-64x4096-fp8": replace(_LLAMA_8B, kv_dtype=_FP8),
    "8b-64x4096-int8": replace(_LLAMA_8B, kv_dtype=_INT8),
    "8b-64x4096-window": replace(_LLAMA_8B, window=1024),
    "8b-64x4096-softcap": replace(_LLAMA_8B, softcap=50.0),
    "gemma-16x4096": replace(_GEMMA, sequences=[(1, 4096)] * 16),
    "gemma-16x4096-fp8": replace(_GEMMA, sequences=[(1, 4096)] * 16, kv_dtype=_FP8),
    "1b-64x4096": replace(_LLAMA_8B, head_dim=64),
    "1b-64x4096-int8": replace(_LLAMA_8B, head_dim=64, kv_dtype=_INT8),
}
_REAL_PREFILL = {
    "8b-8192": replace(_LLAMA_8B, sequences=[(8192, 8192)]),
    "8b-mixed": replace(_LLAMA_8B, sequences=[(1024, 5000), (1, 4096), (1, 700), (300, 300)]),
    "8b-8192-fp8": replace(_LLAMA_8B, sequences=[(8192, 8192)], kv_dtype=_FP8),
    "8b-8192-int8": replace(_LLAMA_8B, sequences=[(8192, 8192)], kv_dtype=_INT8),
    "8b-8192-window": replace(_LLAMA_8B, sequences=[(8192, 8192)], window=1024),
    "8b-8192-softcap": replace(_LLAMA_8B, sequences=[(8192, 8192)], softcap=50.0),
    "gemma-8192": replace(_GEMMA, sequences=[(8192, 8192)]),
    "1b-8192": replace(_LLAMA_8B, sequences=[(8192, 8192)], head_dim=64),
}


_SMALL_SHARED = {
    "one-split": AttentionShape([(1, 530), (1, 600)], num_heads=2, num_kv_heads=1, num_shared=8, dtype=_BF16),
    "nothing-shared": AttentionShape([(1, 530), (1, 40)], num_heads=2, num_kv_heads=1),
    "split-and-a-half": AttentionShape([(1, 800), (1, 768), (1, 1030)], num_heads=2, num_kv_heads=1, num_shared=12),
    "query-at-the-border": AttentionShape([(1, 513), (2, 514), (1, 512)], num_heads=2, num_kv_heads=1, num_shared=8),
    "verify": AttentionShape([(3, 600), (1, 530), (0, 520), (2, 1100)], num_kv_heads=1, num_shared=8, is_gapped=True),
    "softcap-int8": AttentionShape(
        [(1, 540)] * 3, num_kv_heads=1, num_shared=8, kv_dtype=_INT8, dtype=_BF16, softcap=3.0
    ),
    "mixed-groups": AttentionShape(
        [(1, 20), (1, 530), (1, 540)], num_heads=2, num_kv_heads=1, num_shared=8, dtype=_BF16
    ),
    "two-tiles": AttentionShape([(1, 520)] * 6, num_heads=32, num_kv_heads=1, num_shared=8, dtype=_BF16),
}
_REAL_SHARED = {
    "8b-64x4096+256": replace(_LLAMA_8B, sequences=[(1, 4352)] * 64, num_shared=64),
    "8b-64x4096+256-fp8": replace(_LLAMA_8B, sequences=[(1, 4352)] * 64, num_shared=64, kv_dtype=_FP8),
}


def decode_cases() -> list[Case]:
    """At most eight queries a sequence."""
    return _cases(build, _SMALL_DECODE, _REAL_DECODE)


def prefill_cases() -> list[Case]:
    """Chunks of prompts, alone and beside sequences that decode."""
    return _cases(build, _SMALL_PREFILL, _REAL_PREFILL)


def shared_cases() -> list[Case]:
    """Sequences that begin alike, and some that do not."""
    return _cases(build_shared, _SMALL_SHARED, _REAL_SHARED)


def _cases(
    builder: Callable[[AttentionShape, torch.device], Arguments],
    small: dict[str, AttentionShape],
    real: dict[str, AttentionShape],
) -> list[Case]:
    return [
        *(Case(name, partial(builder, shape), rounding=_rounding(shape)) for name, shape in small.items()),
        *(Case(name, partial(builder, shape), is_real=True, rounding=_rounding(shape)) for name, shape in real.items()),
    ]


def _rounding(shape: AttentionShape) -> torch.dtype | None:
    # With a scale in them, weights need a wider range than half precision has.
    return _BF16 if shape.kv_dtype and shape.dtype == _FP16 else None
