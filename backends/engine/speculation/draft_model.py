"""Proposals of a draft model: a small decoder with the target's vocabulary, and a cache with the target's page numbers.

Since both caches share their page numbers, the scheduler's pages, prefix hits and preemptions hold for both. Keys and
values of the draft may be stale or missing: that costs acceptance, never correctness.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from backends.engine.choosing.sampling import Sampler
from backends.engine.kv.memory import KVCache
from backends.engine.model.decoder import Decoder
from backends.engine.sequence import Sequence, Slice
from backends.engine.step.flatten import Span, build_batch, build_steps
from backends.engine.step.plan import Transfers
from backends.engine.step.utilization import ComputeCounter


class DraftModel:
    """Runs the draft over what the target already knows, and some tokens further.

    `max_tokens` are caught up with in one step at most; `vocab_size` is the target's, to which the draft's logits are
    cut or filled up. `compute` counts its steps.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        sampler: Sampler,
        *,
        max_tokens: int,
        vocab_size: int,
        device: torch.device,
        compute: ComputeCounter | None = None,
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._sampler = sampler
        self.max_tokens = max_tokens
        self._missing = vocab_size - decoder.config.vocab_size
        self._device = device
        self._compute = compute

    @property
    def max_positions(self) -> int:
        """The longest text it can go on with."""
        return self._decoder.max_positions

    def transfer(self, transfers: Transfers) -> None:
        """Moves its pages along with the target's."""
        self._cache.transfer(transfers)

    def propose(
        self, slices: SequenceOf[Slice], lengths: SequenceOf[int], least: SequenceOf[float]
    ) -> dict[Sequence, Tensor]:
        """Fills `sequence.draft` with up to `lengths` tokens for each slice (at most its `num_draft`), where not 0.

        A greedy draft ends early where the draft model gives all of its tokens together less than `least`.
        Returns the distributions that drafts were drawn from, [tokens, vocab_size] for each sequence whose drafts are
        judged by them. A sequence that lags by more than can be caught up with in this step gets no draft. One that is
        not to draft is not caught up with: it costs no more later, and may never be asked.
        """
        spans: list[Span] = []
        rows: list[int] = []
        drafting: list[_Drafting] = []
        num_tokens = 0
        for part, length, sure in zip(slices, lengths, least, strict=True):
            sequence = part.sequence
            lag = draft_lag(part)
            start = len(sequence.tokens) - lag
            count = min(lag, self.max_tokens - num_tokens)
            if not length or not count or len(sequence.tokens) > self.max_positions:
                continue
            spans.append(Span(sequence.tokens[start : start + count], start, sequence.pages))
            num_tokens += count
            sequence.num_drafted = start + count
            if count == lag:
                rows.append(num_tokens - 1)
                drafting.append(_Drafting(sequence, length, sure))
        if not spans:
            return {}
        if self._compute is not None:
            self._compute.add(spans, len(rows))
        hidden = self._decoder.forward(build_batch(spans, rows, self._device), self._cache.layers)
        return self._extend(hidden, drafting) if drafting else {}

    def _extend(self, hidden: Tensor, drafting: list[_Drafting]) -> dict[Sequence, Tensor]:
        """The drafts that follow `hidden`, [sequences, hidden size]."""
        sequences = [one.sequence for one in drafting]
        # A place is kept for a token more than is fed, which takes the writes of sequences with shorter drafts.
        spans = [Span([0] * one.most, len(one.sequence.tokens), one.sequence.pages) for one in drafting]
        drawn = [self._draw(hidden, drafting, 0)]
        for depth, step in enumerate(build_steps(spans, max(one.most for one in drafting) - 1, self._device), start=1):
            if all(one.is_over for one in drafting):
                break
            if self._compute is not None:
                self._compute.add([Span([0], span.start + depth - 1, span.pages) for span in spans], len(spans))
            hidden = self._decoder.forward(step.batch(drawn[-1][0]), self._cache.layers)
            drawn.append(self._draw(hidden, drafting, depth))
        tokens = torch.stack([tokens for tokens, _ in drawn], dim=1).tolist()
        for one, draft in zip(drafting, tokens, strict=True):
            one.sequence.draft = draft[: one.length]
            one.sequence.num_drafted += one.length - 1
        probs = [probs for _, probs in drawn if probs is not None]
        if not probs:
            return {}
        stacked = torch.stack(probs, dim=1)
        return {
            sequence: stacked[index, : drafting[index].length]
            for index, sequence in enumerate(sequences)
            if self._sampler.is_judged(sequence)
        }

    def _draw(self, hidden: Tensor, drafting: list[_Drafting], depth: int) -> tuple[Tensor, Tensor | None]:
        """The next token of each draft, [sequences], and what it was drawn from, if anybody asks."""
        logits = self._logits(hidden)
        shares = [1.0] * len(drafting)
        if any(one.least and one.is_greedy for one in drafting):
            shares = logits.softmax(1).amax(1).tolist()
        for one, share in zip(drafting, shares, strict=True):
            one.grow(share)
        return self._sampler.draft(logits, [one.sequence for one in drafting], depth)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self._decoder.logits(hidden)
        if self._missing > 0:
            return functional.pad(logits, (0, self._missing), value=float("-inf"))
        return logits[:, : self._missing] if self._missing else logits


@dataclass(slots=True)
class _Drafting:
    """A draft in the making: `length` tokens so far of `most`, which the model gives the probability `certainty`."""

    sequence: Sequence
    most: int
    least: float
    length: int = 0
    certainty: float = 1.0

    @property
    def is_greedy(self) -> bool:
        """Whether its tokens are the likeliest; one that is drawn may be unlikely and yet be accepted."""
        return self.sequence.request.params.temperature == 0

    @property
    def is_over(self) -> bool:
        """Whether no token is to follow."""
        return self.length == self.most or (self.certainty < self.least and self.is_greedy)

    def grow(self, share: float) -> None:
        """Takes a token of probability `share`, if one is to follow."""
        if not self.is_over:
            self.length += 1
            self.certainty *= share


def draft_lag(part: Slice) -> int:
    """How many tokens of its sequence the draft model may lack keys and values of."""
    sequence = part.sequence
    # What came from the prefix cache, the draft most likely has as well.
    return len(sequence.tokens) - min(sequence.num_drafted or sequence.num_cached, part.start)
