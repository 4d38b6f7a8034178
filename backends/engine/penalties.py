"""How often each token stands in each answer, and whether it stands in its prompt: what penalties go by."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from backends.engine.sequence import Sequence


class PenaltyCounts:
    """One row of counts for each sequence that has penalties; rows are used again."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._counts = torch.zeros((0, vocab_size), device=device)
        self._in_prompt = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        self._slots: dict[Sequence, int] = {}
        self._num_counted: dict[Sequence, int] = {}
        self._free: list[int] = []

    def gather(self, wanted: SequenceOf[tuple[Sequence, SequenceOf[int], SequenceOf[int]]]) -> tuple[Tensor, Tensor]:
        """For each (sequence, drafts before, drafts): one row behind the drafts before, and one behind each further.

        Returns how often each token stands in the output (the drafts before a row included), [rows, vocab] float32,
        and whether it stands in the prompt, [rows, vocab] bool.
        """
        self._count([sequence for sequence, _, _ in wanted])
        slots: list[int] = []
        drafted: list[tuple[int, int]] = []
        for sequence, before, drafts in wanted:
            first = len(slots)
            slots += [self._slots[sequence]] * (1 + len(drafts))
            drafted += [(row, token) for row in range(first, len(slots)) for token in before]
            for index, token in enumerate(drafts):
                drafted += [(row, token) for row in range(first + index + 1, len(slots))]
        counts, in_prompt = self._counts[slots], self._in_prompt[slots]
        self._add(counts, drafted)
        return counts, in_prompt

    def forget(self, sequence: Sequence) -> None:
        """Gives the sequence's row back."""
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            del self._num_counted[sequence]
            self._free.append(slot)

    def _count(self, sequences: list[Sequence]) -> None:
        """Counts the tokens that are new since the last step."""
        new: list[tuple[int, int]] = []
        for sequence in sequences:
            if sequence not in self._slots:
                self._open(sequence)
            slot, num_counted = self._slots[sequence], self._num_counted[sequence]
            new += [(slot, token) for token in sequence.tokens[sequence.num_prompt + num_counted :]]
            self._num_counted[sequence] = sequence.num_output
        self._add(self._counts, new)

    def _open(self, sequence: Sequence) -> None:
        if not self._free:
            size = len(self._counts)
            self._free = list(range(size, max(2 * size, 8)))
            self._counts = _grown(self._counts, len(self._free))
            self._in_prompt = _grown(self._in_prompt, len(self._free))
        slot = self._slots[sequence] = self._free.pop()
        self._num_counted[sequence] = 0
        self._counts[slot] = 0.0
        self._in_prompt[slot] = False
        self._in_prompt[slot, torch.tensor(sequence.request.prompt, dtype=torch.int64)] = True

    @staticmethod
    def _add(counts: Tensor, places: list[tuple[int, int]]) -> None:
        if places:
            rows, tokens = torch.tensor(places, device=counts.device).unbind(1)
            counts.index_put_((rows, tokens), torch.ones((), device=counts.device), accumulate=True)


def _grown(rows: Tensor, count: int) -> Tensor:
    return torch.cat((rows, rows.new_zeros((count, rows.shape[1]))))
