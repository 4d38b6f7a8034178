"""Pairs that turn on one word, and answers of hardly more than one: what facts in whole sentences do not teach."""

from __future__ import annotations

import tomllib
from pathlib import Path
from random import Random

from policies.cache.semantic.sameness.training.invented import InventedWords
from policies.cache.semantic.sameness.training.pairs import MadePair

_FILE = Path(__file__).parent / "contrasts.toml"
_COURTESIES = ("{}", "Sure. {}", "In short: {}", "{} Let us know if that helps.")
_KINDS = (("opposed", "frames"), ("opposed_words", "frames_words"), ("opposed_things", "frames_things"))


class Contrasts:
    """Makes pairs; equal seeds make equal pairs."""

    def __init__(self, random: Random, *, is_training: bool) -> None:
        """Of each list training has two words in three, and whoever tests it the others."""
        self._random = random
        self._invents = InventedWords(random)
        words: dict[str, list[str]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
        self._words = {
            name: [each for number, each in enumerate(listed) if (number % 3 != 2) is is_training]
            for name, listed in words.items()
        }

    def pair(self) -> MadePair:
        """One more."""
        makers = (self._turned, self._synonym, self._value, self._yes, self._named, self._invented)
        make = self._random.choices(makers, (45, 13, 17, 13, 5, 7))[0]
        left, right, is_same = make()
        return MadePair(left, right, is_same, frozenset(("contrast",)), "contrast")

    def _turned(self) -> tuple[str, str, bool]:
        """The same sentence around another word; or, so that frames say nothing, around the same in another form."""
        words, frames = self._random.choice(_KINDS)
        one, other = self._random.sample(self._random.choice(self._words[words]).split("/"), 2)
        frame = self._random.choice(self._words[frames])
        if self._random.random() < 0.4:
            left, right = frame.format(one), frame.format(one)
            return (
                (f"{left} Just ask if anything is unclear.", right, True)
                if self._random.random() < 0.5
                else (
                    f"Please note: {left[0].lower()}{left[1:]}",
                    right,
                    True,
                )
            )
        return frame.format(one), frame.format(other), False

    def _synonym(self) -> tuple[str, str, bool]:
        groups = self._random.sample(self._words["synonyms"], 2)
        frame = self._random.choice(self._words["frames_synonyms"])
        is_same = self._random.random() < 0.6
        one, other = self._random.sample(groups[0].split("/"), 2)
        return frame.format(one), frame.format(other if is_same else self._random.choice(groups[1].split("/"))), is_same

    def _value(self) -> tuple[str, str, bool]:
        one, other = self._random.sample(self._words["values"], 2)
        frame, another = self._random.sample(self._words["wrapped"], 2)
        is_same = self._random.random() < 0.5
        return frame.format(one), another.format(one if is_same else other), is_same

    def _yes(self) -> tuple[str, str, bool]:
        groups = [self._words[name] for name in ("yes", "no", "unable")]
        if self._random.random() < 0.5:
            one, other = self._random.sample(self._random.choice(groups), 2)
            return one, other, True
        first, second = self._random.sample(groups, 2)
        return self._random.choice(first), self._random.choice(second), False

    def _named(self) -> tuple[str, str, bool]:
        """By a name that nobody knows."""
        one = self._invents.name()
        other = one if self._random.random() < 0.5 else self._invents.name()
        frame = self._random.choice(self._words[self._random.choice(("wrapped", "frames_things"))])
        return self._courtesy(one == other).format(frame.format(one)), frame.format(other), one == other

    def _invented(self) -> tuple[str, str, bool]:
        """Of words that nobody knows."""
        words = self._invents.sentence()
        others = words if self._random.random() < 0.3 else self._invents.other_in(words)
        said, other = (f"{' '.join(each).capitalize()}." for each in (words, others))
        return self._courtesy(words == others).format(said), other, words == others

    def _courtesy(self, is_same: bool) -> str:
        """Around one of two that would else be equal to the letter."""
        return self._random.choice(_COURTESIES) if is_same else "{}"
