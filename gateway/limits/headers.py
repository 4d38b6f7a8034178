"""What headers say of limits: those of OpenAI, for the rate of each kind of which the smallest share is left."""

from __future__ import annotations

from collections.abc import Sequence

from backends.protocol import Headers
from policies.limits.counters import Rate, Want
from policies.limits.rules import RulePart

_PREFIX = b"x-ratelimit-"


def rate_headers(wants: Sequence[Want], parts: Sequence[RulePart], left: Sequence[int]) -> Headers:
    """`x-ratelimit-limit-*`, `-remaining-*` and `-reset-*` for requests and for tokens, as far as these are limited.

    What remains is what may be sent at once; in `reset` it is full again.
    """
    tightest: dict[str, tuple[float, Rate, int]] = {}
    for want, part, rest in zip(wants, parts, left, strict=True):
        if type(want) is Rate:
            share = rest / want.capacity
            known = tightest.get(part.kind)
            if known is None or share < known[0]:
                tightest[part.kind] = share, want, rest
    headers: Headers = []
    for kind, (_, rate, rest) in tightest.items():
        name = kind.encode("ascii")
        reset_s = (rate.capacity - rest) * 60 / rate.per_minute
        headers.append((b"x-ratelimit-limit-" + name, b"%d" % rate.per_minute))
        headers.append((b"x-ratelimit-remaining-" + name, b"%d" % rest))
        headers.append((b"x-ratelimit-reset-" + name, duration(reset_s)))
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
