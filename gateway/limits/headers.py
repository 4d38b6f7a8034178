"""What headers say of limits: those of OpenAI, for the rate of each kind of which the smallest share is left."""

from __future__ import annotations

from collections.abc import Sequence

from backends.protocol import Headers
from policies.limits.counters import Rate, Want
from policies.limits.rules import Ask

_PREFIX = b"x-ratelimit-"
_NAMES = tuple(
    (kind, _PREFIX + b"limit-" + name, _PREFIX + b"remaining-" + name, _PREFIX + b"reset-" + name)
    for kind, name in (("requests", b"requests"), ("tokens", b"tokens"))
)


def rate_headers(wants: Sequence[Want], asks: Sequence[Ask], left: Sequence[int]) -> Headers:
    """`x-ratelimit-limit-*`, `-remaining-*` and `-reset-*` for requests and for tokens, as far as these are limited.

    What remains is what may be sent at once; in `reset` it is full again.
    """
    headers: Headers = []
    for kind, limit, remaining, reset in _NAMES:
        tightest: tuple[float, Rate, int] | None = None
        for want, ask, rest in zip(wants, asks, left, strict=True):
            if ask.kind == kind and type(want) is Rate:
                share = rest / want.capacity
                if tightest is None or share < tightest[0]:
                    tightest = share, want, rest
        if tightest is not None:
            _, rate, rest = tightest
            headers.append((limit, b"%d" % rate.per_minute))
            headers.append((remaining, b"%d" % rest))
            headers.append((reset, duration((rate.capacity - rest) * 60 / rate.per_minute)))
    return headers


def without_rates(headers: Headers) -> Headers:
    """Those of an upstream without what it says of its own limits."""
    return [field for field in headers if not field[0].startswith(_PREFIX)]


def duration(seconds: float) -> bytes:
    """As OpenAI writes it: 12ms, 1s, 6m0s, 1h2m3s."""
    if seconds < 1:
        return b"%dms" % round(seconds * 1e3)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return b"%dh%dm%ds" % (hours, minutes, rest)
    return b"%dm%ds" % (minutes, rest) if minutes else b"%ds" % rest
