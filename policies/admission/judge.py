"""Whether a backend has room for a call, and whether the call would be in time there: a gate's judgement.

Pure: looks at what is known of backends, changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from backends.protocol import Slo
from policies.admission.queue import Waiting
from policies.admission.settings import AdmissionPolicy
from policies.pool.load.match import Match
from policies.pool.load.replica import Replica

_MAX_FULL = 0.97
"""How full of keys and values a backend may be made: beyond it, it would put off some streams for others."""
_AT_ONCE = 0.7
"""A call that is predicted to begin within this share of its limit need not wait for a backend to have less to do."""
_CATCHES_UP = 128
"""A stream with so many tokens to come makes up for a prompt that holds it up meanwhile; shorter ones are given up."""
_NOT_FELT = 0.1
"""Less than this share of its limit is not felt in a gap: short prompts go on where streams are at their limit."""


class AdmissionJudge:
    """Judges by one route's policy. `slo` is the route's own: a caller's looser limits are no leave to delay others."""

    def __init__(self, policy: AdmissionPolicy, slo: Slo) -> None:
        self._policy = policy
        self._slo = slo

    def has_room(self, replica: Replica, waiting: Waiting, match: Match, now: float, *, yields: bool) -> bool:
        """Whether a backend can hold a call, and has little enough to do before it.

        Who `yields` leaves it room for the next call of a higher priority to begin as if it were alone.
        """
        if not self.can_hold(replica, waiting.demand.tokens, waiting.slo, now):
            return False
        load, model = replica.in_flight, replica.model
        if model.doubt is not None or not load.requests:
            return True
        first_token_s = min(waiting.slo.first_token_s, self._slo.first_token_s)
        if load.waiting_tokens * model.seconds_per_token >= self._policy.lookahead * first_token_s:
            return False
        # With none waiting, more can only be learned from one that goes.
        if not yields or not load.waiting_tokens:
            return True
        return load.waiting_tokens + match.uncached(replica.slot) <= replica.concurrency_estimate.tokens

    def can_hold(self, replica: Replica, tokens: int, slo: Slo, now: float) -> bool:
        """Whether a call of so many tokens would neither be refused, nor put streams off, nor slow them beyond their
        limit."""
        load, model, limits = replica.in_flight, replica.model, replica.concurrency_limit
        if model.doubt is not None:
            return limits.has_room(load.requests, now)
        if limits.has_refused and not limits.has_room(load.requests, now):
            return False
        if not load.requests:
            return True
        held = load.held_tokens + tokens + model.output_tokens
        gap_limit_s = min(slo.token_gap_s, self._slo.token_gap_s)
        return held <= _MAX_FULL * replica.cache_tokens and model.gap_s(held) <= gap_limit_s

    def is_in_time(self, replica: Replica, waiting: Waiting, match: Match, now: float) -> bool:
        """Whether its first token would come in time there, where that is asked for."""
        return self._takes_all(replica) or now + _latest_s(replica, match) <= waiting.deadline

    def spoils(self, replica: Replica, waiting: Waiting, match: Match) -> bool:
        """Whether computing a prompt takes more time than the streams there have to spare within their limit."""
        usual_s = replica.model.seconds_between_tokens
        if not usual_s or self._takes_all(replica):
            return False
        limit_s = min(waiting.slo.token_gap_s, self._slo.token_gap_s)
        spare_s = max(limit_s - usual_s, _NOT_FELT * limit_s)
        return replica.predict_alone(waiting.demand.tokens, match.uncached(replica.slot)) > _CATCHES_UP * spare_s

    def is_early(self, replica: Replica, match: Match, left_s: float) -> bool:
        """Whether a call with so long to its limit would begin well before it, whatever the backend has to do."""
        if replica.model.doubt is not None or not replica.in_flight.requests:
            return True
        limit_s = min(left_s, self._slo.first_token_limit_s(match.demand.tokens))
        return _latest_s(replica, match) <= _AT_ONCE * limit_s

    def leave_at(self, replicas: Sequence[Replica], waiting: Waiting, match: Match) -> float:
        """Until when a call may wait: as long as an idle backend could be in time, or the policy says."""
        if self._policy.on_overload == "queue":
            return waiting.arrived_at + self._policy.max_wait
        alone_s = [
            replica.model.residual * replica.predict_alone(waiting.demand.tokens, match.uncached(replica.slot))
            for replica in replicas
            if replica.model.doubt is None
        ]
        return waiting.deadline - min(alone_s, default=0.0)

    def _takes_all(self, replica: Replica) -> bool:
        """An idle backend takes what comes: nobody waits for it, and a prediction that is wrong is found out."""
        return self._policy.on_overload == "queue" or replica.model.doubt is not None or not replica.in_flight.requests


def _latest_s(replica: Replica, match: Match) -> float:
    """Seconds until a call's first token if it went there now, as far off as one prediction in twenty is."""
    return replica.model.residual * replica.predict(match.demand.tokens, match.uncached(replica.slot))
