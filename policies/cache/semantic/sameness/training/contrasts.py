"""Pairs that turn on one word, and answers of hardly more than one: what facts in whole sentences do not teach."""

from __future__ import annotations

import tomllib
from pathlib import Path
from random import Random

from policies.cache.semantic.sameness.training.pairs import MadePair

_FILE = Path(__file__).parent / "contrasts.toml"
_KINDS = (("opposed", "frames"), ("opposed_words", "frames_words"), ("opposed_things", "frames_things"))


class Contrasts:
    """Makes pairs; equal seeds make equal pairs."""

    def __init__(self, random: Random, *, is_training: bool) -> None:
        """Of each list training has two words in three, and whoever tests it the others."""
        self._random = random
        words: dict[str, list[str]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
        self._words = {
            name: [each for number, each in enumerate(listed) if (number % 3 != 2) is is_training]
            for name, listed in words.items()
        }

    def pair(self) -> MadePair:
        """One more."""
        make = self._random.choices((self._turned, self._synonym, self._value, self._yes), (50, 15, 20, 15))[0]
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
