"""Mistakes planted in kernels that go row by row: see `tests/kernels/apart/check_mutations.py`."""

from __future__ import annotations

from tests.support.mistakes.mistake import Mistake

MISTAKES = [
    Mistake("mean of the padding too", "rows/norm_kernel", "0) / WIDTH", "0) / BLOCK", "norm", "odd-width"),
    Mistake("no offset", "rows/norm_kernel", ".to(tl.float32) + offset", ".to(tl.float32)", "norm", "offset"),
    Mistake("stride of the other", "rows/norm_kernel", "row * residual_stride", "row * x_stride", "norm", "odd-width"),
    Mistake("residual left out", "rows/norm_kernel", "numbers += tl.load", "numbers = tl.load", "norm", "odd-width"),
    Mistake(
        "not divided",
        "rows/quantize_rows_kernel",
        "stored + places, rounded(numbers / scale, ",
        "stored + places, rounded(numbers, ",
        "quantize_rows",
        "int8-odd",
    ),
    Mistake("not rounded", "rows/row_kernel", " + _MAGIC - _MAGIC", "", "quantize_rows", "int8-odd"),
    Mistake("half the range", "rows/row_kernel", "else 448.0", "else 224.0", "quantize_rows", "fp8-odd"),
    Mistake("up from elsewhere", "rows/act_kernel", "gate_up + WIDTH", "gate_up + WIDTH // 2", "act", "odd-width"),
    Mistake("first block again", "rows/act_kernel", "tl.program_id(1) * BLOCK + ", "", "act", "two-blocks"),
    Mistake("another tanh", "rows/act_kernel", "0.044715", "0.44715", "act", "gelu-tanh"),
    Mistake("another gelu", "rows/act_kernel", "0.7071067811865476", "1.0", "act", "gelu"),
    Mistake(
        "turned backwards",
        "rows/rope_store_kernel",
        "first * cos - second * sin",
        "first * cos + second * sin",
        "rope_store",
        "one-token",
    ),
    Mistake("no norm of keys", "rows/rope_store_kernel", "k_norm, cos_sin", "None, cos_sin", "rope_store", "norms"),
    Mistake(
        "rest not in the norm",
        "rows/rope_store_kernel",
        "square += tl.sum(rest * rest, 1)",
        "square += 0.0",
        "rope_store",
        "partial-norms-fp16",
    ),
    Mistake(
        "rest not in the scale",
        "rows/rope_store_kernel",
        "tl.maximum(largest, tl.max(tl.abs(rest), 1))",
        "largest",
        "rope_store",
        "fp8-partial-fp16",
    ),
    Mistake("next place", "rows/rope_store_kernel", "slot % _PAGE", "(slot + 1) % _PAGE", "rope_store", "one-token"),
    Mistake("first page left out", "rows/rope_store_kernel", "slot >= 0:", "slot >= 64:", "rope_store", "unstored"),
    Mistake(
        "keys as values",
        "rows/rope_store_kernel",
        "heads += NUM_HEADS + NUM_KV_HEADS",
        "heads += NUM_HEADS",
        "rope_store",
        "ragged-heads",
    ),
]
