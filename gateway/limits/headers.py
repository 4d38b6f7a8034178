"""What headers say of limits: those of OpenAI, for the rate of each kind of which the smallest share is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import floor

from backends.protocol import Headers
from policies.limits.plan import AskPlan, RatePlace
from policies.limits.rules import Reached

_PREFIX = b"x-ratelimit-"
_NAMES: Mapping[Reached, tuple[bytes, bytes, bytes]] = {
    "requests": (b"x-ratelimit-limit-requests", b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests"),
    "tokens": (b"x-ratelimit-limit-tokens", b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens"),
}


def rate_headers(plan: AskPlan, left: Sequence[int]) -> Headers:
    """`x-ratelimit-limit-*`, `-remaining-*` and `-reset-*` for requests and for tokens, as far as these are limited.

    `left` is for each ask of the plan what remains, which may be sent at once, below zero where that has to flow in
    first; in `reset` it is full again.
    """
    headers: Headers = []
    for kind, places in plan.rates:
        rate = places[0] if len(places) == 1 else _scarcest(places, left)
        headers += _fields(kind, rate, left[rate.place])
    return headers


def _scarcest(places: Sequence[RatePlace], left: Sequence[int]) -> RatePlace:
    return min(places, key=lambda rate: left[rate.place] / rate.capacity)


@lru_cache(maxsize=4096)
def _fields(kind: Reached, rate: RatePlace, left: int) -> tuple[tuple[bytes, bytes], ...]:
    """Of one rate. Of requests there are no more than its bucket holds, so most have been made before."""
    limit, remaining, reset = _NAMES[kind]
    return (
        (limit, rate.told),
        (remaining, b"%d" % left if left > 0 else b"0"),
        (reset, duration((rate.capacity - left) * rate.each_s)),
    )


def without_rates(headers: Headers) -> Headers:
    """Those of an upstream without what it says of its own limits."""
    return [field for field in headers if not field[0].startswith(_PREFIX)]


def duration(seconds: float) -> bytes:
    """As OpenAI writes it: 12ms, 1s, 6m0s, 1h2m3s."""
    if seconds <= 0:
        return b"0ms"
    if seconds < 1:
        return b"%dms" % floor(seconds * 1e3 + 0.5)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return b"%dh%dm%ds" % (hours, minutes, rest)
    return b"%dm%ds" % (minutes, rest) if minutes else b"%ds" % rest
