"""Logits with penalties taken off, written out for the kernels that draw from them: no operation of its own.

One more read and write of the logits, in batches where a row pays. It spares the kernels behind it, of which one goes
over a row up to 32 times a filter, a second table to read. Torch twin: `penalties.py`.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

from torch import Tensor

from kernels.choice.penalties import Penalties
from kernels.jit import Launch, jit, tl
from kernels.tuning import PENALTIES, PENALTIES_BLOCK


def prepare_penalised(logits: Tensor, penalties: Penalties | None) -> tuple[Tensor, list[Launch]]:
    """Where the logits to draw from are or will be, and what has to run for them. Arguments are checked before."""
    if penalties is None:
        return logits, []
    num_rows, vocab_size = logits.shape
    out = logits.new_empty(num_rows, vocab_size)
    arguments: dict[str, object] = {
        "logits": logits,
        "seen": penalties.seen,
        "texts": penalties.texts,
        "repetition": penalties.repetition,
        "frequency": penalties.frequency,
        "presence": penalties.presence,
        "out": out,
        "row_stride": logits.stride(0),
        "vocab_size": vocab_size,
        "BLOCK": PENALTIES_BLOCK,
    }
    grid = (num_rows, -(-vocab_size // PENALTIES_BLOCK))
    return out, [Launch(_penalties_kernel, grid, arguments, PENALTIES)]


@jit(varying=("texts", "repetition", "frequency", "presence"))
def _penalties_kernel(
    logits: tl.tensor,
    seen: tl.tensor,
    texts: tl.tensor,
    repetition: tl.tensor,
    frequency: tl.tensor,
    presence: tl.tensor,
    out: tl.tensor,
    row_stride: int,
    vocab_size: int,
    BLOCK: tl.constexpr,
) -> None:
    """Program (row, block): what the row pays in this block of tokens."""
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_token = tokens < vocab_size
    x = tl.load(logits + row * row_stride + tokens, mask=is_token, other=0.0)
    text = tl.load(texts + row)
    marks = tl.load(seen + text * vocab_size + tokens, mask=is_token & (text >= 0), other=0)
    counts = marks >> 1
    factor = tl.load(repetition + row)
    paid = tl.where(x > 0, x / factor, x * factor) - tl.load(frequency + row) * counts.to(tl.float32)
    paid -= tl.where(counts > 0, tl.load(presence + row), 0.0)
    tl.store(out + row * vocab_size + tokens, tl.where(marks > 0, paid, x), mask=is_token)
