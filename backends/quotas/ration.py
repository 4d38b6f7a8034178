"""What an operator has declared that a backend, or one of its keys, may be asked in a minute."""

from __future__ import annotations

from collections.abc import Mapping

from backends.quotas.allowance import QuotaLeft
from backends.quotas.rate import MinuteRate
from backends.quotas.told import QuotaKind


class Ration:
    """Requests and tokens a minute; None where there is no limit. All who share it take from it before they send."""

    __slots__ = ("_requests", "_tokens")

    def __init__(self, rpm: int | None, tpm: int | None, burst_s: float, now: float) -> None:
        self._requests = None if rpm is None else MinuteRate(rpm, burst_s, now, step=1)
        self._tokens = None if tpm is None else MinuteRate(tpm, burst_s, now)

    def share_among(self, number: int) -> None:
        """So many processes keep to it apart, each to its share."""
        for rate in (self._requests, self._tokens):
            if rate is not None:
                rate.share_among(number)

    def wait_s(self, tokens: float, now: float) -> float:
        """Seconds until a call with so many tokens may go; 0 if now."""
        requests_s = 0.0 if self._requests is None else self._requests.wait_s(1, now)
        tokens_s = 0.0 if self._tokens is None else self._tokens.wait_s(tokens, now)
        return max(requests_s, tokens_s)

    def take(self, tokens: float, now: float) -> float:
        """Such a call goes; returns the tokens that were taken for it, a minute's at most.

        What a call has is its caller's word: until it is settled it keeps others waiting for no longer than that.
        """
        if self._requests is not None:
            self._requests.take(1, now)
        if self._tokens is None:
            return 0.0
        tokens = min(tokens, self._tokens.per_minute)
        self._tokens.take(tokens, now)
        return tokens

    def give_back(self, requests: int, tokens: float) -> None:
        """What was taken and not used; below zero for what was used beyond."""
        if self._requests is not None and requests:
            self._requests.give_back(requests)
        if self._tokens is not None:
            self._tokens.give_back(tokens)

    def left(self, now: float) -> Mapping[QuotaKind, QuotaLeft]:
        """What may go at once, of what may ever go at once."""
        rates: dict[QuotaKind, MinuteRate | None] = {"requests": self._requests, "tokens": self._tokens}
        return {
            kind: QuotaLeft(max(0.0, rate.level(now)), rate.capacity)
            for kind, rate in rates.items()
            if rate is not None
        }
