"""AnswerPairs as the heads read them, and batches of them: everything that is computed once before training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from policies.cache.semantic.sameness.alignment import (
    APART,
    BONDS,
    FLAGS,
    EncodedPart,
    Meeting,
    TokenizedAnswer,
    TokenVocabulary,
    join,
    meet,
)
from policies.cache.semantic.sameness.parts import AnswerParts, parts_of, texts_of
from policies.cache.semantic.sameness.training.pairs import AnswerPair
from policies.cache.semantic.sameness.words import word_features

_PAIRS_A_BATCH = 240
_TOKENS_A_BATCH = 8_000
_PARTS_A_BATCH = 64

Encode = Callable[[Sequence[str]], list[EncodedPart]]


class WordedPair(NamedTuple):
    """An example in its parts, and what its words tell (`word_features`)."""

    left: AnswerParts
    right: AnswerParts
    words: NDArray[np.float32]
    example: AnswerPair


class ReadPair(NamedTuple):
    """An example, read token by token: `meeting` without its axis of pairs, `words` as `word_features`."""

    one: TokenizedAnswer
    other: TokenizedAnswer
    meeting: Meeting
    words: NDArray[np.float32]
    example: AnswerPair

    @property
    def num_tokens(self) -> int:
        """Of both."""
        return len(self.one.ids) + len(self.other.ids)


def encode_parts(
    sets: Iterable[Sequence[AnswerPair]], others: Sequence[str], encode: Encode, note: Callable[[str], None]
) -> dict[str, EncodedPart]:
    """Every part of every answer by its text, in batches of like length, and other parts."""
    pairs = [pair for one in sets for pair in one]
    texts = {part for pair in pairs for side in (pair.left, pair.right) for part in texts_of(side)} | set(others)
    ordered = sorted(texts, key=len)
    encoded: dict[str, EncodedPart] = {}
    for start in range(0, len(ordered), _PARTS_A_BATCH):
        batch = ordered[start : start + _PARTS_A_BATCH]
        for text, part in zip(batch, encode(batch), strict=True):
            encoded[text] = part._replace(vectors=part.vectors.astype(np.float16))
        if start % (50 * _PARTS_A_BATCH) == 0:
            note(f"encoded {start} of {len(ordered)} parts")
    return encoded


def worded(examples: Sequence[AnswerPair]) -> list[WordedPair]:
    """Those that can be read."""
    texts = dict.fromkeys(text for example in examples for text in (example.left, example.right))
    parts = {text: parts_of(text) for text in texts}
    pairs = []
    for example in examples:
        left, right = parts[example.left], parts[example.right]
        if left is not None and right is not None:
            pairs.append(WordedPair(left, right, word_features(left.texts, right.texts), example))
    return pairs


def read(pair: WordedPair, encoded: dict[str, EncodedPart], vocabulary: TokenVocabulary) -> ReadPair:
    """With its tokens."""
    one, other = (join([encoded[part] for part in side.texts]) for side in (pair.left, pair.right))
    return ReadPair(one, other, Meeting(*(of[0] for of in meet([(one, other)], vocabulary))), pair.words, pair.example)


def in_batches(lengths: Sequence[int], counts: Sequence[int], random: Random) -> list[list[int]]:
    """Positions of families of like length, in random order. `lengths`: tokens of a family's longest pair; `counts`:
    its pairs.
    """
    order = sorted(range(len(lengths)), key=lambda at: lengths[at] + 8 * random.random())
    batches: list[list[int]] = [[]]
    num_pairs = longest = 0
    for at in order:
        num_pairs, longest = num_pairs + counts[at], max(longest, lengths[at])
        if num_pairs > _PAIRS_A_BATCH or longest * num_pairs > _TOKENS_A_BATCH:
            batches.append([])
            num_pairs, longest = counts[at], lengths[at]
        batches[-1].append(at)
    random.shuffle(batches)
    return [batch for batch in batches if batch]


def tensors(samples: Sequence[ReadPair], words: NDArray[np.float32]) -> tuple[Tensor, ...]:
    """What `Network.forward` takes, padded; `words` [samples, features] are standardized."""
    count = len(samples)
    width = max(len(sample.one.ids) for sample in samples)
    height = max(len(sample.other.ids) for sample in samples)
    dimension = samples[0].one.vectors.shape[1]
    one, other = (np.zeros((count, size, dimension), np.float32) for size in (width, height))
    flags, back = (np.zeros((count, size, len(FLAGS)), np.float32) for size in (width, height))
    mask, other_mask = (np.zeros((count, size), np.float32) for size in (width, height))
    bonds = np.zeros((count, width, height, len(BONDS)), np.float32)
    bonds[..., -1] = APART
    for at, sample in enumerate(samples):
        rows, columns = len(sample.one.ids), len(sample.other.ids)
        one[at, :rows], other[at, :columns] = sample.one.vectors, sample.other.vectors
        flags[at, :rows], back[at, :columns] = sample.meeting.flags, sample.meeting.other_flags
        mask[at, :rows], other_mask[at, :columns] = 1, 1
        bonds[at, :rows, :columns] = sample.meeting.bonds
    arrays = (one, other, flags, back, bonds, mask, other_mask, words.astype(np.float32))
    return tuple(torch.from_numpy(array) for array in arrays)
