"""Mistakes planted in the kernels that choose tokens: see `tests/kernels/apart/check_mutations.py`."""

from __future__ import annotations

from tests.support.mistakes.mistake import Mistake

MISTAKES = [
    Mistake(
        "one more stays",
        "choice/cutoff_kernel",
        "count.to(tl.float32) >= w",
        "count.to(tl.float32) > w",
        "probabilities",
        "top-k",
    ),
    Mistake("no cut by weight", "choice/cutoff_kernel", "(share < 1.0)", "(share < 0.0)", "probabilities", "top-p"),
    Mistake(
        "share of all",
        "choice/cutoff_kernel",
        "tl.maximum(share * left,",
        "tl.maximum(share * whole,",
        "probabilities",
        "all-filters",
    ),
    Mistake(
        "reach of one more",
        "choice/cutoff_kernel",
        "(tl.max(fourth, 0))",
        "(tl.min(fourth, 0))",
        "probabilities",
        "top-p-of-flat",
    ),
    Mistake(
        "reach of equals",
        "choice/cutoff_kernel",
        ".to(tl.int64) + 1\n    chosen",
        ".to(tl.int64)\n    chosen",
        "probabilities",
        "all-equal",
    ),
    Mistake("sum not faded", "choice/cutoff_kernel", "total * fade + 1.0", "total + 1.0", "probabilities", "parts"),
    Mistake(
        "negative order", "choice/cutoff_kernel", "bits ^ ((bits >> 31) & _MAGNITUDE)", "bits", "probabilities", "top-p"
    ),
    Mistake(
        "min-p of hot rows",
        "choice/cutoff_kernel",
        "tl.load(min_p + row)) / factor)",
        "tl.load(min_p + row)))",
        "probabilities",
        "min-p",
    ),
    Mistake("one position", "choice/random_kernel", "zero + position.to(tl.int32)", "zero", "sample", "temperatures"),
    Mistake("one stream", "choice/random_kernel", "zero + STREAM", "zero", "reject", "many-drafts"),
    Mistake("log of the rest", "choice/random_kernel", "(u * tl.where(", "(1.0 * tl.where(", "sample", "parts"),
    Mistake(
        "third strip twice",
        "choice/sample_kernel",
        "counters + num_counters * 3, _NO",
        "counters + num_counters * 2, _NO",
        "sample",
        "parts",
    ),
    Mistake("parts alike", "choice/sample_kernel", "other=-1.0) * share", "other=-1.0)", "sample", "parts"),
    Mistake(
        "last of equals",
        "choice/sample_kernel",
        "tl.store(winners + at, tl.min(first, 0))",
        "tl.store(winners + at, tl.max(tl.where(first == _NO_TOKEN, 0, first), 0))",
        "sample",
        "greedy-beside-drawn",
    ),
    Mistake(
        "logprob when hot",
        "choice/sample_kernel",
        "tl.exp2((part_peaks - base) * LOG2_E)",
        "tl.exp2((part_peaks - base) * factor)",
        "sample",
        "parts",
    ),
    Mistake(
        "logprob of penalised",
        "choice/sample_kernel",
        "r0 = _strip(said,",
        "r0 = _strip(logits,",
        "sample",
        "penalties-of-greedy",
    ),
    Mistake(
        "prompt for nothing", "choice/penalties_kernel", "(marks > 0,", "(counts > 0,", "probabilities", "penalties"
    ),
    Mistake(
        "frequency of marks",
        "choice/penalties_kernel",
        "counts.to(tl.float32)",
        "marks.to(tl.float32)",
        "probabilities",
        "penalties",
    ),
    Mistake(
        "text of another",
        "choice/penalties_kernel",
        "text * vocab_size",
        "0 * vocab_size",
        "probabilities",
        "penalties-and-filters",
    ),
    Mistake(
        "equal left out",
        "choice/probabilities_kernel",
        "x >= tl.load(cutoffs",
        "x > tl.load(cutoffs",
        "probabilities",
        "top-k-of-equal",
    ),
    Mistake(
        "cold as it came",
        "choice/probabilities_kernel",
        "LOG2_E / tl.load(temperature + row)",
        "LOG2_E",
        "probabilities",
        "temperatures",
    ),
    Mistake(
        "another's proposal", "choice/reject_kernel", "(final - sequence).to", "(final - start).to", "reject", "ragged"
    ),
    Mistake("accepts twice as much", "choice/reject_kernel", "* q >= p)", "* q >= 2 * p)", "reject", "ragged"),
    Mistake("nothing taken off", "choice/reject_kernel", "tl.maximum(p - q, 0.0)", "p", "reject", "ragged"),
    Mistake(
        "only some drafts",
        "choice/reject_kernel",
        "final = tl.minimum(final, tl.min(",
        "final = tl.minimum(last, tl.min(",
        "reject",
        "many-drafts",
    ),
]
