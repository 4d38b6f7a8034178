"""Two answers as the vectors of their tokens: which token of one has which partner in the other.

Late interaction (Khattab and Zaharia, ColBERT, SIGIR 2020), read for what differs instead of for a score.

Each part is encoded alone, so that what an answer says does not depend on what stands around it, and a part that comes
again is known. The mean vector of a part goes along as a token of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FLAGS = (
    "is_part",
    "best",
    "best_in_part",
    "same_word",
    "same_word_in_part",
    "same_word_cosine",
    "shift",
    "rarity",
    "is_number",
    "is_unknown",
    "part_cosine",
    "part_share",
)
"""What is known of each token, in order. `best`: cosine of its best partner, anywhere and in the part that is nearest
to its own; `same_word`: whether the other answer has the same one, there too, and the cosine of that; `shift`: how far
away from its place within the part, as a share of it; `rarity`: by its rank in the vocabulary, which is sorted by
frequency; `part_cosine`: of its part and the nearest; `part_share`: of its part's words in that one."""

BONDS = ("cosine", "part_cosine", "same_word", "apart")
"""Of a token and one of the other answer: cosine of both, and of their parts; whether they are the same; and `APART`
where one is a word and the other a part, which are no partners."""

APART = -1e9
_FIRST_WORD_ID, _LAST_WORD_ID = 1996, 30_521
"""Of whole words in the vocabulary of BERT's uncased models."""


class EncodedPart(NamedTuple):
    """`ids` [tokens] int32; `vectors` [tokens + 1, dimension] float32 of length 1, the last one the part's own."""

    ids: NDArray[np.int32]
    vectors: NDArray[np.float32]


class TokenVocabulary(NamedTuple):
    """Of a model's tokens: [vocabulary] each."""

    is_number: NDArray[np.bool_]
    rarity: NDArray[np.float32]
    unknown_id: int


class TokenizedAnswer(NamedTuple):
    """All parts, one after the other: `ids` (-1: a part's own vector), `vectors`, `part` and `place` (0..1) of each."""

    ids: NDArray[np.int32]
    vectors: NDArray[np.float32]
    part: NDArray[np.int32]
    place: NDArray[np.float32]


def vocabulary_of(words: Sequence[str], unknown: str) -> TokenVocabulary:
    """From a model's tokens in the order of their ids."""
    ids = np.arange(len(words))
    rank = np.clip(ids - _FIRST_WORD_ID, 0, _LAST_WORD_ID - _FIRST_WORD_ID) + 1
    rarity = np.log(rank) / np.log(_LAST_WORD_ID - _FIRST_WORD_ID + 1)
    is_number = np.array([word.removeprefix("##").isdecimal() for word in words])
    return TokenVocabulary(is_number, rarity.astype(np.float32), list(words).index(unknown))


def join(parts: Sequence[EncodedPart]) -> TokenizedAnswer:
    """Parts in a row."""
    ids = [np.append(part.ids, np.int32(-1)) for part in parts]
    return TokenizedAnswer(
        np.concatenate(ids),
        np.concatenate([part.vectors for part in parts]).astype(np.float32),
        np.repeat(np.arange(len(parts), dtype=np.int32), [len(each) for each in ids]),
        np.concatenate([np.linspace(0, 1, len(each), dtype=np.float32) for each in ids]),
    )


class Meeting(NamedTuple):
    """How the tokens of two answers stand to each other: `flags` [tokens of one, FLAGS], `other_flags`, and `bonds`
    [tokens of one, tokens of other, BONDS].
    """

    flags: NDArray[np.float32]
    other_flags: NDArray[np.float32]
    bonds: NDArray[np.float32]


def meet(one: TokenizedAnswer, other: TokenizedAnswer, words: TokenVocabulary) -> Meeting:
    """Of these two."""
    cosines = one.vectors @ other.vectors.T
    ones, others = one.ids < 0, other.ids < 0
    parts = cosines[np.ix_(ones, others)][one.part][:, other.part]
    is_same = (one.ids[:, None] == other.ids[None, :]) & ~ones[:, None]
    apart = np.where(ones[:, None] == others[None, :], 0.0, APART)
    bonds = np.stack((cosines, parts, is_same, apart), axis=2).astype(np.float32)
    return Meeting(_flags(one, other, cosines, words), _flags(other, one, cosines.T, words), bonds)


def _flags(
    one: TokenizedAnswer, other: TokenizedAnswer, cosines: NDArray[np.float32], words: TokenVocabulary
) -> NDArray[np.float32]:
    ones, others = np.flatnonzero(one.ids < 0), np.flatnonzero(other.ids < 0)
    parts = cosines[np.ix_(ones, others)]
    nearest = parts.argmax(axis=1)[one.part]
    is_near = other.part[None, :] == nearest[:, None]
    is_word, is_other_word = one.ids >= 0, other.ids >= 0
    is_same = (one.ids[:, None] == other.ids[None, :]) & is_word[:, None]
    has_same, has_same_near = is_same.any(axis=1), (is_same & is_near).any(axis=1)
    among_words = np.where(is_other_word[None, :] == is_word[:, None], cosines, -1.0)
    same_near = np.where(is_same & is_near, cosines, -1.0)
    partner = same_near.argmax(axis=1)
    shift = np.where(has_same_near, one.place - other.place[partner], 0.0)
    known = np.maximum(one.ids, 0)
    counts = np.bincount(one.part[is_word], minlength=len(ones))
    found = np.bincount(one.part[is_word], weights=has_same_near[is_word], minlength=len(ones))
    share = found / np.maximum(counts, 1)
    flags = (
        ~is_word,
        among_words.max(axis=1),
        np.where(is_near, among_words, -1.0).max(axis=1),
        has_same,
        has_same_near,
        np.where(
            has_same_near, same_near.max(axis=1), np.where(has_same, np.where(is_same, cosines, 0).max(axis=1), 0)
        ),
        shift,
        np.where(is_word, words.rarity[known], 0.5),
        is_word & words.is_number[known],
        is_word & (one.ids == words.unknown_id),
        parts.max(axis=1)[one.part],
        share[one.part],
    )
    return np.stack([np.asarray(flag, np.float32) for flag in flags], axis=1)
