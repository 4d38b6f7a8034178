"""Where else the calls of a route can go, and what is therefore asked again: what the defaults of a policy mean.

`Onward` is made for each pool when it is built, `RemainingAttempts` for each call whose first attempt has failed. A
list that a policy writes itself is kept to the word.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import get_args

from backends.clock import Clock
from backends.protocol import Call, Reply
from backends.waits import retry_after_s
from policies.acting import acts
from policies.pool.attempts.classify import Outcome, failure_of
from policies.pool.attempts.retry import backoff_s
from policies.pool.attempts.settings import FallbackOn, RetryOn, RetryPolicy

_EVERYTHING: frozenset[RetryOn] = frozenset(get_args(RetryOn))
_SAFE: frozenset[RetryOn] = frozenset({"connect", "429", "503"})
"""Where there is nobody else: no model has worked on it, and a moment later it may go well."""
_UNPAID: frozenset[RetryOn] = _SAFE | {"529", "rejected_key", "unknown_model"}
"""No model has worked on it, so it may be asked again as often as `attempts` says."""
_STAYS: frozenset[RetryOn] = frozenset({"first_token_timeout", "504", "rejected_key", "unknown_model"})
"""Who failed so would fail so again."""


@dataclass(frozen=True, slots=True)
class Onward:
    """What one route's pool may do with an attempt that failed.

    `retry_on` is what is worth another attempt; after what is not in `unpaid` there is one more at most, and after what
    is in `elsewhere` only by another member.
    """

    retry_on: frozenset[RetryOn]
    unpaid: frozenset[RetryOn]
    elsewhere: frozenset[RetryOn]
    falls_back_on: frozenset[FallbackOn]
    has_others: bool
    """More than one member is in rotation."""

    @property
    def asks_others_on_silence(self) -> bool:
        """A silent member's call may go to another member."""
        return self.has_others and "first_token_timeout" in self.retry_on

    @property
    def leaves_the_silent(self) -> bool:
        """Somebody else may take over from a member that stays silent."""
        return self.asks_others_on_silence or "timeout" in self.falls_back_on

    @property
    def holds_back(self) -> bool:
        """A stream that dies before it says something goes on, so its head waits for its first content."""
        return "error" in self.falls_back_on or (self.has_others and "upstream_cut" in self.retry_on)

    def again_on(self, call: Call) -> frozenset[RetryOn]:
        """What is worth another attempt of that call: one that acts is not sent again once somebody may have begun."""
        if self.unpaid is not _EVERYTHING and acts(call):
            return self.retry_on & self.unpaid
        return self.retry_on


def onward_of(retry: RetryPolicy, num_members: int, falls_back_on: Collection[FallbackOn]) -> Onward:
    """For a pool with so many members in rotation, in a route whose fallbacks take what is in `falls_back_on`."""
    fallbacks = frozenset(falls_back_on)
    has_others = num_members > 1
    if retry.on is not None:
        return Onward(_allowed(retry, frozenset(retry.on)), _EVERYTHING, frozenset(), fallbacks, has_others)
    if "error" in fallbacks:
        return Onward(_allowed(retry, _EVERYTHING), _UNPAID, _STAYS, fallbacks, has_others)
    if has_others:
        return Onward(_allowed(retry, _EVERYTHING), _UNPAID, _EVERYTHING - _SAFE, fallbacks, has_others)
    return Onward(_allowed(retry, _SAFE), _UNPAID, frozenset(), fallbacks, has_others)


def _allowed(retry: RetryPolicy, reasons: frozenset[RetryOn]) -> frozenset[RetryOn]:
    return reasons if retry.attempts else frozenset()


class RemainingAttempts:
    """What is left of one call's further attempts in its pool."""

    __slots__ = ("_again_on", "_goes_on", "_is_paid", "_num_failed", "_onward", "_policy", "_waited_s", "is_exhausted")

    def __init__(self, onward: Onward, policy: RetryPolicy, call: Call) -> None:
        self._onward = onward
        self._policy = policy
        self._again_on = onward.again_on(call)
        self._num_failed = 0
        self._is_paid = False
        self._goes_on = False
        self._waited_s = 0.0
        self.is_exhausted = False
        """The last failure would have been worth another attempt, had there been one left."""

    @property
    def has_more(self) -> bool:
        """Whether there would be another attempt for a failure that a model may have worked on."""
        return not self._is_paid and self._num_failed < self._policy.attempts

    def pause_s(self, outcome: Outcome, clock: Clock, random: Random) -> float | None:
        """How long whoever failed so is left alone by this call, inf if for good; None where the outcome is final."""
        if isinstance(outcome, Reply) and outcome.status < 400:
            return None
        reason, kind, _ = failure_of(outcome)
        if reason is None or reason not in self._again_on:
            return None
        number = self._num_failed
        if number == self._policy.attempts:
            self.is_exhausted = True
            return None
        if reason not in self._onward.unpaid:
            if self._is_paid:
                return None
            self._is_paid = True
        self._num_failed += 1
        self._goes_on = kind in self._onward.falls_back_on
        return self.rest_s(outcome, number, clock, random)

    def rest_s(self, outcome: Outcome, number: int, clock: Clock, random: Random) -> float:
        """How long whoever failed so is left alone, after so many failures before; inf if for good."""
        reason = failure_of(outcome).reason
        if reason in self._onward.elsewhere or reason not in self._again_on:
            return math.inf
        backoff = self._policy.backoff
        asked_s = retry_after_s(outcome, clock) if self._policy.respect_retry_after else None
        if asked_s is not None and asked_s > backoff.max:
            return math.inf
        return max(backoff_s(backoff, number, random), asked_s or 0.0)

    def may_wait(self, seconds: float) -> bool:
        """Whether to wait so long; where another route could be asked, `backoff.max` is for all waits together."""
        self._waited_s += seconds
        return not self._goes_on or self._waited_s <= self._policy.backoff.max
