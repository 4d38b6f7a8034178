"""Carries a plan out: from slices to flat tensors, through the model, to chosen tokens."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from backends.engine.choosing.sampling import Choice, Sampler
from backends.engine.kv.memory import KVCache
from backends.engine.model.decoder import Decoder
from backends.engine.request import TokenLogprob
from backends.engine.sequence import Sequence, Slice
from backends.engine.step.flatten import BatchBuilder, Span, build_batch
from backends.engine.step.graphs import DecodeGraphs
from backends.engine.step.plan import Transfers
from backends.engine.step.prompt_reader import Pooling, PromptLogprobs, PromptReader, prompt_reader
from backends.engine.step.utilization import ComputeCounter


def wants_answer(sequence: Sequence) -> bool:
    """Whether tokens are to be chosen for it; not where only its prompt is to be pooled or scored."""
    request = sequence.request
    return request.pooling is None and request.params.max_tokens != 0


class Runner:
    """One target model with its cache and sampler. `graphs`: captured decode steps, on CUDA. `compute` counts steps."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        sampler: Sampler,
        *,
        device: torch.device,
        graphs: DecodeGraphs | None = None,
        compute: ComputeCounter | None = None,
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._sampler = sampler
        self._device = device
        self._batches = BatchBuilder(device)
        self._graphs = graphs
        self._compute = compute
        self._readers: dict[Sequence, PromptReader] = {}

    def transfer(self, transfers: Transfers) -> None:
        """Moves pages before a step."""
        self._cache.transfer(transfers)

    def run(
        self, slices: SequenceOf[Slice], draft_probs: Mapping[Sequence, Tensor] | None = None
    ) -> list[Choice | None]:
        """Computes the slices with their sequences' drafts and chooses tokens.

        Returns for each slice what was chosen, None where it does not sample or no answer is wanted. `draft_probs` as
        the sampler takes them. Until it is committed, a slice may be run again.
        """
        if not slices:
            return []
        spans: list[Span] = []
        rows: list[int] = []
        sampling: list[Slice] = []
        reading: list[tuple[PromptReader, range, int]] = []
        num_tokens = 0
        for part in slices:
            sequence = part.sequence
            known_end = part.start + part.num_tokens
            spans.append(Span(sequence.tokens[part.start : known_end] + sequence.draft, part.start, sequence.pages))
            if part.samples and wants_answer(sequence):
                last = num_tokens + part.num_tokens - 1
                rows += range(last, last + 1 + len(sequence.draft))
                sampling.append(part)
            if not sequence.num_output:
                reader = self._reader(sequence)
                if reader is not None and (wanted := reader.wanted(part)):
                    reading.append((reader, wanted, num_tokens - part.start))
            num_tokens += part.num_tokens + len(sequence.draft)
        num_sampling = len(rows)
        for _, wanted, offset in reading:
            rows += range(wanted.start + offset, wanted.stop + offset)
        batch = self._batches.build(spans, rows)
        if self._compute is not None:
            self._compute.add(spans, num_sampling)
        if self._graphs is not None and not reading and self._graphs.can_run(batch):
            logits = self._graphs.run(batch)
        else:
            hidden = self._decoder.forward(batch, self._cache.layers)
            self._read(reading, hidden[num_sampling:])
            if not sampling:
                return [None] * len(slices)
            logits = self._decoder.logits(hidden[:num_sampling] if reading else hidden)
        choices = iter(self._sampler.choose(logits, sampling, draft_probs))
        return [next(choices) if part.samples and wants_answer(part.sequence) else None for part in slices]

    def probe(self) -> None:
        """Runs a step of nothing, which fails only where every step would."""
        batch = build_batch([Span([0], 0, [0])], [0], self._device)
        batch.slots.fill_(-1)
        self._decoder.forward(batch, self._cache.layers).float().sum().item()

    def prompt_logprobs(self, sequence: Sequence) -> tuple[TokenLogprob | None, ...] | None:
        """Those of the whole prompt, once it is computed; None where they were not asked for."""
        reader = self._readers.get(sequence)
        return reader.result() if isinstance(reader, PromptLogprobs) else None

    def embedding(self, sequence: Sequence) -> tuple[float, ...] | None:
        """That of the whole prompt, once it is computed; None where it was not asked for."""
        reader = self._readers.get(sequence)
        return reader.result() if isinstance(reader, Pooling) else None

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._readers.pop(sequence, None)
        self._sampler.forget(sequence)

    def _reader(self, sequence: Sequence) -> PromptReader | None:
        reader = self._readers.get(sequence)
        if reader is None and (reader := prompt_reader(sequence)) is not None:
            self._readers[sequence] = reader
        return reader

    def _read(self, reading: list[tuple[PromptReader, range, int]], hidden: Tensor) -> None:
        first = 0
        for reader, wanted, _ in reading:
            reader.read(wanted, hidden[first : first + len(wanted)], self._decoder.logits)
            first += len(wanted)
