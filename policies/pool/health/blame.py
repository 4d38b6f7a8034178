"""Telling a backend's breaker how an attempt has ended; the pool calls it."""

from __future__ import annotations

from backends.stream import StreamEnd
from policies.pool.attempts.classify import Health, Outcome, failure_of
from policies.pool.health.breaker import CircuitBreaker


def report_end(breaker: CircuitBreaker, ticket: int, how: StreamEnd) -> None:
    """A clean end of a stream is a success, a client that left says nothing, all else is a failure."""
    if how is StreamEnd.CLEAN:
        breaker.succeed(ticket)
    elif how is StreamEnd.CLIENT_GONE:
        breaker.release(ticket)
    else:
        breaker.fail(ticket)


def report_failure(breaker: CircuitBreaker, ticket: int, outcome: Outcome) -> None:
    """An attempt that gave no answer: what its failure says about the backend."""
    health = failure_of(outcome).health
    if health is Health.BROKEN:
        breaker.fail(ticket)
    elif health is Health.WORKING:
        breaker.succeed(ticket)
    else:
        breaker.release(ticket)
