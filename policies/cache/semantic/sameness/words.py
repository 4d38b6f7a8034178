"""What the words of two answers tell without any vector, as a row of numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.decision.features import difference
from policies.cache.semantic.sameness.answer_facts import NEGATION, facts_of, is_reordered
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
_LOST_SHARE = 0.2
_COMMON_WORDS = (
    "a an the is are was were be been to of in on at for from by with and or it its this that these those you your we "
    "our i my he she they their as will would can could may should must have has had do does did there which who "
    "der die das ein eine und ist sind in zu von mit für im den dem le la les de des et est un une en du el los las y "
    "es il lo gli di che si per con al se"
)
_COMMON = frozenset(_COMMON_WORDS.split())


def word_features(left: Sequence[str], right: Sequence[str]) -> NDArray[np.float32]:
    """[FEATURES], the same for both orders of the two. The answers are given in parts (`parts_of`)."""
    left, right = _lined_up(left, right)
    texts = [" ".join(parts) for parts in (left, right)]
    facts = [facts_of(text) for text in texts]
    words = [_WORD.findall(text.casefold()) for text in texts]
    one, other = (frozenset(each) - _COMMON for each in words)
    shared, union = len(one & other), len(one | other)
    covered = sorted((shared / max(len(one), 1), shared / max(len(other), 1)))
    numbers = sorted((len(facts[0].numbers - facts[1].numbers), len(facts[1].numbers - facts[0].numbers)))
    names = sorted((len(facts[0].names - facts[1].words), len(facts[1].names - facts[0].words)))
    same_bag = Counter(words[0]) == Counter(words[1])
    # What is matched depends a little on which comes first.
    first, second = sorted(each[:_MAX_EDIT_WORDS] for each in words)
    edits = SequenceMatcher(None, first, second, autojunk=False)
    matched = sum(block.size for block in edits.get_matching_blocks())
    longest = max(len(words[0]), len(words[1]), 1)
    lengths = sorted((len(words[0]), len(words[1])))
    parts = sorted((len(left), len(right)))
    turned = [one != other for one, other in zip(*map(operators_of, words), strict=True)]
    bags = [[_bag(part) for part in answer] for answer in (left, right)]
    negated = [[NEGATION.search(part) is not None for part in answer] for answer in (left, right)]
    aligned = [_aligned(bags[way], negated[way], bags[1 - way], negated[1 - way]) for way in (0, 1)]
    worst = [min(values) for values in zip(*aligned, strict=True)]
    most = [max(values) for values in zip(*aligned, strict=True)]
    return np.array(
        (
            words[0] == words[1],
            shared / union if union else 1.0,
            *covered,
            *(min(count, 4) for count in numbers),
            min(len(facts[0].numbers & facts[1].numbers), 4),
            _is_counted_otherwise(texts[0], texts[1]),
            *(min(count, 4) for count in names),
            min(abs(facts[0].num_negated - facts[1].num_negated), 3),
            facts[0].links != facts[1].links,
            is_reordered(texts[0], texts[1]),
            same_bag and words[0] != words[1],
            difference(texts[0], texts[1]).opposed,
            2 * matched / max(sum(lengths), 1),
            min(longest - matched, 12) / 4,
            lengths[0] / longest,
            parts[0] / parts[1],
            min(parts[1], 12) / 4,
            np.log1p(longest) / 3,
            worst[0],
            (aligned[0][1] + aligned[1][1]) / 2,
            most[2],
            most[3],
            most[4],
            most[5],
            any(part.endswith("?") for part in left) != any(part.endswith("?") for part in right),
            words[0][:1] != words[1][:1],
            sum(len(word) > 6 for word in one ^ other) / longest,
            *turned,
            sum(turned) % 2,
        ),
        np.float32,
    )


def worded_most_like(text: str, others: Sequence[str]) -> int:
    """Which of the others shares the largest part of its words with the text; the first of equals."""
    words = frozenset(_WORD.findall(text[:MAX_CHARS].casefold()))
    shares = []
    for other in others:
        found = frozenset(_WORD.findall(other[:MAX_CHARS].casefold()))
        shares.append(len(words & found) / max(len(words | found), 1))
    return shares.index(max(shares))


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


def _bag(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold())) - _COMMON


def _aligned(
    bags: Sequence[frozenset[str]],
    are_negated: Sequence[bool],
    others: Sequence[frozenset[str]],
    are_others_negated: Sequence[bool],
) -> tuple[float, float, float, float, float, float]:
    """Of each part and its nearest: share of words, least and mean; how many differ in a no, in numbers, are lost."""
    shares, negated, numbered, lost_facts, lost = [], 0, 0, 0, 0
    for bag, is_negated in zip(bags, are_negated, strict=True):
        if not bag:
            continue
        shared = [len(bag & other) for other in others]
        best = max(range(len(others)), key=lambda at: shared[at] / max(len(bag) + len(others[at]) - shared[at], 1))
        share = shared[best] / len(bag)
        shares.append(share)
        numbers = {word for word in bag if word[0].isdecimal()}
        if share < _LOST_SHARE:
            lost += 1
            lost_facts += bool(numbers)
        else:
            negated += is_negated != are_others_negated[best]
            numbered += bool(numbers - others[best])
    return (
        min(shares, default=1.0),
        sum(shares) / max(len(shares), 1),
        min(negated, 3),
        min(numbered, 3),
        min(lost_facts, 3),
        min(lost, 4) / 2,
    )


def _is_counted_otherwise(left: str, right: str) -> bool:
    """The same number of something else: 30 seconds and 30 minutes."""
    counted = [dict(_COUNTED.findall(text.casefold())) for text in (left, right)]
    return any(number in counted[1] and counted[1][number] != what for number, what in counted[0].items())
