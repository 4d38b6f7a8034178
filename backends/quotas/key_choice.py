"""Which of a backend's keys a call takes: who holds its prompt, or else who has most left.

Of a thousand keys it looks at a part each time, so that it costs hardly more than with a few.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from heapq import nlargest
from typing import NamedTuple

from backends.prompts.rendezvous import rendezvous
from backends.quotas.key_demand import KeyDemand
from backends.quotas.upstream_key import UpstreamKey

_COMPARED = 8
"""Keys that may be asked, of which the one with most left is taken. Others have their turn with other calls."""
_LOOKED_AT = 64
"""Keys that are looked at for these where some may not be asked; more, as long as there is none that may."""
_GROUP = 32
"""Keys are scored for a prompt by groups first, and then within one."""
_GROUPS_TRIED = 2
_SAME_ANSWER_S = 0.1
"""Where there are many keys and none may be asked, nobody looks at all of them again so soon."""


class _Group(NamedTuple):
    name: str
    weight: float
    keys: Sequence[UpstreamKey]


class KeyChoice:
    """Of one backend, in the order of the policy file."""

    def __init__(self, keys: Sequence[UpstreamKey]) -> None:
        self._keys = keys
        parts = [keys[at : at + _GROUP] for at in range(0, len(keys), _GROUP)]
        self._groups = [_Group(str(number), sum(key.weight for key in part), part) for number, part in enumerate(parts)]
        self._turn = 0
        self._refused = ("", 0.0, 0.0, 0.0)
        """For which model and tokens no key could be asked, seen when, and from when on one can."""

    def wait_s(self, model: str, tokens: float, now: float) -> float:
        """Seconds until one of them may be asked; 0 if now, and where the upstream rejects all of them."""
        refused_model, refused_tokens, seen_at, until = self._refused
        if (
            refused_model == model
            and tokens >= refused_tokens
            and seen_at <= now < min(until, seen_at + _SAME_ANSWER_S)
        ):
            return until - now
        shortest_s = None
        for key in self._by_turn():
            if key.rejected_until <= now:
                wait_s = key.wait_s(model, tokens, now)
                if wait_s <= 0:
                    return 0.0
                shortest_s = wait_s if shortest_s is None else min(shortest_s, wait_s)
        if shortest_s is None:
            return 0.0
        if len(self._keys) > _LOOKED_AT:
            self._refused = (model, tokens, now, now + shortest_s)
        return shortest_s

    def best(
        self, demand: KeyDemand, tokens: float, now: float, tried: Collection[UpstreamKey] = ()
    ) -> UpstreamKey | None:
        """Of those that may be asked now and were not tried; None if there is none."""
        if demand.beginning and len(self._keys) > 1:
            holder = self._holder(demand, tokens, now, tried)
            if holder is not None:
                return holder
        usable: list[UpstreamKey] = []
        passed = 0
        for number, key in enumerate(self._by_turn()):
            if len(usable) == _COMPARED or (usable and number >= _LOOKED_AT):
                break
            if key not in tried and key.wait_s(demand.model, tokens, now) <= 0:
                passed = passed or number + 1
                usable.append(key)
        # The next call begins behind the first that may be asked, so that few among many have their turns too.
        self._turn = (self._turn + passed) % len(self._keys)
        if len(usable) < 2:
            return usable[0] if usable else None
        # Among equals the one that was asked least lately.
        return max(usable, key=lambda key: (*key.room(demand.model, demand.tokens, now), -key.counts["sent"]))

    def _by_turn(self) -> Iterator[UpstreamKey]:
        keys, turn = self._keys, self._turn
        if len(keys) <= _COMPARED:
            yield from keys
            return
        for number in range(len(keys)):
            yield keys[number + turn - len(keys)]

    def _holder(
        self, demand: KeyDemand, tokens: float, now: float, tried: Collection[UpstreamKey]
    ) -> UpstreamKey | None:
        """The key that has the prompt if any has it, as long as there is room; then each time the same second one."""
        score = rendezvous(demand.beginning)
        groups = self._groups
        if len(groups) > 1:
            groups = nlargest(_GROUPS_TRIED, groups, key=lambda group: score(group.name, group.weight))
        for group in groups:
            for key in sorted(group.keys, key=lambda key: -score(key.name, key.weight)):
                if (
                    key not in tried
                    and key.wait_s(demand.model, tokens, now) <= 0
                    and key.room(demand.model, demand.tokens, now)[0]
                ):
                    return key
        return None
