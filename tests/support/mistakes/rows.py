"""Mistakes planted in kernels that go row by row: see `tests/kernels/apart/check_mutations.py`."""

from __future__ import annotations

from tests.support.mistakes.mistake import Mistake

MISTAKES = [
    Mistake("mean of the padding too", "norm_kernel", "0) / WIDTH", "0) / BLOCK", "norm_kernel", "odd-width"),
    Mistake("no offset", "norm_kernel", ".to(tl.float32) + offset", ".to(tl.float32)", "norm_kernel", "offset"),
    Mistake(
        "stride of the other", "norm_kernel", "row * residual_stride", "row * x_stride", "norm_kernel", "odd-width"
    ),
    Mistake("residual left out", "norm_kernel", "numbers += tl.load", "numbers = tl.load", "norm_kernel", "int8"),
    Mistake("not divided", "rows", "rounded(row / value, ", "rounded(row, ", "norm_kernel", "int8"),
    Mistake("not rounded", "rows", " + _MAGIC - _MAGIC", "", "act_kernel", "int8"),
    Mistake("half the range", "rows", "else 448.0", "else 224.0", "act_kernel", "fp8"),
    Mistake("up from elsewhere", "act_kernel", "gate_up + WIDTH", "gate_up + WIDTH // 2", "act_kernel", "odd-width"),
    Mistake("first block again", "act_kernel", "tl.program_id(1) * BLOCK + ", "", "act_kernel", "two-blocks"),
    Mistake("another tanh", "act_kernel", "0.044715", "0.44715", "act_kernel", "gelu-tanh"),
    Mistake("another gelu", "act_kernel", "0.7071067811865476", "1.0", "act_kernel", "gelu"),
    Mistake(
        "turned backwards",
        "rope_store_kernel",
        "first * cos - second * sin",
        "first * cos + second * sin",
        "rope_store_kernel",
        "one-token",
    ),
    Mistake("no norm of keys", "rope_store_kernel", "k_norm, cos_sin", "None, cos_sin", "rope_store_kernel", "norms"),
    Mistake(
        "rest not in the norm",
        "rope_store_kernel",
        "square += tl.sum(rest * rest, 1)",
        "square += 0.0",
        "rope_store_kernel",
        "partial-norms-fp16",
    ),
    Mistake(
        "rest not in the scale",
        "rope_store_kernel",
        "tl.maximum(largest, tl.max(tl.abs(rest), 1))",
        "largest",
        "rope_store_kernel",
        "fp8-partial-fp16",
    ),
    Mistake("next place", "rope_store_kernel", "slot % _PAGE", "(slot + 1) % _PAGE", "rope_store_kernel", "one-token"),
    Mistake("first page left out", "rope_store_kernel", "slot >= 0:", "slot >= 64:", "rope_store_kernel", "unstored"),
    Mistake(
        "keys as values",
        "rope_store_kernel",
        "heads += NUM_HEADS + NUM_KV_HEADS",
        "heads += NUM_HEADS",
        "rope_store_kernel",
        "ragged-heads",
    ),
]
