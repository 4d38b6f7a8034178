"""The calls that one route refuses: counted by the reason, and answered with the time after which to retry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Literal

from backends.errors import Overloaded
from policies.admission.queue import AdmissionQueue
from policies.admission.queue_pace import QueuePace
from policies.admission.queued_call import QueuedCall

Shed = Literal["late", "long", "full", "waited"]
"""Why a call was refused: it could not be in time (`late`), its prompt would delay running streams too much (`long`),
too many calls wait (`full`), or it has waited for as long as it may (`waited`)."""


class Refusals:
    """The refusals of the route with that name and queue."""

    def __init__(self, route: str, queue: AdmissionQueue[QueuedCall], pace: QueuePace) -> None:
        self._route = route
        self._queue = queue
        self._pace = pace
        self._random = Random()
        self._taken: Counter[Shed] = Counter()
        self._empty_at = 0.0
        self.counts: Counter[Shed] = Counter()
        self.tokens = 0
        """The sum of the refused prompts' tokens."""

    def joined(self, call: QueuedCall) -> None:
        """A call was queued: by its `send_by` it will have been sent or refused."""
        self._empty_at = max(self._empty_at, call.send_by)

    def refuse(self, call: QueuedCall, why: Shed, now: float, *, first_token_s: float | None) -> Overloaded:
        """Count a refused call; returns its error, with the time after which the calls that wait now will be gone.

        `first_token_s` is the time to first token that the call would have had.
        """
        queue, pace = self._queue, self._pace
        self.counts[why] += 1
        self.tokens += call.demand.tokens
        if not queue:
            pace.resume(now)
        limit_s = call.deadline - call.arrived_at
        own = call.demand.tokens if call.outcome is None else 0
        through_s = pace.seconds_for(queue.tokens + own, now, default=limit_s)
        if queue:
            through_s = min(through_s, max(self._empty_at - now, 0.0))
        reason = {
            "late": f"has more to do than it can: the first token could not come within {limit_s:.3g} s",
            "long": "has streams that could not make up for the time that this prompt takes while others wait",
            "full": f"has {len(queue)} calls waiting with {queue.tokens} tokens, and no more may",
            "waited": f"has had no room for {now - call.arrived_at:.3g} s",
        }[why]
        refusal = Overloaded(
            f'the route "{self._route}" {reason}', retry_after_s=through_s * self._random.uniform(1.0, 1.5)
        )
        refusal.first_token_s = first_token_s
        return refusal

    def take(self) -> Mapping[Shed, int]:
        """The refusals since the last time, for metrics."""
        before, self._taken = self._taken, Counter(self.counts)
        return self._taken - before
