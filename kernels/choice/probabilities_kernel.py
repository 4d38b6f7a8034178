"""The distributions that tokens are drawn from, written out: what rejection sampling compares.

Torch twin: `probabilities_reference` in `sample.py`; here a row that is masked altogether has no probability anywhere.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

import torch
from torch import Tensor

from kernels.choice.cases import probabilities_cases, probabilities_cost
from kernels.choice.checks import check_sampling
from kernels.choice.cutoff_kernel import LOG2_E, prepare_cutoffs
from kernels.choice.exactness import probabilities_complaint
from kernels.choice.penalties_kernel import prepare_penalised
from kernels.choice.sample import SampleRows, probabilities_reference
from kernels.jit import Launch, jit, launched, tl
from kernels.operation import Op
from kernels.tuning import PROBABILITIES, PROBABILITIES_BLOCK


def prepare_probabilities(logits: Tensor, rows: SampleRows) -> tuple[Tensor, list[Launch]]:
    """Where the result of `probabilities` will be, and what has to run for it. Raises KernelInputError."""
    check_sampling(logits, rows)
    num_rows, vocab_size = logits.shape
    out = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    if not num_rows:
        return out, []
    logits, launches = prepare_penalised(logits, rows.penalties)
    cutoffs, launch = prepare_cutoffs(logits, rows)
    arguments: dict[str, object] = {
        "logits": logits,
        "temperature": rows.temperature,
        "is_greedy": rows.is_greedy,
        "cutoffs": cutoffs.cutoff,
        "peaks": cutoffs.peak,
        "totals": cutoffs.total,
        "likeliest": cutoffs.likeliest,
        "out": out,
        "row_stride": logits.stride(0),
        "vocab_size": vocab_size,
        "BLOCK": PROBABILITIES_BLOCK,
    }
    grid = (num_rows, -(-vocab_size // PROBABILITIES_BLOCK))
    return out, [*launches, launch, Launch(_probabilities_kernel, grid, arguments, PROBABILITIES)]


probabilities = launched(prepare_probabilities)
"""As `probabilities_reference`, of [rows, vocab] float32 with packed rows; contiguous. Raises KernelInputError."""


@jit(varying=("temperature", "is_greedy"))
def _probabilities_kernel(
    logits: tl.tensor,
    temperature: tl.tensor,
    is_greedy: tl.tensor,
    cutoffs: tl.tensor,
    peaks: tl.tensor,
    totals: tl.tensor,
    likeliest: tl.tensor,
    out: tl.tensor,
    row_stride: int,
    vocab_size: int,
    BLOCK: tl.constexpr,
) -> None:
    """Program (row, block): weights of what stays, over their sum."""
    row = tl.program_id(0)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_token = tokens < vocab_size
    x = tl.load(logits + row.to(tl.int64) * row_stride + tokens, mask=is_token, other=float("-inf"))
    peak = tl.load(peaks + row)
    total = tl.load(totals + row)
    weight = tl.exp2((x - tl.where(peak == float("-inf"), 0.0, peak)) * (LOG2_E / tl.load(temperature + row)))
    probs = tl.where(x >= tl.load(cutoffs + row), weight / tl.where(total == 0.0, 1.0, total), 0.0)
    if is_greedy is not None:
        is_likeliest = (tokens == tl.load(likeliest + row)).to(tl.float32)
        probs = tl.where(tl.load(is_greedy + row) != 0, is_likeliest, probs)
    tl.store(out + row.to(tl.int64) * vocab_size + tokens, probs, mask=is_token)


OP = Op(
    name="probabilities",
    launch=probabilities,
    prepare=prepare_probabilities,
    reference=probabilities_reference,
    cases=probabilities_cases,
    cost=probabilities_cost,
    complaint=probabilities_complaint,
)
