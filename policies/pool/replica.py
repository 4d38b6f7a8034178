"""One backend as balancing sees it: what it has in hand, what it has shown of itself, what it holds of prompts.

Every attempt that is to be counted goes through `ask`. The same replica may be in the pools of several routes.
"""

from __future__ import annotations

from functools import partial

import msgspec

from backends.clock import Clock
from backends.protocol import Backend, Call, Facts, Reply
from backends.stream import StreamEnd
from policies.pool.demand import Demand
from policies.pool.in_flight import InFlight, Trip
from policies.pool.latency_model import MAX_SECONDS, Doubt, Features, LatencyModel, features
from policies.pool.prefix_index import PrefixIndex


class ReplicaStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A replica at one moment; `nonsense` counts since the start."""

    name: str
    doubt: Doubt | None
    error: float
    residual: float
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
        "_matched_tokens",
        "_prompt_tokens",
        "cache_tokens",
        "in_flight",
        "model",
        "name",
        "slot",
    )

    def __init__(self, name: str, cache_tokens: int, index: PrefixIndex, clock: Clock) -> None:
        self.name = name
        self.cache_tokens = cache_tokens
        self.model = LatencyModel()
        self.in_flight = InFlight()
        self.slot = index.add(cache_tokens)
        self._index = index
        self._clock = clock
        self._holders = 0
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

    def features(self, tokens: int, uncached: int) -> Features:
        """What a prompt would meet here now."""
        load = self.in_flight
        lacking = load.held_tokens + tokens + self.model.output_tokens - self.cache_tokens
        return features(
            load.waiting_tokens,
            uncached,
            tokens,
            load.decoding,
            load.held_tokens,
            lacking=lacking if lacking > 0 else 0.0,
        )

    def predict(self, tokens: int, uncached: int) -> float:
        """Seconds to the first token of a prompt sent here now, 0..3600; where `model.doubt` is None.

        `model.predict` of `features`, written out: every decision asks this of each candidate.
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

    async def ask(self, backend: Backend, call: Call, demand: Demand) -> Reply:
        """`backend.send`, counted and learned from. Raises: what it raises."""
        trip = self.begin(demand, self._clock.now())
        try:
            reply = await backend.send(call)
        except BaseException:
            trip.end()
            raise
        if reply.stream is None or reply.status >= 400:
            trip.end()
            if reply.status < 400 and call.facts.usage is not None:
                self.model.observe_output(call.facts.usage.completion_tokens)
            return reply
        self.first_token(trip, self._first_at(call.facts, trip))
        if reply.stream.end is not None:
            trip.end()
        reply.stream.on_end.append(partial(self._stream_ended, trip, call.facts))
        return reply

    def begin(self, demand: Demand, now: float) -> Trip:
        """An attempt goes out; from now on its prompt is likely to be cached here. The trip's `end` must follow."""
        if demand.matched is None:
            demand.matched = self._index.match(demand.blocks)
        tokens = demand.tokens
        uncached = demand.uncached(self.slot)
        met = self.features(tokens, uncached)
        if demand.blocks:
            self._prompt_tokens += tokens
            self._matched_tokens += tokens - uncached
            self._index.store(self.slot, demand.blocks, demand.ends)
        held = tokens + int(self.model.output_tokens)
        return Trip(self.in_flight, uncached, held, is_stream=demand.is_stream, features=met, sent_at=now)

    def first_token(self, trip: Trip, now: float) -> None:
        """A stream has begun."""
        trip.first_token(now)
        if trip.first_at is not None:
            self.model.observe(trip.features, now - trip.sent_at)

    def finish(self, trip: Trip, num_tokens: int, now: float) -> None:
        """An answer of so many tokens is whole; 0 where nobody knows."""
        trip.end()
        self.model.observe_output(num_tokens)
        if trip.first_at is not None:
            self.model.observe_stream(num_tokens, now - trip.first_at)

    def statistics(self) -> ReplicaStatistics:
        """A snapshot."""
        model = self.model
        return ReplicaStatistics(
            name=self.name,
            doubt=model.doubt,
            error=model.error,
            residual=model.residual,
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

    def _first_at(self, facts: Facts, trip: Trip) -> float:
        """When the first token came: as the leaf says, unless that is of an attempt before this one."""
        said = facts.first_token_at
        return said if said is not None and said >= trip.sent_at else self._clock.now()

    def _stream_ended(self, trip: Trip, facts: Facts, how: StreamEnd) -> None:
        if how is StreamEnd.CLEAN and facts.usage is not None:
            self.finish(trip, facts.usage.completion_tokens, self._clock.now())
        else:
            trip.end()
