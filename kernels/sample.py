"""Tokens from logits: temperature, min-p, top-k, top-p, then one draw by exponential race.

The race (argmax of p / E with E exponential) is Gumbel-argmax without the logarithm of p; its noise is a function of
(seed, position, stream, token), so a row's token depends neither on its slot nor on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.random import negated_exponentials_at_reference, negated_exponentials_reference

_FIRST_WIDTH = 64
"""Candidates that top-p looks at first; most distributions have their mass there."""


@dataclass(frozen=True, slots=True)
class SampleRows:
    """How each row is drawn; all tensors [rows] on the device of the logits. A filter that no row uses is None.

    seeds, positions  int64, what the noise is a function of; a position is that of the token that is drawn
    temperature       float32; 0 takes the likeliest token
    top_k             int64, 1..vocab, where the row has none: vocab
    top_p, min_p      float32, where the row has none: 1 and 0
    """

    seeds: Tensor
    positions: Tensor
    temperature: Tensor
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether some row leaves tokens out."""
        return self.top_k is not None or self.top_p is not None or self.min_p is not None


def sample_reference(logits: Tensor, rows: SampleRows, stream: int) -> Tensor:
    """One token a row, [rows] int64, drawn from `probabilities_reference` of [rows, vocab] float32 logits."""
    return draw_reference(
        probabilities_reference(logits, rows), rows.seeds, rows.positions, stream, is_sparse=rows.is_filtered
    )


def probabilities_reference(logits: Tensor, rows: SampleRows) -> Tensor:
    """The distributions that tokens are drawn from, [rows, vocab] float32; one-hot where the temperature is 0.

    Filters are thresholds, in this order: temperature, min-p (of the likeliest token's probability), top-k, and top-p
    of what these two have left. Entries that are equal to the last one kept stay too.
    """
    is_greedy = rows.temperature == 0
    scaled = logits / torch.where(is_greedy, 1.0, rows.temperature).unsqueeze(1)
    if rows.is_filtered:
        scaled.masked_fill_(scaled < _thresholds(scaled, rows), float("-inf"))
    probs = scaled.softmax(dim=1)
    if is_greedy.any():
        likeliest = torch.zeros_like(probs).scatter_(1, logits.argmax(dim=1, keepdim=True), 1.0)
        probs = torch.where(is_greedy.unsqueeze(1), likeliest, probs)
    return probs


def draw_reference(
    weights: Tensor, seeds: Tensor, positions: Tensor, stream: int, *, is_sparse: bool = False
) -> Tensor:
    """One index a row, [rows] int64, with probability in proportion to `weights` [rows, vocab], not all zero.

    `is_sparse`: most weights are expected to be zero, so noise is made only for those that are not.
    """
    if is_sparse:
        rows, entries = weights.nonzero(as_tuple=True)
        # A whole row's noise takes a counter for four entries, a single entry's takes one of its own.
        if 4 * len(rows) <= weights.numel():
            noise = negated_exponentials_at_reference(seeds[rows], positions[rows], stream, weights.shape[1], entries)
            scores = torch.zeros_like(weights)
            scores[rows, entries] = weights[rows, entries] / noise
            return scores.argmin(dim=1)
    return (weights / negated_exponentials_reference(seeds, positions, stream, weights.shape[1])).argmin(dim=1)


def _thresholds(scaled: Tensor, rows: SampleRows) -> Tensor:
    """The smallest value that stays in each row of `scaled`, [rows, 1]."""
    vocab_size = scaled.shape[1]
    width = 1
    if rows.top_k is not None:
        # A row without top-k asks for the whole vocabulary, which needs no looking.
        width = int(torch.where(rows.top_k < vocab_size, rows.top_k, 1).max())
    if rows.top_p is not None:
        width = max(width, min(_FIRST_WIDTH, vocab_size))
    top = scaled.topk(width, dim=1).values
    floors = _floors(top, rows, vocab_size)
    if rows.top_p is None:
        return floors
    highest, top_p = top[:, :1], rows.top_p.unsqueeze(1)
    wanted = (scaled - highest).exp_().mul_(scaled >= floors).sum(dim=1, keepdim=True) * top_p
    while True:
        reached = (top - highest).exp_().mul_(top >= floors).cumsum(dim=1)
        if width == vocab_size or bool(((reached[:, -1:] >= wanted) | (top_p >= 1)).all()):
            # The last entry that stays is the first with which enough is reached.
            last = (reached < wanted).sum(dim=1, keepdim=True).clamp_(max=width - 1)
            return torch.where(top_p < 1, floors.maximum(top.gather(1, last)), floors)
        width = min(8 * width, vocab_size)
        top = scaled.topk(width, dim=1).values


def _floors(top: Tensor, rows: SampleRows, vocab_size: int) -> Tensor:
    """The smallest values that min-p and top-k leave, [rows, 1], from each row's highest ones in order."""
    floors = torch.full_like(top[:, :1], float("-inf"))
    if rows.min_p is not None:
        floors = top[:, :1] + rows.min_p.log().unsqueeze(1)
    if rows.top_k is not None:
        top_k = rows.top_k.unsqueeze(1)
        kth = top.gather(1, top_k.clamp(max=top.shape[1]) - 1)
        floors = torch.where(top_k < vocab_size, floors.maximum(kth), floors)
    return floors
