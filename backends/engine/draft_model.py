"""Proposals of a draft model: a small decoder with the target's vocabulary, and a cache with the target's page numbers.

Since both caches share their page numbers, the scheduler's pages, prefix hits and preemptions hold for both. Keys and
values of the draft may be stale or missing: that costs acceptance, never correctness.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor
from torch.nn import functional

from backends.engine.decoder import Decoder
from backends.engine.flatten import Span, build_batch, build_steps
from backends.engine.kv_cache import KVCache
from backends.engine.plan import Transfers
from backends.engine.sampling import Sampler
from backends.engine.sequence import Sequence, Slice
from backends.engine.utilization import WorkCounter
from kernels.paging import PAGE_SIZE


class DraftModel:
    """Runs the draft over what the target already knows, and some tokens further.

    `max_tokens` are caught up with in one step at most; `vocab_size` is the target's, to which the draft's logits are
    cut or filled up. `work` counts its steps.
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
        work: WorkCounter | None = None,
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._sampler = sampler
        self._max_tokens = max_tokens
        self._missing = vocab_size - decoder.config.vocab_size
        self._device = device
        self._work = work

    @property
    def max_positions(self) -> int:
        """The longest text it can go on with."""
        return self._decoder.max_positions

    def transfer(self, transfers: Transfers) -> None:
        """Moves its pages along with the target's."""
        self._cache.transfer(transfers)

    def propose(self, slices: SequenceOf[Slice], lengths: SequenceOf[int]) -> dict[Sequence, Tensor]:
        """Fills `sequence.draft` with `lengths` tokens for each slice (at most its `num_draft`), where not 0.

        Returns the distributions that drafts were drawn from, [tokens, vocab_size] for each sequence whose drafts are
        judged by them. A sequence that lags by more than can be caught up with in this
        step gets no draft. One that is not to draft is caught up with a page at a time.
        """
        spans: list[Span] = []
        rows: list[int] = []
        drafting: list[tuple[Sequence, int]] = []
        num_tokens = 0
        for part, length in zip(slices, lengths, strict=True):
            sequence = part.sequence
            # What came from the prefix cache, the draft most likely has as well.
            start = min(sequence.num_drafted or sequence.num_cached, part.start)
            lag = len(sequence.tokens) - start
            count = min(lag, self._max_tokens - num_tokens)
            is_too_long = len(sequence.tokens) > self.max_positions
            if is_too_long or not count or (not length and lag < PAGE_SIZE):
                continue
            spans.append(Span(sequence.tokens[start : start + count], start, sequence.pages))
            num_tokens += count
            sequence.num_drafted = start + count
            if length and count == lag:
                rows.append(num_tokens - 1)
                drafting.append((sequence, length))
        if not spans:
            return {}
        if self._work is not None:
            self._work.add(spans, len(rows))
        hidden = self._decoder.forward(build_batch(spans, rows, self._device), self._cache.layers)
        return self._extend(hidden, drafting) if drafting else {}

    def _extend(self, hidden: Tensor, drafting: list[tuple[Sequence, int]]) -> dict[Sequence, Tensor]:
        """The drafts that follow `hidden`, [sequences, hidden size]."""
        sequences = [sequence for sequence, _ in drafting]
        most = max(length for _, length in drafting)
        # A place is kept for a token more than is fed, which takes the writes of sequences with shorter drafts.
        spans = [Span([0] * length, len(sequence.tokens), sequence.pages) for sequence, length in drafting]
        drawn = [self._sampler.draft(self._logits(hidden), sequences, 0)]
        for depth, step in enumerate(build_steps(spans, most - 1, self._device) if most > 1 else (), start=1):
            if self._work is not None:
                self._work.add([Span([0], span.start + depth - 1, span.pages) for span in spans], len(spans))
            hidden = self._decoder.forward(step.batch(drawn[-1][0]), self._cache.layers)
            drawn.append(self._sampler.draft(self._logits(hidden), sequences, depth))
        tokens = torch.stack([tokens for tokens, _ in drawn], dim=1).tolist()
        for (sequence, length), draft in zip(drafting, tokens, strict=True):
            sequence.draft = draft[:length]
            sequence.num_drafted += length - 1
        probs = [probs for _, probs in drawn if probs is not None]
        if not probs:
            return {}
        stacked = torch.stack(probs, dim=1)
        return {
            sequence: stacked[index, :length]
            for index, (sequence, length) in enumerate(drafting)
            if self._sampler.is_judged(sequence)
        }

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self._decoder.logits(hidden)
        if self._missing > 0:
            return functional.pad(logits, (0, self._missing), value=float("-inf"))
        return logits[:, : self._missing] if self._missing else logits
