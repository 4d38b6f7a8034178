"""The keys of one backend, the quota that they share, and what a call holds of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from backends.charges.charge import Charge
from backends.clock import Clock
from backends.errors import UpstreamExhausted
from backends.protocol import Call, Headers
from backends.quotas.allowance import QuotaLeft, Taken
from backends.quotas.key_choice import KeyChoice
from backends.quotas.key_demand import KeyDemand, is_bound, key_demand, prompt_tokens
from backends.quotas.ration import Ration
from backends.quotas.told import QuotaKind
from backends.quotas.upstream_key import KeyStatistics, UpstreamKey

_FIRST_GUESS_TOKENS = 256.0
_MEAN_OF = 32
"""The mean answer follows the last so many."""


class UpstreamKeys:
    """Those of one backend, in the order of the policy file, and the quota that they share.

    It counts only; `key_choice.py` chooses, and `http/keyed_wire.py` asks with them.
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
        self._choice = KeyChoice(self.all)
        self._first_only = KeyChoice(self.all[:1])

    def share_among(self, number: int) -> None:
        """So many processes keep to what was declared, each to its share."""
        for ration in (self.ration, *(key.ration for key in self.all)):
            if ration is not None:
                ration.share_among(number)

    def room_in_s(self, call: Call, model: str) -> float:
        """Seconds until the upstream may be asked that; 0 if now."""
        tokens = self._wanted(prompt_tokens(call), writes=call.operation.traits.writes_text)
        is_about_the_first = is_bound(call, shares_objects=self._shares_objects)
        return self._room_in_s(is_about_the_first, model, tokens, self._clock.now())

    def reserve(self, call: Call, model: str) -> QuotaReservation:
        """A key to ask with first, whose quota is taken from now on.

        Raises: UpstreamExhausted where nothing is left. Where the upstream rejects all keys, the one that is longest in
        that state is taken: it may have been mended.
        """
        now = self._clock.now()
        demand = key_demand(call, model, shares_objects=self._shares_objects)
        tokens = self._wanted(demand.tokens, writes=demand.writes)
        wait_s = self._room_in_s(demand.is_bound, model, tokens, now)
        if wait_s > 0:
            self.hold_back()
            raise UpstreamExhausted(
                f'the quota of the upstream "{self._backend}" is used up; retry in {wait_s:.1f} s', retry_after_s=wait_s
            )
        key = self._choice_for(demand.is_bound).best(demand, tokens, now)
        if key is None:
            keys = self.all[:1] if demand.is_bound else self.all
            key = min(keys, key=lambda each: each.rejected_until)
        return QuotaReservation(self, demand, key, tokens, now)

    def hold_back(self) -> None:
        """A call is not sent, for want of quota."""
        self._num_held_back += 1

    def choose_other(self, reservation: QuotaReservation, tried: Collection[UpstreamKey]) -> UpstreamKey | None:
        """Another key that may be asked now; None if there is none."""
        if reservation.demand.is_bound:
            return None
        return self._choice.best(reservation.demand, reservation.tokens, self._clock.now(), tried)

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

    def _choice_for(self, is_bound: bool) -> KeyChoice:
        return self._first_only if is_bound else self._choice

    def _room_in_s(self, is_bound: bool, model: str, tokens: float, now: float) -> float:
        keys_s = self._choice_for(is_bound).wait_s(model, tokens, now)
        return keys_s if self.ration is None else max(keys_s, self.ration.wait_s(tokens, now))


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
