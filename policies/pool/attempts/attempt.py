"""One attempt of a call at one place of a pool, from its going out until its breaker knows how it went."""

from __future__ import annotations

from functools import partial

import msgspec

from backends.clock import Clock
from backends.errors import UpstreamError
from backends.protocol import Call, Reply
from policies.limits.worst import may_be_answered_by_another
from policies.pool.attempts.charging import settle_failure, settle_reply
from policies.pool.attempts.classify import Outcome
from policies.pool.attempts.first_content import wait_content
from policies.pool.attempts.patience import AttemptLimits
from policies.pool.health.blame import report_end, report_failure
from policies.pool.load.in_flight import InFlightAttempt
from policies.pool.load.match import Match
from policies.pool.place import Place


class Attempts:
    """Makes the attempts of one pool. With `holds_back` a stream is an answer once its first content is there."""

    def __init__(self, clock: Clock, limits: AttemptLimits, *, holds_back: bool) -> None:
        self._clock = clock
        self._limits = limits
        self._holds_back = holds_back

    async def make(
        self,
        place: Place,
        call: Call,
        match: Match | None,
        failed: Outcome | None = None,
        *,
        counted: InFlightAttempt | None = None,
        may_go_on: bool = False,
    ) -> Outcome:
        """Ask the member of that place, once `failed` is closed. An upstream's error is returned.

        `match`: where calls are counted; `counted`: where this attempt is already. With `may_go_on` there is somebody
        else to ask: it gets no more than its share of the time.
        """
        member, breaker, replica = place.member, place.breaker, place.replica
        facts = call.facts
        facts.attempts += 1
        facts.backend = member.backend.name
        whole = call
        model = member.model or call.model
        if may_go_on:
            call = self._limits.limited(call, model, place.patience)
        elif model != call.model:
            call = msgspec.structs.replace(call, model=model)
        facts.upstream_model = call.model
        facts.usage = None
        facts.is_usage_partial = False
        charge = facts.charge(member.backend.name, call.model, member.price_of(call.model))
        charge.is_kept_by_gateway = bool(call.prompt_cache_key)
        if member.prices is not None and may_be_answered_by_another(call.body):
            charge.price_of = member.prices.of
        sent_before = facts.sent_at
        began_at = self._clock.now()
        ticket = breaker.begin()
        try:
            if isinstance(failed, Reply):
                await failed.aclose()
            if counted is None and replica is not None and match is not None:
                counted = replica.begin(match, self._clock.now())
            reply = await member.backend.send(call)
            if self._holds_back and reply.status < 400 and call.operation.traits.writes_text:
                left_s = began_at + call.timeouts.first_token_s - self._clock.now()
                await wait_content(reply, call, left_s)
        except UpstreamError as error:
            if counted is not None:
                counted.end()
            settle_failure(charge, call, error, was_sent=facts.sent_at != sent_before)
            self._trace(call, charge.backend, began_at, error=error.code)
            if may_go_on:
                error, says_something = self._limits.given_up(call, whole, place.patience, error, began_at)
                if not says_something:
                    breaker.release(ticket)
                    return error
            report_failure(breaker, ticket, error)
            return error
        except BaseException as error:
            if counted is not None:
                counted.end()
            after_s = self._clock.now() - began_at
            settle_failure(charge, call, error, was_sent=facts.sent_at != sent_before, after_s=after_s)
            self._trace(call, charge.backend, began_at, error=type(error).__name__)
            breaker.release(ticket)
            raise
        settle_reply(charge, call, reply)
        self._trace(call, charge.backend, began_at, error=str(reply.status) if reply.status >= 400 else "")
        if counted is not None and replica is not None:
            replica.answered(counted, reply, call)
        if reply.status >= 400:
            report_failure(breaker, ticket, reply)
        elif reply.stream is None:
            breaker.succeed(ticket)
        else:
            if may_go_on:
                place.patience.was_in_time()
            reply.stream.on_end.append(partial(report_end, breaker, breaker.answering(ticket)))
        return reply

    def _trace(self, call: Call, backend: str, began_at: float, *, error: str) -> None:
        call.facts.passed("attempt", began_at, self._clock, backend=backend, model=call.model, error=error)
