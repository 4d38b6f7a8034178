"""What the ledger is told of each call: that it has begun, and in the end a row of what came of it.

Only calls that a route has taken are in the ledger; whoever is turned away at the door uses nothing.
"""

from __future__ import annotations

from backends.clock import Clock
from backends.stream import StreamEnd
from gateway.ledger.ledger import Ledger
from gateway.ledger.row import Beginning, Row
from gateway.record.exchange import Exchange, bounded, outcome_of


class Booking:
    """Of one process. `begins` goes before the stack is asked, `ends` behind the last byte of the answer."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    def begins(self, exchange: Exchange) -> None:
        """The call is about to be sent. Its number and time are kept with the exchange."""
        clock = self._clock
        number = exchange.ledger_number = self._ledger.number()
        exchange.wall_us = int((clock.wall() - clock.now() + exchange.started_at) * 1e6)
        principal = exchange.principal
        self._ledger.begin(
            Beginning(
                n=number,
                at_us=exchange.wall_us,
                request_id=exchange.request_id,
                key=principal.key,
                tenant=principal.tenant,
                user=bounded(exchange.user) or "",
                route=exchange.route,
                operation=exchange.operation,
                model=exchange.model,
                stream=exchange.stream,
            )
        )

    def next_call(self) -> tuple[int, int]:
        """The number and the time of a call that was no exchange of its own."""
        return self._ledger.number(), int(self._clock.wall() * 1e6)

    def note(self, row: Row) -> None:
        """The row of such a call, which begins and ends at once."""
        self._ledger.note(row)

    def ends(self, exchange: Exchange) -> None:
        """The call is over; one that no route took is not told of."""
        if exchange.ledger_number is None:
            return
        facts, principal = exchange.facts, exchange.principal
        now = self._clock.now()
        # To name fifty fields at once takes a struct longer than to set those that are known.
        row = Row(n=exchange.ledger_number, at_us=exchange.wall_us)
        row.request_id = exchange.request_id
        row.key = principal.key
        row.tenant = principal.tenant
        row.user = bounded(exchange.user) or ""
        row.route = exchange.route
        row.operation = exchange.operation
        row.backend = facts.backend or ""
        row.model = exchange.model
        row.served = bounded(facts.upstream_model) or ""
        row.stream = exchange.stream
        row.cache = facts.cache or ""
        row.end = facts.stream_end or (StreamEnd.CLEAN if exchange.error_code is None else StreamEnd.ERROR)
        row.status = exchange.status
        row.error = exchange.error_code or ""
        usage = facts.usage
        if usage is not None:
            row.input_tokens = usage.prompt_tokens
            row.cached_tokens = usage.cached_tokens
            row.output_tokens = usage.completion_tokens
        if exchange.stream and facts.first_token_at is not None:
            row.ttft_us = int((facts.first_token_at - exchange.started_at) * 1e6)
            if usage is not None and usage.completion_tokens > 1:
                row.tpot_us = int((now - facts.first_token_at) * 1e6 / (usage.completion_tokens - 1))
        if facts.waited_s is not None:
            row.queue_us = int(facts.waited_s * 1e6)
        row.total_us = int((now - exchange.started_at) * 1e6)
        if exchange.slo is not None and (outcome := outcome_of(exchange)) is not None:
            row.in_slo = outcome == "met"
        self._ledger.note(row)
