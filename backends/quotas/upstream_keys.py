"""The keys of one backend, and which of them a call takes: by what each has left, and by who holds its prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

from backends.clock import Clock
from backends.errors import UpstreamExhausted
from backends.prompts.rendezvous import rendezvous
from backends.protocol import Headers
from backends.quotas.allowance import Taken
from backends.quotas.key_demand import KeyDemand
from backends.quotas.told import told_quotas
from backends.quotas.upstream_key import KeyStatistics, UpstreamKey


class UpstreamKeys:
    """Those of one backend, in the order of the policy file. It chooses only; `http/keyed_wire.py` asks with them."""

    def __init__(self, backend: str, presented: Sequence[Headers], clock: Clock) -> None:
        """`presented`: the fields that present each of them."""
        self.all = tuple(UpstreamKey(str(number), fields) for number, fields in enumerate(presented, 1))
        self._backend = backend
        self._clock = clock

    def choose(self, demand: KeyDemand) -> UpstreamKey:
        """The key to ask with first.

        Raises: UpstreamExhausted where none has anything left. Where the upstream rejects them all, the one that is
        longest in that state is asked: it may have been mended.
        """
        now = self._clock.now()
        keys = self.all[:1] if demand.is_bound else self.all
        chosen = self._best([key for key in keys if key.out_until(demand.model) <= now], demand, now)
        if chosen is not None:
            return chosen
        accepted = [key for key in keys if key.rejected_until <= now]
        if accepted:
            wait_s = min(key.out_until(demand.model) for key in accepted) - now
            raise UpstreamExhausted(
                f'the quota of the upstream "{self._backend}" is used up; retry in {wait_s:.0f} s', retry_after_s=wait_s
            )
        return min(keys, key=lambda key: key.rejected_until)

    def choose_other(self, demand: KeyDemand, tried: Collection[UpstreamKey]) -> UpstreamKey | None:
        """Another one that may be asked now; None if there is none."""
        if demand.is_bound:
            return None
        now = self._clock.now()
        left = [key for key in self.all if key not in tried and key.out_until(demand.model) <= now]
        return self._best(left, demand, now)

    def note(self, key: UpstreamKey, model: str, headers: Headers, taken: Taken | None = None) -> None:
        """What the answer to an attempt has told; without `taken`, where nobody counts what is sent."""
        told = told_quotas(headers, self._clock.wall())
        if told:
            allowance = key.allowance(model)
            allowance.note(told, taken or allowance.take(0), self._clock.now())

    def first(self) -> UpstreamKey:
        """One to ask with after something that is no call."""
        now = self._clock.now()
        return next((key for key in self.all if key.rejected_until <= now), self.all[0])

    def statistics(self) -> list[KeyStatistics]:
        """A snapshot of each."""
        now = self._clock.now()
        return [key.statistics(now) for key in self.all]

    def _best(self, keys: Sequence[UpstreamKey], demand: KeyDemand, now: float) -> UpstreamKey | None:
        if len(keys) < 2:
            return keys[0] if keys else None
        rooms = {key: key.allowance(demand.model).room(demand.tokens, now) for key in keys}
        if demand.beginning:
            score = rendezvous(demand.beginning)
            with_room = [key for key in keys if rooms[key][0]]
            if with_room:
                return max(with_room, key=lambda key: score(key.name, 1.0))
        # Among equals the one that was asked least lately.
        return max(keys, key=lambda key: (*rooms[key], -key.counts["sent"]))


@runtime_checkable
class Keyed(Protocol):
    """A backend that asks with keys."""

    @property
    def keys(self) -> UpstreamKeys:
        """Its keys; one without a field where it wants none."""
