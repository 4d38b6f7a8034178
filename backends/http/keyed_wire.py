"""Asks an upstream with one of its keys, and with another one where it refuses that: nothing has been worked on then.

Used by the backends that have `api_keys`. Which key comes first is chosen in `backends/quotas/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from backends.answer_budget import HeldAnswer
from backends.clock import Clock
from backends.http.wire import TimeLimits, Wire, WireExchange
from backends.protocol import Call, Headers
from backends.quotas.told import tells_quota
from backends.quotas.upstream_key import UpstreamKey
from backends.quotas.upstream_keys import QuotaReservation, UpstreamKeys
from backends.stream import Receive
from backends.waits import asked_wait_s, told_in_body_s

_MAX_ERROR_BYTES = 1024**2
_FORBIDDEN, _EXHAUSTED = int(HTTPStatus.FORBIDDEN), int(HTTPStatus.TOO_MANY_REQUESTS)
_REFUSALS = frozenset({int(HTTPStatus.UNAUTHORIZED), int(HTTPStatus.PAYMENT_REQUIRED), _FORBIDDEN, _EXHAUSTED})
"""Who presents another key may be told something else."""
_TOO_LARGE = b"equest too large"


class KeyedWire:
    """One backend's connections, with the keys to choose from."""

    def __init__(self, wire: Wire, keys: UpstreamKeys, clock: Clock) -> None:
        self._wire = wire
        self._keys = keys
        self._clock = clock

    async def send(
        self,
        call: Call,
        target: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        limits: TimeLimits,
    ) -> WireExchange:
        """As `Wire.send`, for that call; `headers` have no key yet.

        An answer that refuses a key is given back where there is no other to ask with, and the key is left out.
        Raises: as `Wire.send`, and UpstreamExhausted where no key has anything left.
        """
        reserved = self._reservation(call)
        model = reserved.demand.model
        tried: list[UpstreamKey] = []
        forbidden: list[UpstreamKey] = []
        while True:
            key = reserved.key
            tried.append(key)
            exchange = await self._wire.send(call.method, target, [*headers, *key.fields], body, limits)
            if tells_quota(exchange.headers):
                self._keys.note(key, model, exchange.headers, reserved.taken)
            if exchange.status not in _REFUSALS:
                key.work()
                for each in forbidden:
                    # It was not for the call itself: with this key it may be asked.
                    each.forbid(model, self._clock.now())
                return exchange
            refusal = await _read(exchange)
            if refusal.status == _FORBIDDEN:
                forbidden.append(key)
            elif not _is_the_calls_own(call, refusal):
                self._leave_out(key, model, refusal)
            other = self._keys.choose_other(reserved, tried)
            if other is None:
                return refusal
            reserved.move_to(other, self._clock.now())

    def _leave_out(self, key: UpstreamKey, model: str, refusal: _ReadExchange) -> None:
        now = self._clock.now()
        if refusal.status == _EXHAUSTED:
            asked_s = asked_wait_s(refusal.headers, self._clock.wall())
            key.exhaust(model, told_in_body_s(refusal.whole) if asked_s is None else asked_s, now)
        else:
            key.reject(now)

    def _reservation(self, call: Call) -> QuotaReservation:
        """What admission has reserved for the call, or else now; it is settled with the attempt's charge."""
        facts = call.facts
        reserved, facts.reservation = facts.reservation, None
        if not isinstance(reserved, QuotaReservation) or reserved.keys is not self._keys:
            reserved = self._keys.reserve(call, call.model)
        if facts.attempt_charge is not None:
            facts.attempt_charge.when_settled(reserved.settle)
        return reserved


class _ReadExchange:
    """An answer that was read to its end."""

    def __init__(self, status: int, headers: Headers, whole: bytes) -> None:
        self.status = status
        self.headers = headers
        self.whole = whole
        self.idle_s = 0.0
        self._rest = whole

    async def read(self) -> bytes:
        """What is left of it."""
        piece, self._rest = self._rest, b""
        return piece

    async def forward(self, receive: Receive) -> bool:
        """All at once."""
        return bool(receive(await self.read()))

    async def body(self, max_bytes: int, held: HeldAnswer | None = None) -> bytes:
        """All of it: it is an error and not long."""
        return await self.read()

    async def aclose(self) -> None:
        """Nothing: its connection has been given back."""


def _is_the_calls_own(call: Call, refusal: _ReadExchange) -> bool:
    """Whether the key is fine for other calls: no caller may take it from them.

    A call larger than a minute's tokens is refused with 429 by OpenAI, with all of the quota left. And what passes
    through unread may want rights that a key need not have.
    """
    if refusal.status == _EXHAUSTED:
        return _TOO_LARGE in refusal.whole
    return not call.operation.traits.is_understood


async def _read(exchange: WireExchange) -> _ReadExchange:
    try:
        return _ReadExchange(exchange.status, exchange.headers, await exchange.body(_MAX_ERROR_BYTES))
    finally:
        await exchange.aclose()
