"""What the words of two answers tell without any vector, as a row of numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from operator import ne
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.decision.features import Wording, are_opposed
from policies.cache.semantic.sameness.answer_facts import (
    NEGATION,
    AnswerFacts,
    Sentences,
    facts_of,
    facts_of_all,
    is_reordered,
    sentences_of,
)
from policies.cache.semantic.sameness.operators import OPERATORS, operators_of
from policies.cache.semantic.sameness.parts import MAX_CHARS

FEATURES = (
    "equal",
    "overlap",
    "covered_least",
    "covered_most",
    "numbers_missing_least",
    "numbers_missing_most",
    "numbers_shared",
    "counted_otherwise",
    "names_missing_least",
    "names_missing_most",
    "negated_more",
    "links_differ",
    "reordered",
    "same_words_elsewhere",
    "opposed",
    "edit_ratio",
    "edited_words",
    "length_ratio",
    "parts_ratio",
    "num_parts",
    "num_words",
    "part_worst",
    "part_mean",
    "part_negation_differs",
    "part_numbers_differ",
    "part_lost_with_facts",
    "part_lost",
    "has_question",
    "first_word_differs",
    "rare_missing",
    *(f"other_{sort}" for sort in OPERATORS),
    "turned_over",
)
"""`missing`: of one answer's in the other, least and most of both ways; `part_`: of each part and the one of the other
answer that shares most words with it; `lost`: parts that share hardly any; `other_`: of this sort of words that turn
a sentence over one answer has an odd number, the other not; `turned_over`: of all of them together."""

_WORD = re.compile(r"\d+(?:[.,:/-]\d+)*|[^\W_]+")
_COUNTED = re.compile(r"(\d+(?:[.,:/-]\d+)*) ([^\W\d_]+)")
_MAX_EDIT_WORDS = 400
_MAX_KEPT_PARTS = 2048
"""About 3 kB each."""
_LONG_WORD = 6
_LOST_SHARE = 0.2
_LEAST_SHARE = 0.17
"""Of all words of two answers: of neighbours' answers that are called the same as a new one 98 to 100 % have so many in
common with it, mildly worded, freely worded or in lists, and 16 to 42 % of all neighbours' have not."""
_COMMON_WORDS = (
    "a an the is are was were be been to of in on at for from by with and or it its this that these those you your we "
    "our i my he she they their as will would can could may should must have has had do does did there which who "
    "der die das ein eine und ist sind in zu von mit für im den dem le la les de des et est un une en du el los las y "
    "es il lo gli di che si per con al se"
)
COMMON = frozenset(_COMMON_WORDS.split())
"""Words that say nothing by themselves."""


class ReadWords(NamedTuple):
    """What the words of an answer, or of a part of one, tell by themselves."""

    parts: Sequence[str]
    sentences: Sentences
    facts: AnswerFacts
    words: list[str]
    content: frozenset[str]
    long: frozenset[str]
    """Of these the long ones, which are rarely said in vain."""
    counted: dict[str, str]
    """What stands behind each number."""
    opposable: frozenset[str]
    """Words that others may be the opposite of."""
    operators: tuple[bool, ...]
    asks: bool
    bags: list[frozenset[str]]
    numbered: list[frozenset[str]]
    """The numbers in each."""
    are_negated: list[bool]


def read_words(parts: Sequence[str]) -> ReadWords:
    """Of these parts in a row."""
    read = [read_part(part) for part in parts]
    if len(read) == 1:
        return read[0]
    words = [word for part in read for word in part.words]
    return ReadWords(
        parts,
        sentences_of(" ".join(parts)),
        facts_of_all([part.facts for part in read]),
        words,
        frozenset().union(*(part.content for part in read)),
        frozenset().union(*(part.long for part in read)),
        {number: what for part in read for number, what in part.counted.items()},
        frozenset().union(*(part.opposable for part in read)),
        operators_of(words),
        any(part.asks for part in read),
        [bag for part in read for bag in part.bags],
        [numbers for part in read for numbers in part.numbered],
        [is_negated for part in read for is_negated in part.are_negated],
    )


@lru_cache(maxsize=_MAX_KEPT_PARTS)
def read_part(text: str) -> ReadWords:
    """Of one part. Stored answers are compared again and again, and parts of answers come again."""
    folded = text.casefold()
    words = _WORD.findall(folded)
    content = frozenset(words) - COMMON
    return ReadWords(
        [text],
        sentences_of(text),
        facts_of(text),
        words,
        content,
        frozenset(word for word in content if len(word) > _LONG_WORD),
        dict(_COUNTED.findall(folded)),
        Wording(text).words,
        operators_of(words),
        text.endswith("?"),
        [content],
        [frozenset(word for word in content if word[0].isdecimal())],
        [NEGATION.search(text) is not None],
    )


def word_features(left: Sequence[str], right: Sequence[str]) -> NDArray[np.float32]:
    """[FEATURES], the same for both orders of the two. The answers are given in parts (`parts_of`)."""
    return features_between(*map(read_words, _lined_up(left, right)))


def features_between(one: ReadWords, other: ReadWords) -> NDArray[np.float32]:
    """[FEATURES] of two in which shared parts stand in one order, as any two of a part each do."""
    shared, union = len(one.content & other.content), len(one.content | other.content)
    covered = sorted((shared / max(len(one.content), 1), shared / max(len(other.content), 1)))
    facts, others = one.facts, other.facts
    numbers = sorted((len(facts.numbers - others.numbers), len(others.numbers - facts.numbers)))
    names = sorted((len(facts.names - others.words), len(others.names - facts.words)))
    same_bag = len(one.words) == len(other.words) and sorted(one.words) == sorted(other.words)
    # What is matched depends a little on which comes first.
    first, second = sorted(each.words[:_MAX_EDIT_WORDS] for each in (one, other))
    edits = SequenceMatcher(None, first, second, autojunk=False)
    matched = sum(block.size for block in edits.get_matching_blocks())
    longest = max(len(one.words), len(other.words), 1)
    lengths = sorted((len(one.words), len(other.words)))
    parts = sorted((len(one.parts), len(other.parts)))
    turned = list(map(ne, one.operators, other.operators))
    common = [[len(bag & another) for another in other.bags] for bag in one.bags]
    mine, theirs = _aligned(one, other, common), _aligned(other, one, list(zip(*common, strict=True)))
    return np.array(
        (
            one.words == other.words,
            shared / union if union else 1.0,
            *covered,
            *(min(count, 4) for count in numbers),
            min(len(facts.numbers & others.numbers), 4),
            _is_counted_otherwise(one.counted, other.counted),
            *(min(count, 4) for count in names),
            min(abs(facts.num_negated - others.num_negated), 3),
            facts.links != others.links,
            is_reordered(one.sentences, other.sentences),
            same_bag and one.words != other.words,
            are_opposed(one.opposable, other.opposable),
            2 * matched / max(sum(lengths), 1),
            min(longest - matched, 12) / 4,
            lengths[0] / longest,
            parts[0] / parts[1],
            min(parts[1], 12) / 4,
            np.log1p(longest) / 3,
            min(mine[0], theirs[0]),
            (mine[1] + theirs[1]) / 2,
            *map(max, mine[2:], theirs[2:]),
            one.asks != other.asks,
            one.words[:1] != other.words[:1],
            len(one.long ^ other.long) / longest,
            *turned,
            sum(turned) % 2,
        ),
        np.float32,
    )


def worded_most_like(text: str, others: Sequence[str]) -> int:
    """Which of the others shares the largest part of its words with the text; the first of equals."""
    words = _words_of(text)
    shares = [_shared(words, _words_of(other)) for other in others]
    return shares.index(max(shares))


def share_words(text: str, other: str) -> bool:
    """Whether two answers have so many words in common that it pays to read whether they say the same."""
    return _shared(_words_of(text), _words_of(other)) >= _LEAST_SHARE


def _words_of(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text[:MAX_CHARS].casefold()))


def _shared(words: frozenset[str], others: frozenset[str]) -> float:
    return len(words & others) / max(len(words | others), 1)


def _lined_up(left: Sequence[str], right: Sequence[str]) -> tuple[list[str], list[str]]:
    """Parts that both have first, in one order: where they stand is no difference of words."""
    shared = Counter(left) & Counter(right)
    first = sorted(shared.elements())
    return [*first, *_rest(left, shared)], [*first, *_rest(right, shared)]


def _rest(parts: Sequence[str], shared: Counter[str]) -> list[str]:
    left = Counter(shared)
    rest = []
    for part in parts:
        if left[part]:
            left[part] -= 1
        else:
            rest.append(part)
    return rest


def _aligned(
    one: ReadWords, by: ReadWords, common: Sequence[Sequence[int]]
) -> tuple[float, float, float, float, float, float]:
    """Of each part and its nearest: share of words, least and mean; how many differ in a no, in numbers, are lost.
    `common`: how many words each part of `one` shares with each of `by`.
    """
    shares, negated, numbered, lost_facts, lost = [], 0, 0, 0, 0
    sizes = [len(theirs) for theirs in by.bags]
    for bag, numbers, is_negated, shared in zip(one.bags, one.numbered, one.are_negated, common, strict=True):
        if not bag:
            continue
        likeness = [count / max(len(bag) + size - count, 1) for count, size in zip(shared, sizes, strict=True)]
        best = likeness.index(max(likeness))
        share = shared[best] / len(bag)
        shares.append(share)
        if share < _LOST_SHARE:
            lost += 1
            lost_facts += bool(numbers)
        else:
            negated += is_negated != by.are_negated[best]
            numbered += bool(numbers - by.bags[best])
    return (
        min(shares, default=1.0),
        sum(shares) / max(len(shares), 1),
        min(negated, 3),
        min(numbered, 3),
        min(lost_facts, 3),
        min(lost, 4) / 2,
    )


def _is_counted_otherwise(counted: dict[str, str], other: dict[str, str]) -> bool:
    """The same number of something else: 30 seconds and 30 minutes."""
    return any(number in other and other[number] != what for number, what in counted.items())
