"""What an answer's header fields tell of a quota: how much is left, of how much, and when it is whole again.

Providers have several ways to say that, and nobody checks what they say: a field that cannot be believed counts as
absent. Which provider says what: docs/upstream-quotas.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal, NamedTuple

from backends.protocol import Headers

QuotaKind = Literal["requests", "tokens", "input_tokens", "output_tokens"]
"""What is counted."""
_Field = Literal["limit", "remaining", "reset"]

MAX_RESET_S = 86_400.0
"""A quota that is whole again later than that is believed to last, but not when it ends."""
_MAX_CHARS = 64
_NUMBER = re.compile(rb"\d{1,13}(?:\.\d{0,9})?")
"""Neither signs nor exponents: no negative, infinite or absurd number looks like this."""
_PART = re.compile(rb"(\d{1,9}(?:\.\d{0,9})?)(ms|us|ns|d|h|m|s)")
_SECONDS = {b"d": 86_400.0, b"h": 3600.0, b"m": 60.0, b"s": 1.0, b"ms": 1e-3, b"us": 1e-6, b"ns": 1e-9}
_EPOCH_FROM = 1e9
"""A number of seconds that is as large as this is a moment and not a wait."""


class ToldQuota(NamedTuple):
    """What an answer tells of one kind: the `limit` and the seconds until it is whole again where it says them."""

    kind: QuotaKind
    left: float
    limit: float | None
    whole_in_s: float | None


def _names() -> Iterable[tuple[bytes, tuple[QuotaKind, _Field]]]:
    fields: tuple[_Field, ...] = ("limit", "remaining", "reset")
    words: dict[str, QuotaKind] = {
        "requests": "requests",
        "tokens": "tokens",
        "req-minute": "requests",
        "tokens-minute": "tokens",
        "requests-day": "requests",
    }
    own: tuple[QuotaKind, ...] = ("requests", "tokens", "input_tokens", "output_tokens")
    for field in fields:
        for word, kind in words.items():
            yield f"x-ratelimit-{field}-{word}".encode(), (kind, field)
        for kind in own:
            yield f"anthropic-ratelimit-{kind.replace('_', '-')}-{field}".encode(), (kind, field)


_NAMES = dict(_names())
TELLING = frozenset(name for name, (_, field) in _NAMES.items() if field == "remaining")
"""The fields without which an answer tells nothing of a quota."""
SHORTEST_NAME = min(map(len, TELLING))
"""Most fields of answers have shorter ones: to look at their length is a tenth of the work of looking into them."""


def tells_quota(headers: Headers) -> bool:
    """Whether there is anything to read."""
    return any(len(name) >= SHORTEST_NAME and name in TELLING for name, _ in headers)


def told_quotas(headers: Headers, wall_s: float) -> list[ToldQuota]:
    """What an answer with these fields tells; `wall_s` is the time in seconds since the Unix epoch.

    Of a field that is there twice the first counts. Moments are measured from the answer's own `date` where it has
    one, so that no difference of clocks matters.
    """
    said: dict[QuotaKind, dict[_Field, bytes]] = {}
    for name, value in headers:
        known = _NAMES.get(name)
        if known is not None:
            kind, field = known
            said.setdefault(kind, {}).setdefault(field, value)
    told = []
    answered_at_s = None
    for kind, fields in said.items():
        left = _number(fields.get("remaining", b""))
        if left is not None:
            reset = fields.get("reset", b"").strip()
            whole_in_s = duration_s(reset)
            moment_s = _moment_s(reset) if whole_in_s is None and reset else None
            if moment_s is not None:
                # To read a date takes longer than all else here, and most resets are no moments.
                answered_at_s = _answered_at(headers, wall_s) if answered_at_s is None else answered_at_s
                whole_in_s = _until(moment_s, answered_at_s)
            told.append(ToldQuota(kind, left, _number(fields.get("limit", b"")), whole_in_s))
    return told


def duration_s(value: bytes) -> float | None:
    """Seconds of `6m0s`, `1h2m3.5s`, `120ms` or a plain number; None for anything else, and for over a day."""
    seconds = _number(value)
    if seconds is None:
        parts = _PART.findall(value) if len(value) <= _MAX_CHARS else []
        if not parts or b"".join(number + unit for number, unit in parts) != value:
            return None
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return seconds if seconds <= MAX_RESET_S else None


def _moment_s(value: bytes) -> float | None:
    """Seconds since the Unix epoch, of RFC 3339 or of a number of them or of milliseconds; None for anything else."""
    number = _number(value)
    if number is not None:
        if number < _EPOCH_FROM:
            return None
        return number if number < _EPOCH_FROM * 100 else number / 1000
    if len(value) > _MAX_CHARS:
        return None
    try:
        moment = datetime.fromisoformat(value.decode("ascii"))
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _until(at_s: float, now_s: float) -> float | None:
    wait_s = max(0.0, at_s - now_s)
    return wait_s if wait_s <= MAX_RESET_S else None


def _number(value: bytes) -> float | None:
    value = value.strip()
    return float(value) if len(value) <= _MAX_CHARS and _NUMBER.fullmatch(value) is not None else None


def _answered_at(headers: Headers, wall_s: float) -> float:
    for name, value in headers:
        if name == b"date" and len(value) <= _MAX_CHARS:
            try:
                return parsedate_to_datetime(value.decode("latin-1")).replace(tzinfo=UTC).timestamp()
            except (ValueError, TypeError, IndexError, OverflowError):
                return wall_s
    return wall_s
