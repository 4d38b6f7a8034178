"""Tokens from logits: penalties, temperature, min-p, top-k, top-p, then one draw by exponential race.

The race (argmax of p / E with E exponential) is Gumbel-argmax without the logarithm of p; its noise is a function of
(seed, position, stream, token), so a row's token depends neither on its slot nor on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.choice.penalties import Penalties, penalised_reference
from kernels.choice.random import negated_exponentials_at_reference, negated_exponentials_reference

_FIRST_WIDTH = 64
"""Candidates that top-p looks at first; most distributions have their mass there."""


@dataclass(frozen=True, slots=True)
class SampleRows:
    """How each row is drawn; all tensors [rows] on the device of the logits. A filter that no row uses is None.

    seeds, positions  int64, what the noise is a function of; a position is that of the token that is drawn
    temperature       float32, above 0
    top_k             int64, 1..vocab, where the row has none: vocab
    top_p, min_p      float32, where the row has none: 1 and 0
    is_greedy         bool, rows that take the likeliest token; None where no row does
    penalties         taken off before anything else; None where no row pays any
    """

    seeds: Tensor
    positions: Tensor
    temperature: Tensor
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    is_greedy: Tensor | None = None
    penalties: Penalties | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether some row leaves tokens out."""
        return self.top_k is not None or self.top_p is not None or self.min_p is not None


def likeliest_reference(logits: Tensor) -> Tensor:
    """The first of each row's largest entries, [rows] int64."""
    if logits.device.type == "cpu":
        # numpy takes a tenth of torch's time.
        return torch.from_numpy(logits.numpy().argmax(axis=1))
    return logits.argmax(dim=1)


def sample_reference(logits: Tensor, rows: SampleRows, stream: int) -> Tensor:
    """One token a row, [rows] int64, drawn in proportion to `weights_reference` of [rows, vocab] float32 logits."""
    if rows.is_greedy is not None and bool(rows.is_greedy.all()):
        return likeliest_reference(penalised_reference(logits, rows.penalties))
    weights = weights_reference(logits, rows)
    return draw_reference(weights, rows.seeds, rows.positions, stream, is_sparse=rows.is_filtered)


def sample_with_logprobs_reference(logits: Tensor, rows: SampleRows, stream: int) -> tuple[Tensor, Tensor]:
    """The tokens, and their log-probabilities [rows] by the logits alone: before penalties, temperature and filters."""
    tokens = sample_reference(logits, rows, stream)
    return tokens, logits.log_softmax(dim=1).gather(1, tokens.unsqueeze(1)).squeeze(1)


def sample_with_probs_reference(logits: Tensor, rows: SampleRows, stream: int) -> tuple[Tensor, Tensor]:
    """The tokens, and the distributions they were drawn from as `probabilities_reference` has them."""
    weights = weights_reference(logits, rows)
    tokens = draw_reference(weights, rows.seeds, rows.positions, stream, is_sparse=rows.is_filtered)
    return tokens, normalized_reference(weights)


def probabilities_reference(logits: Tensor, rows: SampleRows) -> Tensor:
    """The distributions that tokens are drawn from, [rows, vocab] float32; one-hot in greedy rows."""
    return normalized_reference(weights_reference(logits, rows))


def normalized_reference(weights: Tensor) -> Tensor:
    """Rows that sum up to 1."""
    return weights / weights.sum(dim=1, keepdim=True)


def weights_reference(logits: Tensor, rows: SampleRows) -> Tensor:
    """What tokens are drawn in proportion to, [rows, vocab] float32: probabilities, 0 for those that are left out.

    Penalties come first. Filters are thresholds, in this order: temperature, min-p (of the likeliest token's
    probability), top-k, and top-p of what these two have left. Entries that are equal to the last one kept stay too. In
    a greedy row only the likeliest token has any weight.
    """
    logits = penalised_reference(logits, rows.penalties)
    weights = (logits / rows.temperature.unsqueeze(1)).softmax(dim=1)
    if rows.is_filtered:
        weights.masked_fill_(weights < _thresholds(weights, rows), 0.0)
    if rows.is_greedy is not None:
        likeliest = torch.zeros_like(weights).scatter_(1, likeliest_reference(logits).unsqueeze(1), 1.0)
        weights = torch.where(rows.is_greedy.unsqueeze(1), likeliest, weights)
    return weights


def draw_reference(
    weights: Tensor, seeds: Tensor, positions: Tensor, stream: int, *, is_sparse: bool = False
) -> Tensor:
    """One index a row, [rows] int64, with probability in proportion to `weights` [rows, vocab], not all zero.

    `is_sparse`: most weights are expected to be zero, so on the host noise is made only for those that are not.
    """
    if weights.device.type != "cpu":
        return (weights / negated_exponentials_reference(seeds, positions, stream, weights.shape[1])).argmin(dim=1)
    table = weights.numpy()
    scores = None
    if is_sparse:
        places = numpy.flatnonzero(table)
        # A whole row's noise takes a counter for four entries, a single entry's takes one of its own.
        if 4 * len(places) <= table.size:
            rows, entries = (torch.from_numpy(index) for index in numpy.divmod(places, table.shape[1]))
            noise = negated_exponentials_at_reference(seeds[rows], positions[rows], stream, table.shape[1], entries)
            scores = numpy.zeros(table.size, dtype=numpy.float32)
            scores[places] = table.ravel()[places] / noise.numpy()
    if scores is None:
        scores = table / negated_exponentials_reference(seeds, positions, stream, table.shape[1]).numpy()
    return torch.from_numpy(scores.reshape(table.shape).argmin(axis=1))


def _thresholds(weights: Tensor, rows: SampleRows) -> Tensor:
    """The smallest of each row's probabilities that stays, [rows, 1].

    Worked out on the host from each row's highest ones, where a number costs a tenth of a torch call.
    """
    num_rows, vocab_size = weights.shape
    every = numpy.arange(num_rows)
    top_k, top_p, min_p = (_on_host(values) for values in (rows.top_k, rows.top_p, rows.min_p))
    width = 1 if top_p is None else min(_FIRST_WIDTH, vocab_size)
    if top_k is not None:
        # A row without top-k asks for the whole vocabulary, which needs no looking.
        has_top_k = top_k < vocab_size
        width = max(width, int((top_k * has_top_k).max()))
    while True:
        top = weights.topk(width, dim=1).values.cpu().numpy()
        cutoffs = numpy.zeros(num_rows, dtype=numpy.float32) if min_p is None else top[:, 0] * min_p
        if top_k is not None:
            kth = top[every, numpy.minimum(top_k, width) - 1]
            cutoffs = numpy.maximum(cutoffs, kth * has_top_k)
        if top_p is None:
            break
        reached = (top * (top >= cutoffs[:, None])).cumsum(axis=1)
        wanted = top_p * numpy.where(cutoffs > 0, _left(weights, cutoffs, top, reached), 1.0)
        if width == vocab_size or ((reached[:, -1] >= wanted) | (top_p >= 1)).all():
            # The last entry that stays is the first with which enough is reached.
            last = numpy.minimum((reached < wanted[:, None]).sum(axis=1), width - 1)
            cutoffs = numpy.where(top_p < 1, numpy.maximum(cutoffs, top[every, last]), cutoffs)
            break
        width = min(8 * width, vocab_size)
    return torch.from_numpy(cutoffs).to(weights.device).unsqueeze(1)


def _on_host(values: Tensor | None) -> NDArray[Any] | None:
    return None if values is None else values.cpu().numpy()


def _left(weights: Tensor, cutoffs: NDArray[Any], top: NDArray[Any], reached: NDArray[Any]) -> NDArray[Any]:
    """What all entries from `cutoffs` on come to, [rows]; most often they are all among the `top` ones."""
    left: NDArray[Any] = reached[:, -1]
    is_partial = (cutoffs <= top[:, -1]) & (cutoffs > 0)
    if top.shape[1] == weights.shape[1] or not is_partial.any():
        return left
    kept = weights >= torch.from_numpy(cutoffs).to(weights.device).unsqueeze(1)
    return numpy.where(is_partial, (weights * kept).sum(dim=1).cpu().numpy(), left)
