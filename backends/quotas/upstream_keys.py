"""The keys of one backend, and which of them a call takes: by what each has left, and by who holds its prompt."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from backends.clock import Clock
from backends.errors import UpstreamExhausted
from backends.prompts.rendezvous import rendezvous
from backends.protocol import Call, Charge, Headers
from backends.quotas.allowance import QuotaLeft, Taken
from backends.quotas.key_demand import KeyDemand, is_bound, key_demand, prompt_tokens
from backends.quotas.ration import Ration
from backends.quotas.told import QuotaKind
from backends.quotas.upstream_key import KeyStatistics, UpstreamKey

_FIRST_GUESS_TOKENS = 256.0
_MEAN_OF = 32
"""The mean answer follows the last so many."""


class UpstreamKeys:
    """Those of one backend, in the order of the policy file, and the quota that they share.

    It chooses and counts only; `http/keyed_wire.py` asks with them.
    """

    def __init__(
        self,
        backend: str,
        keys: Sequence[UpstreamKey],
        clock: Clock,
        *,
        ration: Ration | None = None,
        shares_objects: bool = False,
        has_choice: bool = False,
    ) -> None:
        """`ration`: what all together may ask. `has_choice`: the operator has given several keys to choose from."""
        self.all = tuple(keys)
        self.ration = ration
        self._num_held_back = 0
        self.is_kept = has_choice or ration is not None
        """Whether anything is decided by what is left; else it is only told."""
        self._backend = backend
        self._clock = clock
        self._shares_objects = shares_objects
        self._mean_output = _FIRST_GUESS_TOKENS

    def share_among(self, number: int) -> None:
        """So many processes keep to what was declared, each to its share."""
        for ration in (self.ration, *(key.ration for key in self.all)):
            if ration is not None:
                ration.share_among(number)

    def room_in_s(self, call: Call, model: str) -> float:
        """Seconds until the upstream may be asked that; 0 if now."""
        now = self._clock.now()
        tokens = self._wanted(prompt_tokens(call), writes=call.operation.traits.writes_text)
        keys = self.all[:1] if is_bound(call, shares_objects=self._shares_objects) else self.all
        accepted = [key for key in keys if key.rejected_until <= now]
        keys_s = min((key.wait_s(model, tokens, now) for key in accepted), default=0.0)
        return keys_s if self.ration is None else max(keys_s, self.ration.wait_s(tokens, now))

    def reserve(self, call: Call, model: str) -> QuotaReservation:
        """A key to ask with first, whose quota is taken from now on.

        Raises: UpstreamExhausted where nothing is left. Where the upstream rejects all keys, the one that is longest in
        that state is taken: it may have been mended.
        """
        wait_s = self.room_in_s(call, model)
        if wait_s > 0:
            self.hold_back()
            raise UpstreamExhausted(
                f'the quota of the upstream "{self._backend}" is used up; retry in {wait_s:.1f} s', retry_after_s=wait_s
            )
        now = self._clock.now()
        demand = key_demand(call, model, shares_objects=self._shares_objects)
        tokens = self._wanted(demand.tokens, writes=demand.writes)
        keys = self.all[:1] if demand.is_bound else self.all
        key = self._best(keys, demand, tokens, now) or min(keys, key=lambda each: each.rejected_until)
        return QuotaReservation(self, demand, key, tokens, now)

    def hold_back(self) -> None:
        """A call is not sent, for want of quota."""
        self._num_held_back += 1

    def choose_other(self, reservation: QuotaReservation, tried: Collection[UpstreamKey]) -> UpstreamKey | None:
        """Another key that may be asked now; None if there is none."""
        if reservation.demand.is_bound:
            return None
        left = [key for key in self.all if key not in tried]
        return self._best(left, reservation.demand, reservation.tokens, self._clock.now())

    def note(self, key: UpstreamKey, model: str, headers: Headers, taken: Taken | None = None) -> None:
        """What the answer to an attempt has told; without `taken`, where nobody counts what is sent."""
        allowance = key.allowance(model)
        allowance.hear(headers, self._clock.wall(), taken or allowance.take(0), self._clock.now())

    def learn(self, output_tokens: int) -> None:
        """An answer had so many tokens."""
        self._mean_output += (output_tokens - self._mean_output) / _MEAN_OF

    def first(self) -> UpstreamKey:
        """One to ask with after something that is no call."""
        now = self._clock.now()
        return next((key for key in self.all if key.rejected_until <= now), self.all[0])

    def statistics(self) -> list[KeyStatistics]:
        """A snapshot of each."""
        now = self._clock.now()
        return [key.statistics(now) for key in self.all]

    def declared_left(self) -> dict[str, Mapping[QuotaKind, QuotaLeft]]:
        """What may go at once of what was declared, by the name of the key; `all` for all together."""
        now = self._clock.now()
        rations = {"all": self.ration, **{key.name: key.ration for key in self.all}}
        return {name: ration.left(now) for name, ration in rations.items() if ration is not None}

    def take_held_back(self) -> int:
        """Calls that were not sent for want of quota since the last time, for metrics."""
        number, self._num_held_back = self._num_held_back, 0
        return number

    def _wanted(self, prompt: int, *, writes: bool) -> float:
        return prompt + self._mean_output if writes else prompt

    def _best(self, keys: Sequence[UpstreamKey], demand: KeyDemand, tokens: float, now: float) -> UpstreamKey | None:
        """Of those that may be asked now."""
        usable = [key for key in keys if key.wait_s(demand.model, tokens, now) <= 0]
        if len(usable) < 2:
            return usable[0] if usable else None
        rooms = {key: key.room(demand.model, demand.tokens, now) for key in usable}
        if demand.beginning:
            score = rendezvous(demand.beginning)
            with_room = [key for key in usable if rooms[key][0]]
            if with_room:
                return max(with_room, key=lambda key: score(key.name, key.weight))
        # Among equals the one that was asked least lately.
        return max(usable, key=lambda key: (*rooms[key], -key.counts["sent"]))


class QuotaReservation:
    """The part of a backend's quota that one attempt holds, and the key that it goes out with."""

    __slots__ = ("_of_all", "_of_key", "demand", "key", "keys", "taken", "tokens")

    def __init__(self, keys: UpstreamKeys, demand: KeyDemand, key: UpstreamKey, tokens: float, now: float) -> None:
        """It is taken from now on."""
        self.keys = keys
        self.demand = demand
        self.tokens = tokens
        self._of_all = 0.0 if keys.ration is None else keys.ration.take(tokens, now)
        self._take(key, now)

    def move_to(self, key: UpstreamKey, now: float) -> None:
        """The upstream has refused the key; another one goes out."""
        if self.key.ration is not None:
            self.key.ration.give_back(0, self._of_key)
        self._take(key, now)

    def give_back(self) -> None:
        """Nothing is sent after all."""
        self._correct(1, 0)

    def settle(self, charge: Charge) -> None:
        """The attempt is over: what it used takes the place of what was reserved."""
        usage = charge.usage
        self._correct(0, 0 if usage is None else usage.prompt_tokens + usage.completion_tokens)
        if usage is not None and self.demand.writes and not charge.is_estimated:
            self.keys.learn(usage.completion_tokens)

    def _take(self, key: UpstreamKey, now: float) -> None:
        self.key = key
        self.taken = key.take(self.demand.model, self.demand.tokens)
        self._of_key = 0.0 if key.ration is None else key.ration.take(self.tokens, now)

    def _correct(self, requests: int, used: int) -> None:
        if self.keys.ration is not None:
            self.keys.ration.give_back(requests, self._of_all - used)
        if self.key.ration is not None:
            self.key.ration.give_back(requests, self._of_key - used)


@runtime_checkable
class Keyed(Protocol):
    """A backend that asks with keys."""

    @property
    def keys(self) -> UpstreamKeys:
        """Its keys; one without a field where it wants none."""
