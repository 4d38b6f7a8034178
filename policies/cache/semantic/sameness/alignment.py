"""Two answers as the vectors of their tokens: which token of one has which partner in the other.

Late interaction (Khattab and Zaharia, ColBERT, SIGIR 2020), read for what differs instead of for a score.

Each part is encoded alone, so that what an answer says does not depend on what stands around it, and a part that comes
again is known. The mean vector of a part goes along as a token of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_Number = TypeVar("_Number", bound=np.generic)

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
_PART, _PADDING = -1, -2
"""In the place of a token's id."""
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
    """All parts, one after the other: `ids` (-1: a part's own vector), `vectors`, and of each token `part`, where the
    own vector of its part stands, and `place`, 0..1 within that.
    """

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
    ids = [np.append(part.ids, np.int32(_PART)) for part in parts]
    lengths = [len(each) for each in ids]
    return TokenizedAnswer(
        np.concatenate(ids),
        np.concatenate([part.vectors for part in parts]).astype(np.float32),
        np.repeat(np.cumsum(lengths, dtype=np.int32) - 1, lengths),
        np.concatenate([np.linspace(0, 1, length, dtype=np.float32) for length in lengths]),
    )


class Meeting(NamedTuple):
    """How the tokens of two answers stand to each other, of many pairs at once, padded to the longest: `flags` [pairs,
    tokens of one, FLAGS], `other_flags`, and `bonds` [pairs, tokens of one, tokens of other, BONDS], which keep padding
    apart; `mask` and `other_mask` [pairs, tokens] are 1 where there is a token.
    """

    flags: Floats
    other_flags: Floats
    bonds: Floats
    mask: Floats
    other_mask: Floats


def meet(pairs: Sequence[tuple[TokenizedAnswer, TokenizedAnswer]], words: TokenVocabulary) -> Meeting:
    """Of each of these pairs."""
    one, other = (_side([pair[side] for pair in pairs], words) for side in (0, 1))
    cosines = one.vectors @ other.vectors.transpose(0, 2, 1)
    of_part = np.take_along_axis(cosines, one.part[:, :, None], axis=1)
    of_parts = np.take_along_axis(of_part, other.part[:, None, :], axis=2)
    is_same = (one.ids[:, :, None] == other.ids[:, None, :]) & one.is_word[:, :, None]
    is_alike = (one.is_word[:, :, None] & other.is_word[:, None, :]) | (
        one.is_part[:, :, None] & other.is_part[:, None, :]
    )
    bonds = np.stack((cosines, of_parts, is_same, np.where(is_alike, 0.0, APART)), axis=3, dtype=np.float32)
    back = _turned(np.take_along_axis(cosines, other.part[:, None, :], axis=2))
    return Meeting(
        _flags(one, other, cosines, of_part, is_same, is_alike),
        _flags(other, one, _turned(cosines), back, _turned(is_same), _turned(is_alike)),
        bonds,
        (one.is_word | one.is_part).astype(np.float32),
        (other.is_word | other.is_part).astype(np.float32),
    )


def padded(rows: Sequence[NDArray[_Number]], fill: float = 0) -> NDArray[_Number]:
    """[arrays, longest, ...] of arrays [length, ...], filled up at their ends."""
    table = np.full((len(rows), max(map(len, rows)), *rows[0].shape[1:]), fill, rows[0].dtype)
    for at, row in enumerate(rows):
        table[at, : len(row)] = row
    return table


class _Side(NamedTuple):
    """One answer of each pair, [pairs, tokens] each but for the vectors; `known` is what its tokens tell alone."""

    ids: NDArray[np.int32]
    vectors: Floats
    part: NDArray[np.int32]
    place: Floats
    is_word: NDArray[np.bool_]
    is_part: NDArray[np.bool_]
    known: tuple[NDArray[Any], ...]


def _side(answers: Sequence[TokenizedAnswer], words: TokenVocabulary) -> _Side:
    ids = padded([answer.ids for answer in answers], _PADDING)
    is_word = ids >= 0
    known = np.maximum(ids, 0)
    return _Side(
        ids,
        padded([answer.vectors for answer in answers]),
        padded([answer.part for answer in answers]),
        padded([answer.place for answer in answers]),
        is_word,
        ids == _PART,
        (np.where(is_word, words.rarity[known], 0.5), is_word & words.is_number[known], ids == words.unknown_id),
    )


def _turned(table: NDArray[_Number]) -> NDArray[_Number]:
    """As the other answer sees it."""
    return table.transpose(0, 2, 1)


def _flags(
    one: _Side,
    other: _Side,
    cosines: Floats,
    of_part: Floats,
    is_same: NDArray[np.bool_],
    is_alike: NDArray[np.bool_],
) -> Floats:
    """[pairs, tokens, FLAGS]. `of_part`: cosines of each token's part; `is_alike`: both words, or both parts."""
    parts = np.where(other.is_part[:, None, :], of_part, -1.0)
    nearest = parts.argmax(axis=2)
    is_near = other.part[:, None, :] == nearest[:, :, None]
    is_same_near = is_same & is_near
    has_same, has_same_near = is_same.any(axis=2), is_same_near.any(axis=2)
    alike = np.where(is_alike, cosines, -1.0)
    same_near = np.where(is_same_near, cosines, -1.0)
    partner = same_near.argmax(axis=2)
    shift = np.where(has_same_near, one.place - np.take_along_axis(other.place, partner, axis=1), 0.0)
    same_elsewhere = np.where(has_same, np.where(is_same, cosines, 0.0).max(axis=2), 0.0)
    of_same_part = (one.part[:, :, None] == one.part[:, None, :]) & one.is_word[:, None, :]
    found = (of_same_part & has_same_near[:, None, :]).sum(axis=2)
    flags = (
        one.is_part,
        alike.max(axis=2),
        np.where(is_near, alike, -1.0).max(axis=2),
        has_same,
        has_same_near,
        np.where(has_same_near, same_near.max(axis=2), same_elsewhere),
        shift,
        *one.known,
        parts.max(axis=2),
        found / np.maximum(of_same_part.sum(axis=2), 1),
    )
    return np.stack(flags, axis=2, dtype=np.float32, casting="unsafe")
