"""Decides for a gate whether a backend has room for a call, and whether the call would be in time there.

Pure: it reads what is known of the backends and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from backends.protocol import Slo
from policies.admission.queue import Waiting
from policies.admission.settings import AdmissionPolicy
from policies.pool.load.match import Match
from policies.pool.load.replica import Replica

_MAX_CACHE_SHARE = 0.97
"""The share of a backend's KV cache that may be filled; beyond it, the engine would preempt some streams for others."""
_WELL_IN_TIME = 0.7
"""A call whose first token is predicted within this share of its limit does not wait for the backend's load to fall."""
_CATCH_UP_TOKENS = 128
"""A prompt may delay running streams by as much as they can catch up over so many tokens. Streams with fewer tokens to
come may miss their limit by it."""
_TOLERATED_DELAY = 0.1
"""A delay below this share of the limit between tokens is tolerated, so that short prompts go on where streams are at
their limit."""


class AdmissionJudge:
    """Decides by one route's policy. `slo` is the route's: room goes by it, so that no caller delays the others by its
    own limits.

    `beyond` are the replicas to which those go who would be late here.
    """

    def __init__(self, policy: AdmissionPolicy, slo: Slo, beyond: Sequence[Replica] = ()) -> None:
        self._policy = policy
        self._slo = slo
        self._beyond = beyond

    def has_room(self, replica: Replica, waiting: Waiting, match: Match, now: float, *, yields: bool) -> bool:
        """Whether a backend can hold a call, and has little enough work queued before it.

        A call that `yields` must also leave room for a call of a higher priority to begin as if it were alone.
        """
        if not self.can_hold(replica, waiting.demand.tokens, now):
            return False
        load, model = replica.in_flight, replica.model
        if model.doubt is not None or not load.requests:
            return True
        if load.waiting_tokens * model.seconds_per_token >= self._policy.lookahead * self._slo.first_token_s:
            return False
        # While no prompt waits there, only another call can show that the estimate is too low.
        if not yields or not load.waiting_tokens:
            return True
        return load.waiting_tokens + match.uncached(replica.slot) <= replica.concurrency_estimate.tokens

    def can_hold(self, replica: Replica, tokens: int, now: float) -> bool:
        """Whether the backend can take so many tokens without refusing, preempting streams or slowing them beyond the
        route's limit. A call that asks for less would keep all others waiting until the backend has nothing else."""
        load, model, limits = replica.in_flight, replica.model, replica.concurrency_limit
        if model.doubt is not None:
            return limits.has_room(load.requests, now)
        if limits.has_refused and not limits.has_room(load.requests, now):
            return False
        if not load.requests:
            return True
        held = load.held_tokens + tokens + model.output_tokens
        return held <= _MAX_CACHE_SHARE * replica.cache_tokens and model.gap_s(held) <= self._slo.token_gap_s

    def is_in_time(self, replica: Replica, waiting: Waiting, match: Match, now: float) -> bool:
        """Whether the call's first token is predicted to come in time there, if the policy requires that."""
        return self._always_takes(replica) or now + _latest_s(replica, match) <= waiting.deadline

    def delays_streams(self, replica: Replica, waiting: Waiting, match: Match) -> bool:
        """Whether computing the prompt would make the streams there miss their limit."""
        usual_s = replica.model.seconds_between_tokens
        if not usual_s or self._always_takes(replica):
            return False
        limit_s = min(waiting.slo.token_gap_s, self._slo.token_gap_s)
        spare_s = max(limit_s - usual_s, _TOLERATED_DELAY * limit_s)
        return replica.predict_alone(waiting.demand.tokens, match.uncached(replica.slot)) > _CATCH_UP_TOKENS * spare_s

    def is_well_in_time(self, replica: Replica, match: Match, left_s: float) -> bool:
        """Whether a call with so many seconds to its limit is predicted to begin well before it."""
        if replica.model.doubt is not None or not replica.in_flight.requests:
            return True
        limit_s = min(left_s, self._slo.first_token_limit_s(match.demand.tokens))
        return _latest_s(replica, match) <= _WELL_IN_TIME * limit_s

    def send_by(self, replicas: Sequence[Replica], waiting: Waiting, match: Match) -> float:
        """Until when a call may wait: as long as an idle backend could answer in time, and so could whoever is asked
        instead where it comes to that; or as the policy allows.
        """
        if self._policy.on_overload == "queue":
            return waiting.arrived_at + self._policy.max_wait
        alone_s = [
            replica.model.residual * replica.predict_alone(waiting.demand.tokens, match.uncached(replica.slot))
            for replica in replicas
            if replica.model.doubt is None
        ]
        beyond_s = [_latest_s(replica, match) for replica in self._beyond if replica.model.doubt is None]
        return waiting.deadline - max(min(alone_s, default=0.0), min(beyond_s, default=0.0))

    def _always_takes(self, replica: Replica) -> bool:
        """Whether a backend is sent a call even if it is predicted to be late there.

        It is if it is idle or not measured yet: waiting would not help, and the call shows whether a prediction is
        wrong. Under `on_overload: queue` every backend is.
        """
        return self._policy.on_overload == "queue" or replica.model.doubt is not None or not replica.in_flight.requests


def _latest_s(replica: Replica, match: Match) -> float:
    """The predicted seconds to a call's first token there, with a margin that nineteen of twenty predictions keep."""
    return replica.model.residual * replica.predict(match.demand.tokens, match.uncached(replica.slot))
