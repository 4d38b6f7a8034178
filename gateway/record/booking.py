"""What the ledger is told of each call: that it has begun, and in the end a row of what came of it.

Only calls that a route has taken are in the ledger; whoever is turned away at the door uses nothing.
"""

from __future__ import annotations

from backends.clock import Clock
from backends.protocol import Usage
from backends.stream import StreamEnd
from gateway.ledger.ledger import Ledger
from gateway.ledger.row import Beginning, Row
from gateway.record.exchange import Exchange, bounded, outcome_of

_NOTHING = Usage()


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
                operation=exchange.operation.value,
                model=exchange.model,
                stream=exchange.stream,
            )
        )

    def ends(self, exchange: Exchange) -> None:
        """The call is over; one that no route took is not told of."""
        if exchange.ledger_number is None:
            return
        facts, principal = exchange.facts, exchange.principal
        usage = facts.usage or _NOTHING
        started_at, now = exchange.started_at, self._clock.now()
        ttft_us = tpot_us = None
        if exchange.stream and facts.first_token_at is not None:
            ttft_us = int((facts.first_token_at - started_at) * 1e6)
            if usage.completion_tokens > 1:
                tpot_us = int((now - facts.first_token_at) * 1e6 / (usage.completion_tokens - 1))
        outcome = outcome_of(exchange) if exchange.slo is not None else None
        self._ledger.note(
            Row(
                n=exchange.ledger_number,
                at_us=exchange.wall_us,
                request_id=exchange.request_id,
                key=principal.key,
                tenant=principal.tenant,
                user=bounded(exchange.user) or "",
                route=exchange.route,
                operation=exchange.operation.value,
                backend=facts.backend or "",
                model=exchange.model,
                served=bounded(facts.upstream_model) or "",
                stream=exchange.stream,
                cache="" if facts.cache is None else facts.cache.value,
                end=_end(exchange),
                status=exchange.status,
                error=exchange.error_code or "",
                input_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                output_tokens=usage.completion_tokens,
                ttft_us=ttft_us,
                tpot_us=tpot_us,
                queue_us=None if facts.waited_s is None else int(facts.waited_s * 1e6),
                total_us=int((now - started_at) * 1e6),
                in_slo=None if outcome is None else outcome == "met",
            )
        )


def _end(exchange: Exchange) -> str:
    """How the answer ended, in the words of streams."""
    if exchange.facts.stream_end is not None:
        return exchange.facts.stream_end.value
    return (StreamEnd.CLEAN if exchange.error_code is None else StreamEnd.ERROR).value
