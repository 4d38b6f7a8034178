"""Whether an answer kept its latency limits, by which goodput is counted. Pure; evaluated once per request."""

from __future__ import annotations

from typing import Literal

from backends.errors import Overloaded
from backends.protocol import Facts, Slo
from backends.stream import StreamEnd

SloOutcome = Literal["met", "ttft", "tpot", "total", "shed", "failed"]
"""`met`, or the first limit that was missed; `shed` by admission; `failed` without a complete answer."""

_UPSTREAM_FAILURES = frozenset({408, 429})
"""Statuses below 500 that are not the caller's mistake."""


def slo_outcome(
    slo: Slo,
    facts: Facts,
    *,
    status: int,
    error_code: str | None,
    started_at: float,
    finished_at: float,
    prompt_tokens: int,
) -> SloOutcome | None:
    """Whether a request kept its limits; None if it does not count, since the client disconnected or made a mistake.

    `prompt_tokens` is an estimate, for answers whose usage is unknown. Of an answer that is not streamed only the end
    can be measured: it is `met` if it ended no later than a stream could have that kept the limits for the first and
    the following tokens, and `total` otherwise.
    """
    if error_code == Overloaded.code:
        return "shed"
    if status == 499 or facts.stream_end is StreamEnd.CLIENT_GONE:
        return None
    if status >= 400:
        return "failed" if status >= 500 or status in _UPSTREAM_FAILURES else None
    if error_code is not None or facts.stream_end not in (None, StreamEnd.CLEAN):
        return "failed"
    usage = facts.usage
    gaps = max(0, usage.completion_tokens - 1) if usage is not None else 0
    first_limit_s = slo.first_token_limit_s(usage.prompt_tokens if usage is not None else prompt_tokens)
    total_s = finished_at - started_at
    if facts.stream_end is None or facts.first_token_at is None:
        is_met = total_s <= min(slo.total_s, first_limit_s + gaps * slo.token_gap_s)
        return "met" if is_met else "total"
    if facts.first_token_at - started_at > first_limit_s:
        return "ttft"
    if gaps and (finished_at - facts.first_token_at) / gaps > slo.token_gap_s:
        return "tpot"
    return "met" if total_s <= slo.total_s else "total"
