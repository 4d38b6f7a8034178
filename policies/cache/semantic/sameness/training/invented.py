"""Words that do not exist: names of products, places and codes that no encoder knows, so that letters alone tell."""

from __future__ import annotations

from random import Random

_STARTS = "b br c ch d dr f g gl h j k kr l m n p pl qu r s sk st t tr v w z"
_MIDDLES = "a e i o u ai au ea ie oo y"
_ENDS = "- - - b ck d l ll m n nd ng rk rt s sh st t x"
_SYLLABLES = (1, 1, 2, 2, 3)
_MOST_WORDS = 8


class InventedWords:
    """Makes such words; equal seeds make equal ones."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def word(self) -> str:
        """In small letters."""
        syllables = self._random.choice(_SYLLABLES)
        return "".join(self._syllable() for _ in range(syllables)) + self._random.choice(("", "", "a", "en", "is", "o"))

    def name(self) -> str:
        """One word or two with a capital letter, at times with a number behind them."""
        words = [self.word().capitalize() for _ in range(self._random.choice((1, 1, 2)))]
        if self._random.random() < 0.3:
            words.append(str(self._random.randint(2, 9_999)))
        return " ".join(words)

    def sentence(self) -> list[str]:
        """Its words, to be joined: such ones alone, at times with a number among them."""
        words = [self.word() for _ in range(self._random.randint(2, _MOST_WORDS))]
        if self._random.random() < 0.5:
            words.insert(self._random.randint(1, len(words)), str(self._random.randint(2, 99_999)))
        return words

    def other_in(self, words: list[str]) -> list[str]:
        """All of them others, or one."""
        if self._random.random() < 0.6:
            return self.sentence()
        at = self._random.randrange(len(words))
        other = str(self._random.randint(2, 99_999)) if words[at].isdigit() else self.word()
        return [*words[:at], other, *words[at + 1 :]]

    def _syllable(self) -> str:
        start, middle, end = (self._random.choice(sounds.split()) for sounds in (_STARTS, _MIDDLES, _ENDS))
        return f"{start}{middle}{end.strip('-')}"
