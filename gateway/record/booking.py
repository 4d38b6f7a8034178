"""What the ledger is told of each call: that it has begun, and in the end a row of what came of it.

Only calls that a route has taken are in the ledger; whoever is turned away at the door uses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import floor
from typing import Any, TypeAlias

from backends.charges.charge import Charge, Pricing
from backends.charges.usage import Usage
from backends.clock import Clock
from backends.protocol import Priority
from backends.stream import StreamEnd
from gateway.ledger.ledger import Ledger
from gateway.ledger.row import TOKENS, Beginning, Row
from gateway.record.exchange import Exchange, Observer, bounded, outcome_of
from gateway.record.fault import fault_of
from gateway.record.savings import costs_list_price, note_answer, note_extra, note_given
from gateway.record.savings_metrics import SavingsMetrics
from policies.turn_end import TurnEnd

_OF_THE_CALL = (
    *("n", "at_us", "request_id", "key", "tenant", "team", "tags", "user", "session", "agent"),
    *("route", "operation", "model", "stream", "priority"),
)
"""What further parts say as their call does, so that sums by any of it have them too."""

_PRIORITIES = tuple(priority.name.lower() for priority in Priority)
_CLEAN = StreamEnd.CLEAN
_COUNTED = TOKENS[: TOKENS.index("drafted_tokens")]
"""What its usage tells of an attempt."""
_Counts: TypeAlias = tuple[int, int, int, int, int, int, int, int]
_NOTHING_COUNTED = Usage()
_FIRST_EXTRA = 1000
"""The first part of what is asked because of calls, beside them: behind all attempts of one."""


class Booking:
    """Of one process. `begins` goes before the stack is asked, `ends` behind the last byte of the answer; the rows of
    calls that end in one turn of the event loop are noted together, at its end, and only then these bytes go out: who
    has an answer whole has its row, whenever the process is killed.
    """

    def __init__(self, ledger: Ledger, clock: Clock, observer: Observer, savings: SavingsMetrics) -> None:
        self._ledger = ledger
        self._clock = clock
        self._extra_parts = count(_FIRST_EXTRA)
        self._observer = observer
        self._savings = savings
        self._ended = TurnEnd(self._end, ledger.failures)
        self._noted = TurnEnd(self._let_go, ledger.failures)
        self._accepted = 0
        """Pico-dollars of calls, as far as the journal has them."""

    def begins(self, exchange: Exchange) -> None:
        """The call is about to be sent: the journal has what its row will say should it have no end."""
        clock, principal, facts, grant = self._clock, exchange.principal, exchange.facts, exchange.grant
        # To name or set them one by one takes a struct several times as long.
        beginning = exchange.beginning = Beginning(
            self._ledger.number(),
            0,
            floor((clock.wall() - clock.now() + exchange.started_at) * 1e6),
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
            _PRIORITIES[exchange.priority],
            None if grant is None else grant.worst,
        )
        self._ledger.begin(beginning)
        facts.extra = self._adding(beginning, facts.extra)

    def next_call(self) -> tuple[int, int]:
        """The number and the time of a call that was no exchange of its own."""
        return self._ledger.number(), int(self._clock.wall() * 1e6)

    def note(self, row: Row) -> None:
        """The row of such a call, which begins and ends at once."""
        self._ledger.note(row)

    def count(self, row: Row) -> None:
        """What it has saved, once that is certain."""
        self._savings.note(row)

    def drift(self) -> int:
        """How many pico-dollars more the metrics have than the journal: two ways to count the same, so it must be 0."""
        self.flush()
        return self._observer.counted() - self._accepted

    def ends(self, exchange: Exchange, then: Callable[[], None] | None = None) -> None:
        """The call is over, and `finished_at` says when; one that no route took is not told of. `then` is called once
        it is noted.
        """
        if exchange.beginning is not None:
            self._ended.add(exchange)
            if then is not None:
                self._noted.add(then)
        elif then is not None:
            then()

    def flush(self) -> None:
        """Note now what is over."""
        self._ended.flush()
        self._noted.flush()

    def _let_go(self, then: Callable[[], None]) -> None:
        # A row may have come due since the turn's rows were noted, and what waits for it with the turn's others.
        self._ended.flush()
        then()

    def _end(self, exchange: Exchange) -> None:
        begun = exchange.beginning
        assert begun is not None, "it has begun"
        facts = exchange.facts
        now, started_at = exchange.finished_at, exchange.started_at
        end = facts.stream_end or (_CLEAN if exchange.error_code is None else StreamEnd.ERROR)
        is_fine = end is _CLEAN and exchange.status < 400
        usage = facts.usage
        charges = facts.charges or ()
        answered = _answered(charges, facts.backend)
        # What is not settled comes to a part of its own, at its end.
        charge = answered if answered is not None and answered.is_settled else None
        counted = usage if answered is None else None if charge is None else charge.usage
        if counted is None:
            counted = _NOTHING_COUNTED
        asked = None if exchange.asked_prices is None else exchange.asked_prices.of(exchange.model)
        is_as_listed = charge is not None and costs_list_price(asked, charge)
        saved = 0 if is_as_listed else None
        ttft_us = tpot_us = None
        if exchange.stream and facts.first_token_at is not None:
            ttft_us = floor((facts.first_token_at - started_at) * 1e6)
            if usage is not None and usage.completion_tokens > 1:
                tpot_us = floor((now - facts.first_token_at) * 1e6 / (usage.completion_tokens - 1))
        outcome = outcome_of(exchange) if exchange.slo is not None else None
        speculation = facts.speculation
        row = Row(
            begun.n,
            0,
            begun.at_us,
            begun.request_id,
            begun.kind,
            begun.key,
            begun.tenant,
            begun.team,
            begun.tags,
            begun.user,
            begun.session,
            begun.agent,
            begun.route,
            begun.operation,
            facts.backend or "",
            begun.model,
            bounded(facts.upstream_model) or "",
            begun.stream,
            facts.cache or "",
            end,
            exchange.status,
            exchange.error_code or "",
            "" if is_fine else fault_of(exchange.status, exchange.fault, end),
            *_counted(counted),
            False if charge is None else charge.is_estimated,
            0 if charge is None else charge.cost,
            charge.cost if charge is not None and is_as_listed else None,
            "" if charge is None else _name_of_price(charge),
            # What else it saved is not known yet.
            saved,
            saved,
            saved,
            saved,
            saved,
            saved,
            saved,
            saved,
            saved,
            ttft_us,
            tpot_us,
            None if facts.waited_s is None else floor(facts.waited_s * 1e6),
            floor((now - started_at) * 1e6),
            None if outcome is None else outcome == "met",
            None if facts.sent_at is None else floor((facts.sent_at - started_at) * 1e6),
            facts.attempts,
            0 if speculation is None else speculation.drafted,
            0 if speculation is None else speculation.accepted,
            begun.priority,
        )
        if charge is None:
            # Where nobody was asked for this call a cache had something of it, or another call.
            note_given(row, *((asked, usage, facts.cache) if answered is None else (None, None, None)))
        elif not is_as_listed:
            note_answer(row, asked, charge)
        self._account(row)
        if charge is None or len(charges) > 1:
            for part, other in enumerate(charges, start=1):
                if other is not charge:
                    late = asked if other is answered else None
                    other.when_settled(partial(self._add_part, begun, part, is_answer=other is answered, asked=late))

    def _adding(self, begun: Beginning, told: Callable[[Charge], None] | None) -> Callable[[Charge], None]:
        return lambda charge: self._add_extra(begun, told, charge)

    def _add_extra(self, begun: Beginning, told: Callable[[Charge], None] | None, charge: Charge) -> None:
        """What the gateway has asked because of the call, beside it; somebody else may want to know of it too."""
        if told is not None:
            told(charge)
        charge.when_settled(partial(self._observer.charges.count, begun.route))
        charge.when_settled(partial(self._add_part, begun, next(self._extra_parts), is_answer=False, asked=None))

    def _add_part(self, begun: Beginning, part: int, charge: Charge, *, is_answer: bool, asked: Pricing | None) -> None:
        """Another attempt of the call, or one that has ended only now, for others who joined the call."""
        if charge.usage is None:
            return
        counted: dict[str, Any] = dict(zip(_COUNTED, _counted(charge.usage), strict=True))
        further = Row(
            **{name: getattr(begun, name) for name in _OF_THE_CALL},
            **counted,
            part=part,
            backend=charge.backend,
            served=bounded(charge.model) or "",
            estimated=charge.is_estimated,
            cost=charge.cost,
            price=_name_of_price(charge),
        )
        if is_answer:
            note_answer(further, asked, charge)
        else:
            note_extra(further)
        self._account(further)

    def _account(self, row: Row) -> None:
        if self._ledger.note(row) and row.cost:
            self._accepted += row.cost
        self._savings.note(row)


def _answered(charges: Sequence[Charge], backend: str | None) -> Charge | None:
    """The attempt that the call was answered with, or that failed last; None where there was none."""
    if len(charges) == 1:
        return charges[0]
    for charge in reversed(charges):
        if charge.backend == backend:
            return charge
    return charges[-1] if charges else None


def _name_of_price(charge: Charge) -> str:
    return charge.price.name if charge.price is not None and charge.usage is not None else ""


def _counted(usage: Usage) -> _Counts:
    """`_COUNTED`, in that order."""
    return (
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.written_5m_tokens,
        usage.written_1h_tokens,
        usage.completion_tokens,
        usage.reasoning_tokens,
        usage.audio_input_tokens + usage.audio_output_tokens,
        usage.image_input_tokens + usage.image_output_tokens,
    )
