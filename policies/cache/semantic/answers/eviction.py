"""Which stored answers are worth their place, and until when they are kept. Pure: time and randomness are handed in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import msgspec

from policies.cache.entry import Entry
from policies.cache.semantic.contracts import History

NUM_SAMPLED = 16
"""So many are looked at to find one that goes: close to the least valuable of all, at a constant cost."""

MAX_BAD_LABELS = 2
"""So many labels that found an entry wrong remove it, and all that say the same."""

_USE_HALF_LIFE_S = 3600.0
_JITTER = 0.1
_BYTES_A_TOKEN = 4


class RecentUse(msgspec.Struct):
    """How much an answer was used lately: a count that halves every hour. Being stored counts as one use."""

    level: float
    at: float

    def count(self, now: float) -> None:
        """It was used."""
        self.level = self.recent(now) + 1.0
        self.at = now

    def recent(self, now: float) -> float:
        """The uses that still count."""
        return self.level * math.exp2((self.at - now) / _USE_HALF_LIFE_S)


def value_per_byte(use: RecentUse, history: History, tokens: int, num_bytes: int, now: float) -> float:
    """What keeping an answer is likely to save: recent uses x tokens x chance of being right, for each byte of it."""
    is_right = (history.good + 1.0) / (history.good + history.bad + 2.0)
    return use.recent(now) * tokens * is_right / num_bytes


def tokens_saved(entry: Entry) -> int:
    """The tokens that serving this answer spares, at least one."""
    if entry.usage is None:
        return len(entry.body) // _BYTES_A_TOKEN + 1
    return max(entry.usage.prompt_tokens + entry.usage.completion_tokens, 1)


def spread_expiry(expires: float, now: float, random: Random) -> float:
    """That moment, up to a tenth of the time until then earlier or later: what came together does not go together."""
    return now + (expires - now) * random.uniform(1.0 - _JITTER, 1.0 + _JITTER)


class RandomIds:
    """A set of ids that gives random ones in constant time."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._places: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, id: str) -> None:
        """Have it in the set, once."""
        if id not in self._places:
            self._places[id] = len(self._ids)
            self._ids.append(id)

    def discard(self, id: str) -> None:
        """Have it in the set no more."""
        place = self._places.pop(id, None)
        if place is None:
            return
        last = self._ids.pop()
        if last != id:
            self._ids[place] = last
            self._places[last] = place

    def sample(self, random: Random) -> Sequence[str]:
        """Some of them: `NUM_SAMPLED` draws, or all where there are no more."""
        if len(self._ids) <= NUM_SAMPLED:
            return self._ids.copy()
        return [self._ids[random.randrange(len(self._ids))] for _ in range(NUM_SAMPLED)]
