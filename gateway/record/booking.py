"""What the ledger is told of each call: that it has begun, and in the end a row of what came of it.

Only calls that a route has taken are in the ledger; whoever is turned away at the door uses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from backends.clock import Clock
from backends.protocol import Charge, Pricing, Priority, Usage
from backends.stream import StreamEnd
from gateway.ledger.ledger import Ledger
from gateway.ledger.row import WORKER_KILLED, Row
from gateway.record.exchange import Exchange, Observer, bounded, outcome_of
from gateway.record.fault import fault_of
from gateway.record.savings import note_answer, note_extra, note_given
from gateway.record.savings_metrics import SavingsMetrics

_OF_THE_CALL = (
    *("request_id", "key", "tenant", "team", "tags", "user", "session", "agent"),
    *("route", "operation", "model", "stream", "priority"),
)
"""What further parts say as their call does, so that sums by any of it have them too."""

_PRIORITIES = tuple(priority.name.lower() for priority in Priority)
_CLEAN = StreamEnd.CLEAN
_FIRST_EXTRA = 1000
"""The first part of what is asked because of calls, beside them: behind all attempts of one."""


class Booking:
    """Of one process. `begins` goes before the stack is asked, `ends` behind the last byte of the answer."""

    def __init__(self, ledger: Ledger, clock: Clock, observer: Observer, savings: SavingsMetrics) -> None:
        self._ledger = ledger
        self._clock = clock
        self._extra_parts = count(_FIRST_EXTRA)
        self._observer = observer
        self._savings = savings
        self._accepted = 0
        """Pico-dollars of calls, as far as the journal has them."""

    def begins(self, exchange: Exchange) -> None:
        """The call is about to be sent. Its row goes with the exchange, and into the journal as if it had no end."""
        clock, principal = self._clock, exchange.principal
        # To name or set them one by one takes a struct several times as long.
        row = exchange.row = Row(
            self._ledger.number(),
            0,
            int((clock.wall() - clock.now() + exchange.started_at) * 1e6),
            exchange.request_id,
            "call",
            principal.key,
            principal.tenant,
            principal.team,
            principal.tags,
            bounded(exchange.user) or "",
            exchange.session,
            exchange.agent,
            exchange.route,
            exchange.operation,
            "",
            exchange.model,
            "",
            exchange.stream,
        )
        row.priority = _PRIORITIES[exchange.priority]
        row.end = WORKER_KILLED
        row.fault = "gateway"
        row.estimated = True
        self._ledger.begin(row)
        exchange.facts.extra = partial(self._add_extra, row, exchange.facts.extra)

    def next_call(self) -> tuple[int, int]:
        """The number and the time of a call that was no exchange of its own."""
        return self._ledger.number(), int(self._clock.wall() * 1e6)

    def note(self, row: Row) -> None:
        """The row of such a call, which begins and ends at once."""
        self._ledger.note(row)
        self._savings.note(row)

    def drift(self) -> int:
        """How many pico-dollars more the metrics have than the journal: two ways to count the same, so it must be 0."""
        return self._observer.counted() - self._accepted

    def ends(self, exchange: Exchange) -> None:
        """The call is over; one that no route took is not told of."""
        row = exchange.row
        if row is None:
            return
        facts = exchange.facts
        now = self._clock.now()
        row.estimated = False
        row.backend = facts.backend or ""
        row.served = bounded(facts.upstream_model) or ""
        row.cache = facts.cache or ""
        row.end = end = facts.stream_end or (_CLEAN if exchange.error_code is None else StreamEnd.ERROR)
        row.status = exchange.status
        row.error = exchange.error_code or ""
        is_fine = end is _CLEAN and exchange.status < 400
        row.fault = "" if is_fine else fault_of(exchange.status, exchange.fault, end)
        usage = facts.usage
        charges = facts.charges or ()
        answered = _answered(charges, facts.backend)
        if answered is None:
            # Nobody was asked for this call: what a cache had of it, or another call.
            _count(row, usage)
            row.cost = 0
            note_given(row, _asked(exchange), usage, facts.cache)
        elif answered.is_settled:
            row.estimated = answered.is_estimated
            row.cost = answered.cost
            row.price = _name_of_price(answered)
            _count(row, answered.usage)
            note_answer(row, _asked(exchange), answered)
        else:
            # What it comes to is a part of its own, at its end.
            row.cost = 0
            note_given(row, None, None, None)
        if exchange.stream and facts.first_token_at is not None:
            row.ttft_us = int((facts.first_token_at - exchange.started_at) * 1e6)
            if usage is not None and usage.completion_tokens > 1:
                row.tpot_us = int((now - facts.first_token_at) * 1e6 / (usage.completion_tokens - 1))
        if facts.waited_s is not None:
            row.queue_us = int(facts.waited_s * 1e6)
        if facts.sent_at is not None:
            row.sent_us = int((facts.sent_at - exchange.started_at) * 1e6)
        row.attempts = facts.attempts
        if facts.speculation is not None:
            row.drafted_tokens, row.accepted_tokens = facts.speculation.drafted, facts.speculation.accepted
        row.total_us = int((now - exchange.started_at) * 1e6)
        if exchange.slo is not None and (outcome := outcome_of(exchange)) is not None:
            row.in_slo = outcome == "met"
        self._account(row)
        for part, charge in enumerate(charges, start=1):
            if charge is not answered or not charge.is_settled:
                late = _asked(exchange) if charge is answered else None
                charge.when_settled(partial(self._add_part, row, part, is_answer=charge is answered, asked=late))

    def _add_extra(self, row: Row, told: Callable[[Charge], None] | None, charge: Charge) -> None:
        """What the gateway has asked because of the call, beside it; somebody else may want to know of it too."""
        if told is not None:
            told(charge)
        charge.when_settled(partial(self._observer.charges.count, row.route))
        charge.when_settled(partial(self._add_part, row, next(self._extra_parts), is_answer=False, asked=None))

    def _add_part(self, row: Row, part: int, charge: Charge, *, is_answer: bool, asked: Pricing | None) -> None:
        """Another attempt of the call, or one that has ended only now, for others who joined the call."""
        if charge.usage is None:
            return
        further = Row(n=row.n, part=part, at_us=row.at_us, backend=charge.backend)
        for name in _OF_THE_CALL:
            setattr(further, name, getattr(row, name))
        further.served = bounded(charge.model) or ""
        further.estimated = charge.is_estimated
        further.cost = charge.cost
        further.price = _name_of_price(charge)
        _count(further, charge.usage)
        if is_answer:
            note_answer(further, asked, charge)
        else:
            note_extra(further)
        self._account(further)

    def _account(self, row: Row) -> None:
        if self._ledger.note(row) and row.cost:
            self._accepted += row.cost
        self._savings.note(row)


def _asked(exchange: Exchange) -> Pricing | None:
    return None if exchange.asked_prices is None else exchange.asked_prices.of(exchange.model)


def _answered(charges: Sequence[Charge], backend: str | None) -> Charge | None:
    """The attempt that the call was answered with, or that failed last; None where there was none."""
    for charge in reversed(charges):
        if charge.backend == backend:
            return charge
    return charges[-1] if charges else None


def _name_of_price(charge: Charge) -> str:
    return charge.price.name if charge.price is not None and charge.usage is not None else ""


def _count(row: Row, usage: Usage | None) -> None:
    if usage is not None:
        row.input_tokens = usage.prompt_tokens
        row.cached_tokens = usage.cached_tokens
        row.written_5m_tokens = usage.written_5m_tokens
        row.written_1h_tokens = usage.written_1h_tokens
        row.output_tokens = usage.completion_tokens
        row.reasoning_tokens = usage.reasoning_tokens
        row.audio_tokens = usage.audio_input_tokens + usage.audio_output_tokens
        row.image_tokens = usage.image_input_tokens + usage.image_output_tokens
