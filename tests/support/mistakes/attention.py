"""Mistakes planted in the attention kernels: see `tests/kernels/apart/check_mutations.py`."""

from __future__ import annotations

from tests.support.mistakes.mistake import Mistake

MISTAKES = [
    Mistake("sees one less", "attend", "at[None, :] <= positions", "at[None, :] < positions", "paged_decode", "verify"),
    Mistake(
        "sees one more", "attend", "at[None, :] <= positions", "at[None, :] - 1 <= positions", "paged_prefill", "fp8"
    ),
    Mistake(
        "no window", "attend", "> positions[:, None] - WINDOW", "> positions[:, None] - 9999", "paged_decode", "window"
    ),
    Mistake(
        "wide window",
        "attend",
        "> positions[:, None] - WINDOW",
        ">= positions[:, None] - WINDOW",
        "paged_decode",
        "window",
    ),
    Mistake(
        "next page",
        "attend",
        "page = tl.sum(tl.where(numbers == number, ",
        "page = tl.sum(tl.where(numbers == number + 1, ",
        "paged_decode",
        "page-borders",
    ),
    Mistake(
        "stale values",
        "attend",
        "is_head, IS_MASKED, HEAD_DIM",
        "is_head, False, HEAD_DIM",
        "paged_decode",
        "page-borders",
    ),
    Mistake("no key scale", "attend", "(key_scale.to(tl.float32) * factor)[None, :]", "factor", "paged_decode", "int8"),
    Mistake(
        "no value scale",
        "attend",
        "weights *= value_scale.to(tl.float32)[None, :]",
        "weights *= 1.0",
        "paged_decode",
        "fp8",
    ),
    Mistake("scales of one page", "attend", "numbers == number + 1, ", "numbers == number, ", "paged_prefill", "int8"),
    Mistake("no fading", "attend", "total * fade[:, None]", "total", "paged_decode", "page-borders"),
    Mistake(
        "soft cap of half", "attend", "scores = cap - 2 * cap /", "scores = cap - cap /", "paged_prefill", "softcap"
    ),
    Mistake(
        "half a head",
        "attend",
        "is_head = dims < HEAD_DIM",
        "is_head = dims < HEAD_DIM // 2",
        "paged_decode",
        "odd-head",
    ),
    Mistake(
        "splits alike",
        "paged_decode",
        "tl.sum(state * share[:, None], 0)",
        "tl.sum(state, 0)",
        "paged_decode",
        "split-borders",
    ),
    Mistake("peak kept", "paged_decode", "peak = higher", "peak = peak", "paged_decode", "many-splits"),
    Mistake(
        "other heads",
        "paged_decode",
        "head * GROUP + rows % GROUP",
        "head * GROUP + rows // GROUP % GROUP",
        "paged_decode",
        "seven-to-one",
    ),
    Mistake(
        "unmasked too far",
        "paged_prefill",
        "whole_end = (earliest + 1) // PAGE",
        "whole_end = (earliest + PAGE) // PAGE",
        "paged_prefill",
        "whole-prompt",
    ),
    Mistake(
        "late window",
        "paged_prefill",
        "earliest - WINDOW + 1, 0) // PAGE",
        "earliest - WINDOW + PAGE, 0) // PAGE",
        "paged_prefill",
        "window",
    ),
    Mistake(
        "wrong sequence",
        "paged_prefill",
        "// QUERIES + numbers <= tile",
        "// QUERIES + numbers < tile",
        "paged_prefill",
        "ragged-mix",
    ),
    Mistake(
        "nothing skipped",
        "paged_decode",
        "start_split = tl.load(skipped + sequence)",
        "start_split = tl.load(skipped + sequence) + 1",
        "cascade",
        "split-and-a-half",
    ),
    Mistake(
        "another's table",
        "cascade",
        "page_table + first_member.to(tl.int64)",
        "page_table + (first_member - 1).to(tl.int64)",
        "cascade",
        "mixed-groups",
    ),
]
