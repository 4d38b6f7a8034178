"""What a request wants of its prompt's hidden states, gathered chunk by chunk: log-probabilities, or an embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from backends.engine.request import Request, TokenLogprob
from backends.engine.sequence import Sequence, Slice

_CHUNK_ROWS = 64
"""Rows of logits at once: a vocabulary of 256 k then takes 64 MiB."""


class PromptReader(Protocol):
    """Reads one prompt. Chunks may come again after a preemption; what was read already is left out."""

    def wanted(self, part: Slice) -> range:
        """The positions within the slice whose hidden states it wants."""

    def read(self, positions: range, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
        """Takes what it wanted, [positions, hidden size], as the final norm leaves it."""


def prompt_reader(sequence: Sequence) -> PromptReader | None:
    """The reader that the sequence's request asks for, once per request."""
    request = sequence.request
    if request.pooling is not None:
        return Pooling(request)
    if request.prompt_logprobs is not None and sequence.index == 0:
        return PromptLogprobs(request)
    return None


class PromptLogprobs:
    """Each prompt token's log-probability given what is before it, from `prompt_logprobs_from` on."""

    def __init__(self, request: Request) -> None:
        self._prompt = request.prompt
        self._num_top = request.prompt_logprobs or 0
        self._next = max(request.prompt_logprobs_from, 1)
        self._found: list[TokenLogprob | None] = [None] * self._next

    def wanted(self, part: Slice) -> range:
        """The positions before the tokens that are to be scored."""
        return range(max(part.start, self._next - 1), min(part.start + part.num_tokens, len(self._prompt) - 1))

    def read(self, positions: range, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
        """Scores the tokens behind `positions`."""
        for first in range(0, len(positions), _CHUNK_ROWS):
            chunk = positions[first : first + _CHUNK_ROWS]
            tokens = self._prompt[chunk.start + 1 : chunk.stop + 1]
            logprobs = torch.log_softmax(logits(hidden[first : first + len(chunk)]), dim=-1)
            chosen = logprobs.gather(1, torch.tensor(tokens, device=hidden.device).unsqueeze(1)).squeeze(1).tolist()
            values, ids = (tensor.tolist() for tensor in logprobs.topk(self._num_top, dim=-1))
            for row, token in enumerate(tokens):
                top = tuple(zip(ids[row], values[row], strict=True))
                self._found.append(TokenLogprob(token, chosen[row], top))
        self._next = max(self._next, positions.stop + 1)

    def result(self) -> tuple[TokenLogprob | None, ...]:
        """One entry a prompt token; None where it was not to be scored, as the first never is."""
        return tuple(self._found[: len(self._prompt)])


class Pooling:
    """One vector of length 1 for the whole prompt."""

    def __init__(self, request: Request) -> None:
        self._num_prompt = len(request.prompt)
        self._next = 0 if request.pooling == "mean" else self._num_prompt - 1
        self._sum: Tensor | None = None

    def wanted(self, part: Slice) -> range:
        """All positions for the mean, otherwise the last one."""
        return range(max(part.start, self._next), part.start + part.num_tokens)

    def read(self, positions: range, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
        """Adds the states up in float32."""
        del logits
        total = hidden.float().sum(0)
        self._sum = total if self._sum is None else self._sum + total
        self._next = max(self._next, positions.stop)

    def result(self) -> tuple[float, ...]:
        """The embedding. The mean points where the sum does."""
        assert self._sum is not None, "the whole prompt was read"
        return tuple(torch.nn.functional.normalize(self._sum, dim=0).tolist())
