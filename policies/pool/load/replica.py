"""One backend as balancing sees it: what it has in hand, what it has shown of itself, what it holds of prompts.

Every attempt that is to be counted goes from `begin` to `answered`, or to the attempt's own `end`. The same replica may
be in the pools of several routes.
"""

from __future__ import annotations

from functools import partial
from math import inf

import msgspec

from backends.clock import Clock
from backends.protocol import Call, Facts, Reply
from backends.stream import StreamEnd
from backends.waits import retry_after_s
from policies.pool.load.concurrency_estimate import ConcurrencyEstimate
from policies.pool.load.concurrency_limit import ConcurrencyLimit
from policies.pool.load.in_flight import InFlight, InFlightAttempt
from policies.pool.load.latency_model import MAX_SECONDS, Doubt, LatencyModel, features
from policies.pool.load.match import Match
from policies.pool.prompts.prefix_index import PrefixIndex

_LEARNED_PER_S = 50.0
"""So many first tokens a second are learned from, and as many at once as come in two seconds: a thousand more would
teach nothing new, and learning is dear."""


class ReplicaStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A replica at one moment; `nonsense` counts since the start."""

    name: str
    doubt: Doubt | None
    error: float
    residual: float
    is_degraded: bool
    seconds_per_token: float
    nonsense: int
    in_flight_tokens: int
    index_blocks: int


class Replica:
    """A backend asked for one model. `cache_tokens` is its room for keys and values, as far as anybody knows."""

    __slots__ = (
        "_clock",
        "_holders",
        "_index",
        "_learned_at",
        "_lessons",
        "_matched_tokens",
        "_prompt_tokens",
        "cache_tokens",
        "concurrency_estimate",
        "concurrency_limit",
        "in_flight",
        "model",
        "name",
        "slot",
        "work_s",
    )

    def __init__(self, name: str, cache_tokens: int, index: PrefixIndex, clock: Clock) -> None:
        self.name = name
        self.cache_tokens = cache_tokens
        self.model = LatencyModel()
        self.in_flight = InFlight()
        self.concurrency_limit = ConcurrencyLimit()
        self.concurrency_estimate = ConcurrencyEstimate()
        self.slot = index.add(cache_tokens)
        self.work_s = 0.0
        """Seconds that the prompts sent here take to compute, since the start."""
        self._index = index
        self._clock = clock
        self._holders = 0
        self._lessons = 0.0
        self._learned_at = -inf
        self._prompt_tokens = 0
        self._matched_tokens = 0

    def hold(self) -> None:
        """A policy in force has it. `release` must follow."""
        self._holders += 1

    def release(self) -> None:
        """A policy is out of force; with the last one goes what the index knows of it."""
        self._holders -= 1
        if self._holders == 0:
            self._index.remove(self.slot)

    def resize(self, cache_tokens: int) -> None:
        """Its cache is of another size."""
        self.cache_tokens = cache_tokens
        self._index.resize(self.slot, cache_tokens)

    def predict(self, tokens: int, uncached: int) -> float:
        """Seconds to the first token of a prompt sent here now, 0..3600; where `model.doubt` is None.

        `model.predict` of what it would meet, written out: every decision asks this of each candidate.
        """
        load = self.in_flight
        model = self.model
        constant, per_token, per_square, per_stream, per_held, per_lacking = model.coefficients
        held = load.held_tokens
        seconds = (
            constant
            + per_token * (load.waiting_tokens + uncached)
            + per_square * uncached * (tokens - 0.5 * uncached)
            + per_stream * load.decoding
            + per_held * held
        )
        lacking = held + tokens + model.output_tokens - self.cache_tokens
        if lacking > 0:
            seconds += per_lacking * lacking
        return seconds if 0.0 <= seconds <= MAX_SECONDS else min(max(seconds, 0.0), MAX_SECONDS)

    def predict_alone(self, tokens: int, uncached: int) -> float:
        """The same if there were nothing else to do here."""
        constant, per_token, per_square, *_ = self.model.coefficients
        return max(0.0, constant + per_token * uncached + per_square * uncached * (tokens - 0.5 * uncached))

    def expected_s(self, match: Match, attempt: InFlightAttempt | None = None) -> float | None:
        """Seconds until there is something of an answer, the first token of a stream or the end of a whole one: for a
        call sent now, or for the one that has gone out as `attempt`. None while nobody knows."""
        model = self.model
        if model.doubt is not None:
            return None
        demand = match.demand
        if attempt is not None:
            first_s = model.predict(features(*attempt.met))
        else:
            first_s = self.predict(demand.tokens, match.uncached(self.slot))
        return first_s if demand.is_stream else first_s + model.output_tokens * model.seconds_between_tokens

    def begin(self, match: Match, now: float) -> InFlightAttempt:
        """An attempt goes out; from now on its prompt is likely to be cached here. The attempt's `end` must follow."""
        demand = match.demand
        tokens = demand.tokens
        model, load = self.model, self.in_flight
        uncached = match.uncached(self.slot)
        held = load.held_tokens
        answer = int(model.output_tokens)
        lacking = held + tokens + answer - self.cache_tokens
        met = load.waiting_tokens, uncached, tokens, load.decoding, held, lacking if lacking > 0 else 0
        if model.doubt is None:
            self.work_s += uncached * model.seconds_per_token
        if demand.blocks:
            self._prompt_tokens += tokens
            self._matched_tokens += tokens - uncached
            self._index.store(self.slot, demand.blocks, demand.ends)
        attempt = InFlightAttempt(load, uncached, tokens + answer, demand.is_stream, met, now)
        if demand.blocks:
            attempt.on_end = partial(self._index.release, self.slot, demand.blocks)
        return attempt

    def answered(self, attempt: InFlightAttempt, reply: Reply, call: Call) -> None:
        """The attempt's reply is there; what it has shown is learned, and its end is seen to."""
        stream = reply.stream
        if reply.status == 429:
            now = self._clock.now()
            self.concurrency_limit.refused(
                self.in_flight.requests - 1, attempt.sent_at, now, retry_after_s(reply, self._clock)
            )
        if stream is None or reply.status >= 400:
            if reply.status < 400:
                if attempt.limit_s is not None:
                    # Whether it began later than alone cannot be seen of a whole answer.
                    self.concurrency_limit.observe(0.0, self.in_flight.requests - 1, attempt.sent_at, attempt.sent_at)
                if call.facts.usage is not None:
                    self._note_output(attempt, call.facts.usage.completion_tokens, self._clock.now())
            attempt.end()
            return
        first_at = self._first_at(call.facts, attempt)
        self._note_start(attempt, first_at)
        self.first_token(attempt, first_at)
        if stream.end is not None:
            attempt.end()
        stream.on_end.append(partial(self._stream_ended, attempt, call.facts))

    def first_token(self, attempt: InFlightAttempt, now: float) -> None:
        """A stream has begun."""
        attempt.first_token(now)
        if attempt.first_at is None or not self._may_learn(now):
            return
        if attempt.limit_s is not None:
            ahead, own, *_ = attempt.met
            self.concurrency_estimate.observe(ahead, own, now - attempt.sent_at)
        self.model.observe(features(*attempt.met), now - attempt.sent_at)

    def finish(self, attempt: InFlightAttempt, num_tokens: int, now: float) -> None:
        """An answer of so many tokens is whole; 0 where nobody knows."""
        self._note_output(attempt, num_tokens, now)
        if attempt.first_at is not None:
            self.model.observe_stream(num_tokens, now - attempt.first_at, self.in_flight.held_tokens)
        attempt.end()

    def statistics(self) -> ReplicaStatistics:
        """A snapshot."""
        model = self.model
        return ReplicaStatistics(
            name=self.name,
            doubt=model.doubt,
            error=model.error,
            residual=model.residual,
            is_degraded=model.is_degraded,
            seconds_per_token=model.seconds_per_token,
            nonsense=model.num_nonsense,
            in_flight_tokens=self.in_flight.held_tokens,
            index_blocks=self._index.num_blocks(self.slot),
        )

    def take_tokens(self) -> tuple[int, int]:
        """Prompt tokens sent since the last time, and those of them that it was thought to hold."""
        taken = self._prompt_tokens, self._matched_tokens
        self._prompt_tokens = self._matched_tokens = 0
        return taken

    def _note_start(self, attempt: InFlightAttempt, first_at: float) -> None:
        """How much later than alone a stream began."""
        if attempt.limit_s is not None:
            # What was cached when it went out: another attempt of the call may have filled the index since.
            _, uncached, tokens, *_ = attempt.met
            alone_s = self.predict_alone(int(tokens), int(uncached))
            delay = (first_at - attempt.sent_at - alone_s) / attempt.limit_s
            self.concurrency_limit.observe(delay, self.in_flight.requests - 1, attempt.sent_at, first_at)

    def _note_output(self, attempt: InFlightAttempt, num_tokens: int, now: float) -> None:
        self.model.observe_output(num_tokens)
        if attempt.on_output is not None:
            attempt.on_output(num_tokens, now)

    def _may_learn(self, now: float) -> bool:
        if now > self._learned_at:
            self._lessons = min(self._lessons + (now - self._learned_at) * _LEARNED_PER_S, 2 * _LEARNED_PER_S)
            self._learned_at = now
        if self._lessons < 1.0:
            return False
        self._lessons -= 1.0
        return True

    def _first_at(self, facts: Facts, attempt: InFlightAttempt) -> float:
        """When the first token came: as the leaf says, unless that is of an attempt before this one."""
        said = facts.first_token_at
        return said if said is not None and said >= attempt.sent_at else self._clock.now()

    def _stream_ended(self, attempt: InFlightAttempt, facts: Facts, how: StreamEnd) -> None:
        if how is StreamEnd.CLEAN and facts.usage is not None:
            self.finish(attempt, facts.usage.completion_tokens, self._clock.now())
        else:
            attempt.end()
