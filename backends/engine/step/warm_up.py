"""Every kind of step once, before the first request: a kernel is compiled when it first meets a kind, for seconds.

For devices whose operations are compiled. What is computed is thrown away, and the cache stays as it is. Called when an
engine's parts are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

from backends.engine.choosing.sampling import Sampler
from backends.engine.kv.memory import KVCache
from backends.engine.kv.pages import pages_for
from backends.engine.model.decoder import Decoder
from backends.engine.request import Request, SamplingParams
from backends.engine.sequence import Sequence as EngineSequence
from backends.engine.sequence import Slice
from backends.engine.step.flatten import Span, build_batch
from kernels.tuning import MAX_QUERY, SHARED_POSITIONS, SPLIT


def warm_up_decoder(
    decoder: Decoder,
    cache: KVCache,
    device: torch.device,
    *,
    max_tokens: int,
    max_sequences: int,
    max_context: int,
) -> None:
    """Steps of up to `max_tokens`, of few queries a sequence and of many, near the text's beginning and further on."""
    for spans in _steps(max_tokens, max_sequences, max_context):
        num_tokens = sum(len(span.tokens) for span in spans)
        rows = range(min(num_tokens, max_sequences * MAX_QUERY))
        batch = build_batch(spans, rows, device)
        # Nothing is stored.
        batch.slots.fill_(-1)
        decoder.logits(decoder.forward(batch, cache.layers))


def warm_up_sampler(sampler: Sampler, vocab_size: int, device: torch.device, *, has_draft: bool) -> None:
    """Every combination of filters, penalties and log-probabilities, alone and beside a greedy row."""
    for top_k, top_p, min_p, penalty, logprobs in product((0, 2), (1.0, 0.5), (0.0, 0.5), (0.0, 1.0), (None, 0)):
        drawn = _sequence(top_k=top_k, top_p=top_p, min_p=min_p, presence_penalty=penalty, logprobs=logprobs)
        greedy = _sequence(temperature=0.0)
        for members in ([drawn], [drawn, greedy]):
            logits = torch.zeros(len(members), vocab_size, device=device)
            sampler.choose(logits.clone(), [_slice(member) for member in members])
            if has_draft:
                tokens, probs = sampler.draft(logits, members, 0)
                assert probs is not None
                drawn.draft = tokens[:1].tolist()
                sampler.choose(logits.new_zeros(2, vocab_size), [_slice(drawn)], {drawn: probs[:1]})
                drawn.draft = []
        sampler.forget(drawn)
        sampler.forget(greedy)


def _steps(max_tokens: int, max_sequences: int, max_context: int) -> Iterator[list[Span]]:
    """Kernels differ by powers of two of a step's tokens, by whether a text is longer than a split, and by queries."""
    for count in {1 << number for number in range(max_tokens.bit_length())} | {max_tokens}:
        longest = min(count, max_context)
        yield [_span(longest)] * (count // longest)
    queries = range(1, min(MAX_QUERY, max_context) + 1)
    starts = [0, SPLIT] if max_context >= SPLIT + MAX_QUERY else [0]
    for start, count in product(starts, queries):
        yield [_span(count, start)]
    if max_context > MAX_QUERY:
        for start in starts:
            # Answers beside a prompt.
            yield [_span(1, start), _span(MAX_QUERY + 1)]
    # As far as it takes for what all have in common to be read once.
    shared = -(-SHARED_POSITIONS // max(max_sequences - 1, 1) // SPLIT) * SPLIT
    if max_sequences > 1 and shared + MAX_QUERY <= max_context:
        for count in queries:
            yield [_span(count, shared)] * max_sequences


def _span(count: int, start: int = 0) -> Span:
    return Span([0] * count, start, [0] * pages_for(start + count))


def _sequence(**params: Any) -> EngineSequence:
    return EngineSequence(Request(id="", prompt=(0,), params=SamplingParams(**params)), 0, 0, [0], seed=0)


def _slice(sequence: EngineSequence) -> Slice:
    return Slice(sequence, 0, 1, len(sequence.draft), samples=True)
