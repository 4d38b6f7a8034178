"""How long an attempt may take while somebody else could be asked: for the first token what `Patience` says where no
policy does, and at most a share of the call's time.

Short, so that silence is noticed; longer for long prompts; and learned, so that a model that thinks first is not given
up each time.
"""

from __future__ import annotations

import math

import msgspec

from backends.clock import Clock
from backends.errors import FirstTokenTimeout, TotalTimeout, UpstreamError
from backends.operations import Operation
from backends.protocol import Call
from policies.pool.attempts.settings import RetryPolicy

FLOOR_S = 10.0
"""Nobody is given up before."""
CEILING_S = 60.0
"""Nobody is waited for longer; who needs more says so in `timeouts.first_token`."""
SHARE_OF_TOTAL = 0.5
"""Of what is left of a call's time, for an attempt that is not the last: whoever is asked next has as much."""
_PER_BYTE_S = 1 / 4096
"""A second for about a thousand tokens of the prompt."""
_LONGER = 1.5
_SHORTER = _LONGER ** (-1 / 19)
"""Nineteen in time undo one that was late: one call in twenty is given up at most, where a backend is slow by nature
(stochastic approximation; Robbins, Monro, 1951)."""


class Patience:
    """The wait for one backend: half as much again after each call that was given up, back to the floor by answers."""

    __slots__ = ("_late_at", "_wait_s")

    def __init__(self) -> None:
        self._wait_s = FLOOR_S
        self._late_at = -math.inf

    def limit_s(self, num_bytes: int) -> float:
        """Seconds for a call whose body has so many bytes."""
        return min(self._wait_s + num_bytes * _PER_BYTE_S, CEILING_S)

    def was_late(self, began_at: float, now: float) -> bool:
        """A call that began then is given up; whether it counts: of calls in flight together only the first does."""
        if began_at < self._late_at:
            return False
        self._late_at = now
        self._wait_s = min(self._wait_s * _LONGER, CEILING_S)
        return True

    def was_in_time(self) -> None:
        """A first token came."""
        self._wait_s = max(self._wait_s * _SHORTER, FLOOR_S)


class AttemptLimits:
    """For one pool's attempts that are not the last. Who `is_patient` keeps to the first token's limit of the call;
    whole answers get a share of the time only where `retry.on` lists their silence."""

    __slots__ = ("_clock", "_is_patient", "_shares_whole")

    def __init__(self, clock: Clock, retry: RetryPolicy, *, is_patient: bool) -> None:
        self._clock = clock
        self._shares_whole = retry.on is not None and "first_token_timeout" in retry.on
        self._is_patient = is_patient

    def limited(self, call: Call, model: str, patience: Patience) -> Call:
        """The call for a member, under the name that it has for the model."""
        is_limited = not self._is_patient if call.stream else self._shares_whole
        if call.operation is Operation.PASSTHROUGH or not is_limited:
            return call if model == call.model else msgspec.structs.replace(call, model=model)
        now = self._clock.now()
        share_s = (call.deadline - now) * SHARE_OF_TOTAL
        if not call.stream:
            return msgspec.structs.replace(call, model=model, deadline=now + share_s)
        limit_s = min(patience.limit_s(len(call.raw)), share_s, call.timeouts.first_token_s)
        timeouts = msgspec.structs.replace(call.timeouts, first_token_s=limit_s)
        return msgspec.structs.replace(call, model=model, timeouts=timeouts)

    def given_up(
        self, call: Call, whole: Call, patience: Patience, error: UpstreamError, began_at: float
    ) -> tuple[UpstreamError, bool]:
        """How an attempt of `whole` has failed that was made with its limited `call`, and whether that says something
        about the member: it may be no more than slower than was guessed."""
        if isinstance(error, TotalTimeout) and call.deadline < whole.deadline:
            share = f"{SHARE_OF_TOTAL:.0%} of what was left of timeouts.total"
            return FirstTokenTimeout(f"the upstream had not answered in {share}; others were left to ask"), True
        if call.stream and not self._is_patient and isinstance(error, FirstTokenTimeout):
            return error, patience.was_late(began_at, self._clock.now())
        return error, True
