"""How often each token stands in each answer, and whether it stands in its prompt: what penalties go by.

They are taken off where tokens are drawn, by `kernels/choice/sample.py`, behind all edits of `edits.py`.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from backends.engine.choosing.edits import LogitRows
from backends.engine.request import SamplingParams
from backends.engine.sequence import Sequence
from kernels.choice.penalties import Penalties

_NO_TEXT = -1
_NOTHING = (1.0, 0.0, 0.0)


def has_penalty(params: SamplingParams) -> bool:
    """Whether the request's answers pay for tokens that they repeat."""
    return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0)


class PenaltyCounts:
    """One row of counts for each sequence that has penalties; rows are used again."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._device = device
        self._seen = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self._slots: dict[Sequence, int] = {}
        self._num_counted: dict[Sequence, int] = {}
        self._free: list[int] = []

    def penalties(self, step: SequenceOf[LogitRows]) -> Penalties:
        """What the rows of a step pay; one behind drafts pays as if they belonged to its text."""
        paying = {rows.sequence for rows in step if has_penalty(rows.sequence.request.params)}
        self._count(paying)
        slots: list[int] = []
        texts: list[int] = []
        drafted: list[tuple[int, int]] = []
        values: tuple[list[float], ...] = ([], [], [])
        for rows in step:
            count, text = 1 + len(rows.drafts), len(slots)
            if rows.sequence in paying:
                params = rows.sequence.request.params
                slots += [self._slots[rows.sequence]] * count
                texts += range(text, text + count)
                own = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
                for index, token in enumerate((*rows.before, *rows.drafts), start=1 - len(rows.before)):
                    drafted += [(behind, token) for behind in range(text + max(index, 0), text + count)]
            else:
                texts += [_NO_TEXT] * count
                own = _NOTHING
            for column, value in zip(values, own, strict=True):
                column += [value] * count
        seen = self._seen
        if drafted:
            seen = seen[slots]
            self._add(seen, drafted)
        else:
            texts = [text if text == _NO_TEXT else slots[text] for text in texts]
        repetition, frequency, presence = torch.tensor(values, device=self._device).unbind(0)
        return Penalties(seen, torch.tensor(texts, device=self._device), repetition, frequency, presence)

    def forget(self, sequence: Sequence) -> None:
        """Gives the sequence's row back."""
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            del self._num_counted[sequence]
            self._free.append(slot)

    def _count(self, sequences: set[Sequence]) -> None:
        """Counts the tokens that are new since the last step."""
        new: list[tuple[int, int]] = []
        for sequence in sequences:
            if sequence not in self._slots:
                self._open(sequence)
            slot, num_counted = self._slots[sequence], self._num_counted[sequence]
            new += [(slot, token) for token in sequence.tokens[sequence.num_prompt + num_counted :]]
            self._num_counted[sequence] = sequence.num_output
        self._add(self._seen, new)

    def _open(self, sequence: Sequence) -> None:
        if not self._free:
            size = len(self._seen)
            self._free = list(range(size, max(2 * size, 8)))
            self._seen = torch.cat((self._seen, self._seen.new_zeros((len(self._free), self._seen.shape[1]))))
        slot = self._slots[sequence] = self._free.pop()
        self._num_counted[sequence] = 0
        self._seen[slot] = 0
        self._seen[slot, torch.tensor(sequence.request.prompt, dtype=torch.int64)] = 1

    @staticmethod
    def _add(seen: Tensor, places: list[tuple[int, int]]) -> None:
        if places:
            rows, tokens = torch.tensor(places, device=seen.device).unbind(1)
            seen.index_put_((rows, tokens), torch.full((), 2, dtype=seen.dtype, device=seen.device), accumulate=True)
