"""How long an upstream asks to be left alone: `retry-after`, `retry-after-ms` and Google's `RetryInfo`, which may say
anything."""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import ceil
from typing import Any

import msgspec

from backends.clock import Clock
from backends.errors import SlipstreamError
from backends.json_errors import NOT_JSON
from backends.protocol import Headers, Reply

MAX_WAIT_S = 86_400.0
"""Whoever asks for more is asked again after a day."""

_RETRY_INFO = b"google.rpc.RetryInfo"
_NUMBER = re.compile(rb"\s*(\d+(?:\.\d*)?(?:[eE]\+?\d+)?)\s*")


def asked_wait_s(headers: Headers, wall_s: float) -> float | None:
    """Seconds from 0 to `MAX_WAIT_S`; None where nothing is said that can be understood.

    `retry-after` is read as seconds or as an HTTP date; `retry-after-ms` goes before it. `wall_s`: seconds since the
    Unix epoch.
    """
    seconds = milliseconds = None
    for name, value in headers:
        if name == b"retry-after" and seconds is None:
            seconds = _number(value)
            if seconds is None:
                seconds = _until_date(value, wall_s)
        elif name == b"retry-after-ms" and milliseconds is None:
            milliseconds = _number(value)
    asked_s = milliseconds / 1000 if milliseconds is not None else seconds
    return min(asked_s, MAX_WAIT_S) if asked_s is not None else None


def with_believed_waits(headers: Headers, wall_s: float) -> Headers:
    """The same fields for a client: a wait that is too long is the longest, one that cannot be read is left out."""
    if not any(name.startswith(b"retry-after") for name, _ in headers):
        return headers
    shown: Headers = []
    for name, value in headers:
        if name in (b"retry-after", b"retry-after-ms"):
            wait_s = asked_wait_s([(name, value)], wall_s)
            if wait_s is None:
                continue
            if wait_s == MAX_WAIT_S:
                value = b"%d" % ceil(wait_s * (1000 if name.endswith(b"-ms") else 1))
        shown.append((name, value))
    return shown


def told_in_body_s(body: bytes) -> float | None:
    """Seconds from 0 to `MAX_WAIT_S` of the `google.rpc.RetryInfo` in an error's details; None where there is none.

    Gemini's only word on it: `{"error": {"details": [{"@type": ".../google.rpc.RetryInfo", "retryDelay": "45.8s"}]}}`,
    at times in a list of its own.
    """
    if _RETRY_INFO not in body:
        return None
    try:
        decoded = msgspec.json.decode(body)
    except NOT_JSON:
        return None
    answer = decoded[0] if isinstance(decoded, list) and decoded else decoded
    error = answer.get("error") if isinstance(answer, dict) else None
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        wait_s = _delay_s(detail)
        if wait_s is not None:
            return min(wait_s, MAX_WAIT_S)
    return None


def _delay_s(detail: Any) -> float | None:
    delay = detail.get("retryDelay") if isinstance(detail, dict) else None
    if not isinstance(delay, str) or not delay.endswith("s") or not delay.isascii():
        return None
    return _number(delay.removesuffix("s").encode())


def _number(value: bytes) -> float | None:
    match = _NUMBER.fullmatch(value)
    return float(match[1]) if match is not None else None


def _until_date(value: bytes, wall_s: float) -> float | None:
    try:
        date = parsedate_to_datetime(value.decode("latin-1"))
        # HTTP dates are GMT, also where one does not say so.
        at = (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return max(0.0, at - wall_s)


def retry_after_s(outcome: Reply | SlipstreamError, clock: Clock) -> float | None:
    """How long the upstream asks to wait, in seconds from 0 to `MAX_WAIT_S`; None if it does not say."""
    if isinstance(outcome, SlipstreamError):
        return outcome.retry_after_s
    return asked_wait_s(outcome.headers, clock.wall())
