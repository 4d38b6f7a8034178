"""One way to answer a call: a backend, what it takes, and how long it has been seen to take.

To learn costs nothing: every call that goes this way is looked at, whoever has sent it here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from backends.clock import Clock
from backends.errors import Overloaded, SlipstreamError
from backends.protocol import Backend, Call, Reply, Slo
from backends.stream import StreamEnd
from policies.pool.load.in_flight import InFlightAttempt
from policies.pool.load.match import Match
from policies.pool.load.replica import Replica
from policies.pool.prompts.prefix_index import PrefixIndex
from policies.prices.price import Price
from policies.speculation.auto.forecast import Forecast, TimeSpread

_NO_BOUND = 10**9
"""Tokens that there is room for, as far as anybody knows."""
_FIRST_REST_S, _LAST_REST_S = 1.0, 60.0
"""How long a way is left that has failed, doubled each time."""

Prices = Callable[[str], tuple[Price | None, ...]]
"""What those who may answer take for a call that asks for that model."""


class Action:
    """A way named `name`, through `backend`, all of which is taken for one."""

    def __init__(self, name: str, backend: Backend, prices: Prices, clock: Clock) -> None:
        self.name = name
        self.backend = backend
        self.replica = Replica(name, _NO_BOUND, PrefixIndex(), clock)
        self._prices = prices
        self._clock = clock
        self._first, self._gap = TimeSpread(), TimeSpread()
        self._rests_until = self._rest_s = 0.0

    def forecast(
        self,
        match: Match,
        call: Call,
        slo: Slo,
        output_tokens: float,
        loss: float = 0.0,
        *,
        wants_late_s: bool = True,
    ) -> Forecast | None:
        """What it would be for that call, with an answer of about so many tokens, at least one. None where it is out of
        the question: it has just failed, or nobody knows what it takes. Seconds beyond the limit where they are wanted.
        """
        if self._clock.now() < self._rests_until:
            return None
        tokens = match.demand.tokens
        cost = self._cost(call.model, tokens, output_tokens)
        if cost is None:
            return None
        first_s = self.replica.expected_s(match)
        if first_s is None:
            return Forecast(self.name, cost, None, loss=loss, in_flight=self.replica.in_flight.requests)
        model, spread = self.replica.model, self._first
        limit_s = slo.first_token_limit_s(tokens)
        if match.demand.is_stream:
            gap_s = model.gap_s(self.replica.in_flight.held_tokens + tokens + output_tokens)
            longest_s, share = slo.total_s / output_tokens, spread.share_within(first_s, limit_s)
            share *= self._gap.share_within(gap_s, slo.token_gap_s if slo.token_gap_s < longest_s else longest_s)
        else:
            limit_s = min(limit_s + slo.token_gap_s * output_tokens, slo.total_s)
            gap_s, share = 0.0, spread.share_within(first_s, limit_s)
        late_s = spread.expected_over_s(first_s, limit_s) if wants_late_s else 0.0
        return Forecast(self.name, cost, 0.0 if model.is_degraded else share, first_s, gap_s, late_s, loss)

    async def send(self, call: Call, match: Match) -> Reply:
        """Answer this way, and see how long it takes. Raises: as the backend."""
        expected_s = self.replica.expected_s(match)
        counted = self.replica.begin(match, self._clock.now())
        try:
            reply = await self.backend.send(call)
        except BaseException as error:
            counted.end()
            if isinstance(error, SlipstreamError) and not isinstance(error, Overloaded):
                self.rest()
            raise
        if reply.status >= 500:
            self.rest()
        self.seen(counted, expected_s, reply, call)
        return reply

    def seen(self, counted: InFlightAttempt, expected_s: float | None, reply: Reply, call: Call) -> None:
        """The reply is there."""
        self.replica.answered(counted, reply, call)
        if reply.status >= 400:
            return
        if reply.stream is None:
            self._rest_s = 0.0
        now = self._clock.now()
        said = call.facts.first_token_at
        first_at = said if reply.stream is not None and said is not None and said >= counted.sent_at else now
        if expected_s is not None:
            self._first.observe(expected_s, first_at - counted.sent_at)
        if reply.stream is not None:
            gap_s = self.replica.model.gap_s(self.replica.in_flight.held_tokens)
            reply.stream.on_end.append(partial(self._stream_ended, call, first_at, gap_s))

    def rest(self) -> None:
        """It has failed: it is left for a second, then longer."""
        self._rest_s = min(max(_FIRST_REST_S, 2 * self._rest_s), _LAST_REST_S)
        self._rests_until = self._clock.now() + self._rest_s

    def _cost(self, model: str, tokens: int, output_tokens: float) -> float | None:
        """Pico-dollars: of the dearest of those who may answer; None where nobody knows that of one."""
        most = 0.0
        for price in self._prices(model):
            if price is None:
                return None
            cost = price.expected(tokens, tokens, output_tokens)
            most = cost if cost > most else most
        return most

    def _stream_ended(self, call: Call, first_at: float, gap_s: float, how: StreamEnd) -> None:
        if how is StreamEnd.CLEAN:
            self._rest_s = 0.0
        usage = call.facts.usage
        if how is StreamEnd.CLEAN and usage is not None and usage.completion_tokens > 1 and gap_s > 0:
            self._gap.observe(gap_s, (self._clock.now() - first_at) / (usage.completion_tokens - 1))
