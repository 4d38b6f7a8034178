"""Numbers as texts tell them, in digits or in English words: sixty days are 60, two euros and fifty cents are 2.50."""

from __future__ import annotations

import re

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {word: number for number, word in enumerate(_ONES.split())} | {
    word: number for number, word in zip(range(20, 100, 10), _TENS.split(), strict=True)
}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000, "billion": 1_000_000_000}
_WORD = "|".join((*_SMALL, *_SCALES))
# A hyphen or a space between two of them, or the "and" behind a hundred.
_WORDS = re.compile(rf"\b(?:{_WORD})(?:(?:[- ]|(?<=hundred) and )(?:{_WORD})\b)*\b", re.IGNORECASE)
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_SCALED = re.compile(r"(?<![\d.,])(\d{1,9}(?:\.\d{1,6})?) (thousand|million|billion)\b", re.IGNORECASE)
_MONEY = re.compile(r"\b(\d+) (euros?|dollars?|pounds?) and (\d{1,2}) (?:cents?|pence)\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_ZEROS_BEHIND = re.compile(r"^(\d+)[.,]0+$|^(\d+[.,]\d*[1-9])0+$")


def in_digits(text: str) -> str:
    """The text with its numbers in digits. A lone "one" stays: it is as often a word for "a" as a number."""
    digits = _WORDS.sub(_digits, text)
    digits = _GROUPED.sub(lambda found: found[0].replace(",", ""), digits)
    digits = _SCALED.sub(lambda found: f"{round(float(found[1]) * _SCALES[found[2].lower()])}", digits)
    return _MONEY.sub(lambda found: f"{found[1]}.{int(found[3]):02d} {found[2]}", digits)


def numbers_of(text: str) -> frozenset[str]:
    """Of a text whose numbers are in digits: 2.50 is 2.5. Ones are left out, for "one" may have been left in words."""
    return frozenset(plain for number in _NUMBER.findall(text) if (plain := _plain(number)) != "1")


def _plain(number: str) -> str:
    found = _ZEROS_BEHIND.match(number)
    return number if found is None else found[1] or found[2]


def _digits(found: re.Match[str]) -> str:
    words = [word for word in re.split(r"[- ]", found[0].lower()) if word != "and"]
    if words == ["one"] or words[0] in _SCALES:
        return found[0]
    # Words that make no number together, as in "two three" or "twenty thirty", are numbers one after the other.
    numbers: list[int] = []
    total = current = 0
    for word in words:
        value = _SMALL.get(word)
        if value is None:
            scale = _SCALES[word]
            total, current = (total, current * scale) if scale == 100 else (total + current * scale, 0)
            continue
        if current % 100 and not (current % 10 == 0 and current % 100 >= 20 and 0 < value < 10):
            numbers.append(total + current)
            total = current = 0
        current += value
    return " ".join(map(str, (*numbers, total + current)))
