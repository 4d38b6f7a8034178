"""Training batches: conversations of like length side by side, with the answers marked."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from backends.engine.demo_models.generator import TASK_NAMES, held_out_conversation, training_conversation
from backends.engine.demo_models.tokenizer import encode

MAX_TOKENS = 448
"""Longer conversations are not trained on."""
_TOKENS_PER_CONVERSATION = 3
"""Positions of a batch for each conversation of a pool: 2,048 conversations where a batch has 6,144."""
_LENGTH_STEP = 16


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Inputs and, flattened, where answers are predicted and what they are.

    tokens: [B, T] int64, padded on the right; rows: [N] int64 into the flattened [B * T] positions;
    labels: [N] int64, the token after each of these positions; owner: [N] int64, the row of each.
    """

    tokens: Tensor
    rows: Tensor
    labels: Tensor
    owner: Tensor

    @property
    def num_tokens(self) -> int:
        """Positions computed, padding included."""
        return self.tokens.numel()

    def to(self, device: torch.device) -> "TrainingBatch":
        """The batch on a device."""
        return TrainingBatch(*(part.to(device) for part in (self.tokens, self.rows, self.labels, self.owner)))


def _padded_length(num_tokens: int) -> int:
    """Inputs a conversation takes: all tokens but its last, rounded up to the step."""
    return -(-(num_tokens - 1) // _LENGTH_STEP) * _LENGTH_STEP


def make_batch(examples: list[tuple[list[int], list[bool]]], pad: int) -> TrainingBatch:
    """Pads the examples (tokens, is-answer flags) to one length, a multiple of 16."""
    length = _padded_length(max(len(tokens) for tokens, _ in examples))
    inputs = torch.full((len(examples), length), pad)
    rows, labels, owner = [], [], []
    for index, (tokens, is_answer) in enumerate(examples):
        inputs[index, : len(tokens) - 1] = torch.tensor(tokens[:-1])
        for position in range(1, len(tokens)):
            if is_answer[position]:
                rows.append(index * length + position - 1)
                labels.append(tokens[position])
                owner.append(index)
    return TrainingBatch(inputs, torch.tensor(rows), torch.tensor(labels), torch.tensor(owner))


class TrainingStream:
    """Endless batches of at most `batch_tokens` positions, padding included; `level` may be raised between batches."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, seed: int, batch_tokens: int) -> None:
        self.level = 0.0
        self._tokenizer = tokenizer
        self._rng = Random(seed)
        self._batch_tokens = batch_tokens

    def __iter__(self) -> Iterator[TrainingBatch]:
        while True:
            pool: list[tuple[list[int], list[bool]]] = []
            while len(pool) < self._batch_tokens // _TOKENS_PER_CONVERSATION:
                example = encode(self._tokenizer, training_conversation(self._rng, self.level))
                if len(example[0]) <= MAX_TOKENS:
                    pool.append(example)
            # a little noise mixes the neighbours anew each time
            pool.sort(key=lambda example: len(example[0]) + self._rng.random())
            batches = list(self._cut(pool))
            self._rng.shuffle(batches)
            yield from batches

    def _cut(self, pool: list[tuple[list[int], list[bool]]]) -> Iterator[TrainingBatch]:
        pad = int(self._tokenizer.pad_token_id)
        start = 0
        while start < len(pool):
            end = start
            while end < len(pool) and (end - start + 1) * _padded_length(len(pool[end][0])) <= self._batch_tokens:
                end += 1
            yield make_batch(pool[start:end], pad)
            start = end


def held_out_batches(tokenizer: PreTrainedTokenizerFast, *, seed: int, per_task: int) -> dict[str, list[TrainingBatch]]:
    """`per_task` held-out conversations of each task, with nothing but the last answer marked."""
    rng = Random(seed)
    batches: dict[str, list[TrainingBatch]] = {}
    for task in TASK_NAMES:
        examples = []
        for _ in range(per_task):
            tokens, is_answer = encode(tokenizer, held_out_conversation(rng, task))
            first = max(i for i in range(len(tokens)) if is_answer[i] and not is_answer[i - 1])
            examples.append((tokens, [flag and i >= first for i, flag in enumerate(is_answer)]))
        examples.sort(key=lambda example: len(example[0]))
        pad = int(tokenizer.pad_token_id)
        batches[task] = [make_batch(examples[i : i + 16], pad) for i in range(0, len(examples), 16)]
    return batches
