"""What rows pay for tokens that stand in their text already: repetition, then frequency, then presence, as in vLLM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """What each of [rows, vocab] logits pays. Rows may have a text in common; one without a text pays nothing.

    seen        [texts, vocab] int32: twice how often each token stands in the answer, plus 1 if it does in the prompt
    texts       [rows] int64, which of `seen` is the row's, -1 for none
    repetition  [rows] float32, above 0: tokens of prompt and answer, divided by it above zero, times it below
    frequency   [rows] float32: off for each time in the answer
    presence    [rows] float32: off for being in the answer
    """

    seen: Tensor
    texts: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor


def penalised_reference(logits: Tensor, penalties: Penalties | None) -> Tensor:
    """The logits with penalties taken off; the same tensor where there are none, else a new one."""
    if penalties is None:
        return logits
    # On the host, where the few tokens of a text cost next to nothing beside the calls that find them.
    texts, seen, repetition, frequency, presence = (
        values.cpu().numpy()
        for values in (
            penalties.texts,
            penalties.seen,
            penalties.repetition,
            penalties.frequency,
            penalties.presence,
        )
    )
    table = logits.to("cpu", copy=True).numpy()
    paying = numpy.flatnonzero(texts >= 0)
    marks = seen[texts[paying]].ravel()
    places = numpy.flatnonzero(marks)
    index, tokens = numpy.divmod(places, table.shape[1])
    rows, counts = paying[index], marks[places] >> 1
    values, factors = table[rows, tokens], repetition[rows]
    values = numpy.where(values > 0, values / factors, values * factors)
    # float32 by int32 would be float64.
    counts = counts.astype(values.dtype)
    table[rows, tokens] = values - frequency[rows] * counts - presence[rows] * (counts > 0)
    return torch.from_numpy(table).to(logits.device)
