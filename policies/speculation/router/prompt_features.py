"""What of a prompt's form tells how hard it is, beside its meaning: 26 numbers, and its words in a hashed table."""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

NUM_FEATURES = 26
NUM_WORDS = 8192
"""Places of the table; words that share one are not told apart."""
MAX_CHARS = 4096
"""Of longer prompts the end is looked at, where the question mostly stands: the work has a bound."""

_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_WORD_OR_SIGN = re.compile(r"\w+|[^\w\s]")
_DIGIT = re.compile(r"\d")
_CODE = re.compile(r"\b(?:def|int|return|print)\b|[{};]\n")
_KINDS = (
    (" not ", " except", " false", "n't"),
    ("statement 1", "which of the following"),
    ("how many", "how much", "calculate", "compute", "find "),
    ("why", "explain", "best describes"),
    ("if ", "suppose", "assume"),
)
"""Words of which some kinds of questions have one."""


def ending(prompt: str) -> str:
    """What is looked at of a prompt."""
    return prompt[-MAX_CHARS:]


def features_of(prompt: str) -> NDArray[np.float32]:
    """[26]: lengths, numbers, signs, and words that some kinds of questions have."""
    text = ending(prompt)
    lowered = text.lower()
    words, numbers, lines = _WORD.findall(text), _NUMBER.findall(text), text.split("\n")
    num_chars, num_words = max(1, len(text)), max(1, len(words))
    values = (
        math.log1p(len(text)),
        math.log1p(len(words)),
        math.log1p(len(lines)),
        len(numbers) / num_words,
        math.log1p(len(numbers)),
        math.log1p(max(map(len, numbers), default=0)),
        sum(map(str.isupper, text)) / num_chars,
        sum(map(text.count, "+-*/=^<>|\\{}$%")) / num_chars,
        sum(map(text.count, ",.;:")) / num_chars,
        *map(text.count, ("?", "%", "$")),
        text.count('"') + text.count("\u201c"),
        text.count("_"),
        sum(map(len, words)) / num_words,
        sum(len(word) > 8 for word in words) / num_words,
        len({word.lower() for word in words}) / num_words,
        *(any(word in lowered for word in kind) for kind in _KINDS),
        math.log1p(len(lines[0])),
        math.log1p(max(map(len, lines))),
        not text.isascii(),
        _CODE.search(text) is not None,
    )
    return np.array(values, np.float32)


def words_of(prompt: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Places in the table, ascending, of the words and pairs of words of a prompt, and 1 + log of how often each is.

    Digits are all alike.
    """
    words = _WORD_OR_SIGN.findall(_DIGIT.sub("0", ending(prompt).lower()))
    counts = Counter(zlib.crc32(word.encode("utf-8", "replace")) % NUM_WORDS for word in words)
    counts.update(zlib.crc32(f"{one} {two}".encode("utf-8", "replace")) % NUM_WORDS for one, two in pairwise(words))
    places = sorted(counts)
    return np.array(places, np.int64), 1 + np.log(np.array([counts[place] for place in places], np.float32))
