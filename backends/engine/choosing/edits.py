"""What a request changes in the model's logits before they are drawn from.

In vLLM's order: grammar, min_tokens, logit_bias. Penalties, which come behind them, are `penalties.py`'s. Each sequence
pays for what its own request asks.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from backends.engine.choosing.grammar import Grammar, GrammarFactory
from backends.engine.errors import RequestRefused, SequenceRefused
from backends.engine.request import Request, SamplingParams
from backends.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class LogitRows:
    """The rows of one sequence in a step's logits: `first` follows its tokens, each further one another draft.

    `before` are drafts that have no rows of their own: they precede `first`.
    """

    sequence: Sequence
    first: int
    drafts: SequenceOf[int] = ()
    before: SequenceOf[int] = ()

    @property
    def end(self) -> int:
        """Behind its last row."""
        return self.first + 1 + len(self.drafts)


def edits_logits(params: SamplingParams) -> bool:
    """Whether the request changes logits here."""
    return bool(params.grammar is not None or params.min_tokens or params.logit_bias)


class LogitEditor:
    """Applies the edits of all sequences of a step, and keeps what they need from step to step."""

    def __init__(
        self,
        vocab_size: int,
        device: torch.device,
        grammars: GrammarFactory | None,
        eos_token_ids: Collection[int],
    ) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._grammars = grammars
        # Files name tokens that their model does not have.
        self._eos_token_ids = frozenset(token for token in eos_token_ids if token < vocab_size)
        self._matchers: dict[Sequence, Grammar] = {}
        # By request: of many answers each has the same ones.
        self._biases: dict[str, Tensor] = {}

    def apply(self, logits: Tensor, step: SequenceOf[LogitRows]) -> None:
        """Edits [rows, vocab] float32 in place; `step` are the sequences whose requests have edits.

        A row behind a draft is edited as if the drafts before it belonged to the text. Raises SequenceRefused where
        an answer is too much for its grammar.
        """
        constrained = [rows for rows in step if rows.sequence.request.params.grammar is not None]
        if constrained:
            self._constrain(logits, constrained)
        for rows in step:
            params = rows.sequence.request.params
            num_forbidden = params.min_tokens - rows.sequence.num_output - len(rows.before)
            if num_forbidden > 0:
                self._forbid_end(logits[rows.first : min(rows.first + num_forbidden, rows.end)], rows.sequence)
            if params.logit_bias:
                logits[rows.first : rows.end] += self._biases_of(rows.sequence.request)

    def forget(self, sequence: Sequence) -> None:
        """Drops what is kept of a sequence."""
        self._matchers.pop(sequence, None)
        # An answer that still goes on has them made once more.
        self._biases.pop(sequence.request.id, None)

    def _biases_of(self, request: Request) -> Tensor:
        """How much likelier the request makes each token, [vocab] float32."""
        biases = self._biases.get(request.id)
        if biases is None:
            given = request.params.logit_bias
            biases = torch.zeros(self._vocab_size)
            biases[list(given)] = torch.tensor(list(given.values()), dtype=torch.float32)
            biases = self._biases[request.id] = biases.to(self._device)
        return biases

    def _constrain(self, logits: Tensor, constrained: list[LogitRows]) -> None:
        masks = []
        where: list[int] = []
        for rows in constrained:
            try:
                found = self._matcher(rows.sequence).masks([*rows.before, *rows.drafts])[len(rows.before) :]
            except RequestRefused as error:
                raise SequenceRefused(rows.sequence, error) from error
            masks += found
            # A draft that the grammar refuses is rejected; what follows it is never looked at.
            where += range(rows.first, rows.first + len(found))
        if not masks:
            return
        packed = numpy.frombuffer(b"".join(masks), dtype=numpy.uint8).reshape(len(masks), -1)
        allowed = numpy.zeros((len(masks), self._vocab_size), dtype=numpy.bool_)
        known = numpy.unpackbits(packed, axis=1, bitorder="little", count=min(self._vocab_size, 8 * packed.shape[1]))
        allowed[:, : known.shape[1]] = known
        refused = torch.from_numpy(~allowed).to(self._device)
        if len(where) == len(logits):
            logits.masked_fill_(refused, float("-inf"))
        else:
            logits[where] = logits[where].masked_fill_(refused, float("-inf"))

    def _forbid_end(self, logits: Tensor, sequence: Sequence) -> None:
        forbidden = self._eos_token_ids.union(sequence.request.params.stop_token_ids)
        edited = logits.clone()
        edited[:, list(forbidden)] = float("-inf")
        # Where a grammar leaves nothing but the end, the end it is.
        logits.copy_(torch.where(edited.amax(dim=1, keepdim=True) > float("-inf"), edited, logits))

    def _matcher(self, sequence: Sequence) -> Grammar:
        grammar = self._matchers.get(sequence)
        if grammar is None:
            params = sequence.request.params
            assert self._grammars is not None, "requests with a grammar are refused where there is no factory"
            assert params.grammar is not None
            grammar = self._matchers[sequence] = self._grammars.start(params.grammar)
        grammar.advance(sequence.tokens[sequence.num_prompt + grammar.num_consumed :])
        return grammar
