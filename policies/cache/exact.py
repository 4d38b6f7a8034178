"""The exact cache as a backend: identical calls get the same answer, in the form that each asks for.

A call is answered from the store, or by joining an identical call in flight, or by the inner backend.
"""

from __future__ import annotations

from functools import partial

from backends.clock import Clock
from backends.protocol import Backend, CacheOutcome, Call, Facts, Headers, Reply
from backends.stream import Stream, StreamEnd
from policies.acting import acts
from policies.cache.coalesce import Coalescer, Flight, FlightReader, Phase, again
from policies.cache.control import Control, parse_control
from policies.cache.entry import AnswerForm, Entry
from policies.cache.kept_objects import builds_on_deleted, forget_deleted, is_kept, note_object
from policies.cache.key import cache_key, identity_of
from policies.cache.record import Recorder, entry_of_body, entry_of_events, is_shareable, may_store, says_error
from policies.cache.replay.render import Replayed, content_type_of, render
from policies.cache.settings import CachePolicy
from policies.cache.store import Store
from policies.speculation.outcome import STAGE_HEADER
from policies.stage import Stage

_SHARED_STATUSES = frozenset({400, 404, 413, 422})
"""Errors that every identical call would get too."""

_MAX_FLIGHTS = 3
"""So many failing flights a call joins before it returns their failure."""


class ExactCache(Stage):
    """Answers repeated calls from `store`, and lets identical calls in flight share one upstream call.

    The store belongs to whoever opened it; it may serve several routes. `inner` is opened and closed with the cache.
    """

    def __init__(self, inner: Backend, policy: CachePolicy, store: Store, clock: Clock, route: str) -> None:
        super().__init__(inner)
        self._headers_read = inner.capabilities.headers
        self._scope = policy.scope
        self._epoch = policy.epoch
        self._honoured = frozenset(policy.client_control)
        self._ttl_s = policy.exact.ttl
        self._max_entry_bytes = policy.exact.max_entry
        self._is_hidden = policy.pacing != "off"
        # A call that joins a flight is answered sooner than one that does not, which would reveal the flight.
        self._coalesce = "off" if self._is_hidden else policy.exact.coalesce
        self._store = store
        self._clock = clock
        self._route = route
        self._coalescer = Coalescer(policy.exact.max_entry, clock)

    async def aclose(self) -> None:
        """Cancel every call in flight, then close the inner backend. Safe to call twice."""
        await self._coalescer.aclose()
        await super().aclose()

    async def send(self, call: Call) -> Reply:
        """Answer from the store, from a flight, or from the inner backend; `x-cache` and `facts.cache` say which.

        What a semantic cache within has answered passes as it is, and is never stored.

        Raises: what the backend within raises; TotalTimeout where a shared answer comes too late for this call.
        """
        # Who pushes drafts gets a stream with marks in it, which are of that stream only.
        if call.body is None or call.drafts or not call.operation.traits.is_understood:
            reply = await self._inner.send(call)
            await forget_deleted(self._store, call, reply.status, self._ttl_s)
            return reply
        control = parse_control(call.cache_control, self._honoured)
        # By an answer's id only the tenant whose call made it may go on, so only that one gets it.
        scope = "tenant" if self._scope == "global" and is_kept(call) else self._scope
        identity = identity_of(call, scope)
        key = None
        if identity is not None and control.may_write and not await self._is_stateful(call):
            key = cache_key(call, identity, self._route, self._epoch, self._headers_read)
        if key is None:
            call.facts.cache = CacheOutcome.BYPASS
            reply = await self._inner.send(call)
            reply.headers = _marked(reply.headers, CacheOutcome.BYPASS)
            return reply
        if not control.may_read:
            return await self._send_alone(call, key, CacheOutcome.REFRESH)
        began_at = self._clock.now()
        entry = self._store.get_nowait(key)
        hit = self._hit(entry, call, control) if entry is not None else None
        if hit is not None:
            call.facts.passed("cache.exact", began_at, self._clock, found="hit")
            return hit
        if self._coalesce != "off":
            return await self._send_shared(call, key, control, may_look_up=entry is None)
        if entry is None:
            hit, _ = await self._look_up(call, key, control)
        return hit or await self._send_alone(call, key, CacheOutcome.MISS)

    async def _is_stateful(self, call: Call) -> bool:
        # A stored answer that is to look new gets a new id, by which its upstream would not know it.
        is_unnameable = self._is_hidden and is_kept(call)
        return is_unnameable or acts(call) or await builds_on_deleted(self._store, call)

    async def _look_up(self, call: Call, key: bytes, control: Control) -> tuple[Reply | None, Entry | None]:
        """The answer in the store for this call, and what it was made of."""
        began_at = self._clock.now()
        entry = await self._store.get(key)
        hit = self._hit(entry, call, control) if entry is not None else None
        call.facts.passed("cache.exact", began_at, self._clock, found="miss" if hit is None else "hit")
        return hit, entry

    def _hit(self, entry: Entry, call: Call, control: Control) -> Reply | None:
        """The stored answer for this call, unless it is too old or cannot be converted faithfully to its form."""
        age_s = max(0.0, self._store.wall() - entry.created)
        if control.max_age_s is not None and age_s >= control.max_age_s:
            return None
        reply = _reply_of(entry, call, CacheOutcome.HIT)
        if reply is not None:
            reply.headers.append((b"age", b"%d" % age_s))
            call.facts.cache_age_s = age_s
        return reply

    async def _send_alone(self, call: Call, key: bytes, outcome: CacheOutcome) -> Reply:
        """Send this call to the inner backend without sharing it, and store the answer."""
        call.facts.cache = outcome
        reply = await self._inner.send(call)
        if call.facts.cache is CacheOutcome.SEMANTIC:
            return reply
        headers = reply.headers
        if reply.stream is None:
            self._keep(call, key, headers, entry_of_body(call, reply, self._store.wall()))
        elif is_shareable(reply.status, headers, AnswerForm.SSE):
            keep = partial(self._keep_events, call, key, headers)
            reply.stream.taps.append(Recorder(self._max_entry_bytes, keep))
        reply.headers = _marked(headers, outcome)
        return reply

    async def _send_shared(self, call: Call, key: bytes, control: Control, *, may_look_up: bool) -> Reply:
        """Join the flight of this key, or start it. A call starts at most one."""
        flight = None
        for _ in range(_MAX_FLIGHTS):
            flight = self._coalescer.flight(key)
            if flight is None:
                carry = partial(self._carry, key, control, may_look_up)
                return await self._lead(self._coalescer.depart(key, call, carry), call)
            reply = await self._follow(flight, call, key, control)
            if reply is not None:
                return reply
        assert flight is not None, "the loop has run"
        return _failure_of(flight, call.facts)

    async def _carry(self, key: bytes, control: Control, may_look_up: bool, flight: Flight) -> None:
        """Run a flight: look in the store, otherwise ask the inner backend, store the answer, and land."""
        call = flight.call
        if may_look_up:
            hit, entry = await self._look_up(call, key, control)
            if hit is not None:
                flight.land(hit, entry, is_stored_answer=True)
                return
        reply = await self._inner.send(call)
        if call.facts.cache is CacheOutcome.SEMANTIC:
            # The answer belongs to another question, so it is not stored, and each call of the flight looks again.
            flight.land(reply, None, is_stored_answer=True)
            return
        if reply.stream is None:
            entry = entry_of_body(call, reply, self._store.wall())
            self._keep(call, key, reply.headers, entry)
            flight.land(reply, entry)
            return
        # Kept at its end and not behind it: where the last reader leaves at the last event, there is nothing behind.
        reply.stream.on_end.append(partial(self._keep_flight, flight, key, reply))
        flight.answer(reply)
        try:
            while piece := await reply.stream.read():
                flight.feed(piece)
                if flight.is_oversize:
                    await flight.wait_for_room()
        finally:
            await reply.aclose()
        flight.land(reply, flight.entry)

    async def _lead(self, flight: Flight, call: Call) -> Reply:
        """The answer for the call that started the flight: the inner backend's, even if it is an error."""
        call.facts.cache = CacheOutcome.MISS
        reader = flight.join(call, reads=True)
        reply = None
        try:
            await reader.wait_until(Phase.ANSWERED)
            if flight.error is not None:
                raise flight.error
            assert flight.reply is not None, "a flight that has been answered has a reply"
            if flight.is_stored_answer:
                return flight.reply
            headers = _marked(flight.reply.headers, CacheOutcome.MISS)
            if flight.reply.stream is None:
                return Reply(flight.reply.status, headers, body=flight.reply.body)
            reply = Reply(flight.reply.status, headers, stream=Stream(reader, is_over=reader.is_over))
            return reply
        finally:
            if reply is None:
                flight.leave(reader)

    async def _follow(self, flight: Flight, call: Call, key: bytes, control: Control) -> Reply | None:
        """The answer for a call that joined; None if the flight failed before the call had received any of it."""
        is_live = call.stream and self._coalesce == "join_stream"
        reader = flight.join(call, reads=is_live)
        joined_at = self._clock.now()
        reply = None
        is_reading = False
        try:
            if is_live:
                await reader.wait_until(Phase.FLOWING)
                reply = _reply_of_live(flight, reader, call.facts)
                is_reading = reply is not None
            if not is_reading:
                reader.reads = False
                await reader.wait_until(Phase.LANDED)
                if _is_failed(flight):
                    return None
                reply = self._reply_of_landed(flight, call, control)
        finally:
            call.facts.passed("cache.join", joined_at, self._clock)
            if not is_reading:
                flight.leave(reader)
        return reply or await self._send_alone(call, key, CacheOutcome.MISS)

    def _reply_of_landed(self, flight: Flight, call: Call, control: Control) -> Reply | None:
        """The answer of a landed flight; None if it has not landed, because its answer is too large to wait for."""
        if flight.phase is Phase.LANDED and flight.reply is not None and flight.reply.status in _SHARED_STATUSES:
            return _failure_of(flight, call.facts)
        if flight.entry is None:
            return None
        if flight.is_stored_answer:
            return self._hit(flight.entry, call, control)
        return _reply_of(flight.entry, call, CacheOutcome.JOINED)

    def _keep(self, call: Call, key: bytes, headers: Headers, entry: Entry | None) -> None:
        if entry is not None and may_store(call, headers, entry, self._max_entry_bytes):
            self._store.put(key, entry, self._ttl_s)
            note_object(self._store, call, key, entry, self._ttl_s)

    def _keep_flight(self, flight: Flight, key: bytes, reply: Reply, how: StreamEnd) -> None:
        if how is StreamEnd.CLEAN and not flight.is_oversize and reply.status == 200:
            flight.entry = self._keep_events(flight.call, key, reply.headers, flight.body())

    def _keep_events(self, call: Call, key: bytes, headers: Headers, body: bytes) -> Entry | None:
        entry = entry_of_events(call, headers, body, self._store.wall())
        self._keep(call, key, headers, entry)
        return entry


def _is_failed(flight: Flight) -> bool:
    """Whether another attempt may succeed after this flight has failed."""
    reply = flight.reply
    if flight.error is not None or reply is None:
        return flight.error is not None
    if reply.status >= 400:
        return reply.status not in _SHARED_STATUSES
    return flight.entry is None and reply.body is not None and says_error(reply.body)


def _marked(headers: Headers, outcome: CacheOutcome) -> Headers:
    marked = [field for field in headers if field[0] != b"x-cache"]
    marked.append((b"x-cache", outcome.value.encode()))
    return marked


def _reply_of(entry: Entry, call: Call, outcome: CacheOutcome) -> Reply | None:
    """The entry as the answer to this call; None if it cannot be converted faithfully to its form."""
    body = render(entry, call)
    if body is None:
        return None
    call.facts.cache = outcome
    call.facts.usage = entry.usage
    headers = [(b"content-type", content_type_of(entry, call)), (b"x-cache", outcome.value.encode()), *entry.marks]
    if call.stream:
        return Reply(200, headers, stream=Stream(Replayed(body)))
    return Reply(200, headers, body=body)


def _reply_of_live(flight: Flight, reader: FlightReader, facts: Facts) -> Reply | None:
    """The running stream as the answer to another call; None if there is none or it cannot be shared."""
    reply = flight.reply
    if (
        flight.phase is not Phase.FLOWING
        or reply is None
        or not is_shareable(reply.status, reply.headers, AnswerForm.SSE)
    ):
        return None
    facts.cache = CacheOutcome.JOINED
    headers = [(b"content-type", reply.header(b"content-type") or b""), (b"x-cache", b"joined")]
    headers += [field for field in reply.headers if field[0] == STAGE_HEADER]
    return Reply(200, headers, stream=Stream(reader, is_over=reader.is_over))


def _failure_of(flight: Flight, facts: Facts) -> Reply:
    """The failure of the flight as the answer to another call: its error reply. Raises: its error."""
    facts.cache = CacheOutcome.JOINED
    if flight.error is not None:
        raise again(flight.error)
    assert flight.reply is not None, "a flight that landed without an error has a reply"
    body = flight.body() if flight.reply.body is None else flight.reply.body
    return Reply(flight.reply.status, _marked(flight.reply.headers, CacheOutcome.JOINED), body=body)
