"""Mistakes planted in the kernels that choose tokens: see `tests/kernels/apart/check_mutations.py`."""

from __future__ import annotations

from tests.support.mistakes.mistake import Mistake

MISTAKES = [
    Mistake(
        "one more stays",
        "floor",
        "count.to(tl.float32) >= w",
        "count.to(tl.float32) > w",
        "probabilities_kernel",
        "top-k",
    ),
    Mistake("no cut by weight", "floor", "(share < 1.0)", "(share < 0.0)", "probabilities_kernel", "top-p"),
    Mistake(
        "share of all",
        "floor",
        "tl.maximum(share * left,",
        "tl.maximum(share * whole,",
        "probabilities_kernel",
        "all-filters",
    ),
    Mistake(
        "reach of one more",
        "floor",
        "(tl.max(fourth, 0))",
        "(tl.min(fourth, 0))",
        "probabilities_kernel",
        "top-p-of-flat",
    ),
    Mistake(
        "reach of equals",
        "floor",
        ".to(tl.int64) + 1\n    chosen",
        ".to(tl.int64)\n    chosen",
        "probabilities_kernel",
        "all-equal",
    ),
    Mistake("sum not faded", "floor", "total * fade + 1.0", "total + 1.0", "probabilities_kernel", "parts"),
    Mistake("negative order", "floor", "bits ^ ((bits >> 31) & _MAGNITUDE)", "bits", "probabilities_kernel", "top-p"),
    Mistake(
        "min-p of hot rows",
        "floor",
        "tl.load(min_p + row)) / factor)",
        "tl.load(min_p + row)))",
        "probabilities_kernel",
        "min-p",
    ),
    Mistake("one position", "random_kernel", "zero + position.to(tl.int32)", "zero", "sample_kernel", "temperatures"),
    Mistake("one stream", "random_kernel", "zero + STREAM", "zero", "reject_kernel", "many-drafts"),
    Mistake("log of the rest", "random_kernel", "(u * tl.where(", "(1.0 * tl.where(", "sample_kernel", "parts"),
    Mistake(
        "third strip twice",
        "sample_kernel",
        "counters + num_counters * 3, _NO",
        "counters + num_counters * 2, _NO",
        "sample_kernel",
        "parts",
    ),
    Mistake("parts alike", "sample_kernel", "other=-1.0) * share", "other=-1.0)", "sample_kernel", "parts"),
    Mistake(
        "last of equals",
        "sample_kernel",
        "tl.store(winners + at, tl.min(first, 0))",
        "tl.store(winners + at, tl.max(tl.where(first == _NO_TOKEN, 0, first), 0))",
        "sample_kernel",
        "greedy-beside-drawn",
    ),
    Mistake(
        "logprob when hot",
        "sample_kernel",
        "tl.exp2((part_peaks - base) * LOG2_E)",
        "tl.exp2((part_peaks - base) * factor)",
        "sample_kernel",
        "parts",
    ),
    Mistake(
        "equal left out",
        "probabilities_kernel",
        "x >= tl.load(floors",
        "x > tl.load(floors",
        "probabilities_kernel",
        "top-k-of-equal",
    ),
    Mistake(
        "cold as it came",
        "probabilities_kernel",
        "LOG2_E / tl.load(temperature + row)",
        "LOG2_E",
        "probabilities_kernel",
        "temperatures",
    ),
    Mistake(
        "another's proposal", "reject_kernel", "(final - sequence).to", "(final - start).to", "reject_kernel", "ragged"
    ),
    Mistake("accepts twice as much", "reject_kernel", "* q >= p)", "* q >= 2 * p)", "reject_kernel", "ragged"),
    Mistake("nothing taken off", "reject_kernel", "tl.maximum(p - q, 0.0)", "p", "reject_kernel", "ragged"),
    Mistake(
        "only some drafts",
        "reject_kernel",
        "final = tl.minimum(final, tl.min(",
        "final = tl.minimum(last, tl.min(",
        "reject_kernel",
        "many-drafts",
    ),
]
