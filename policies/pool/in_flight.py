"""What a proxy knows of the work a backend has in hand: counted when an attempt goes out, moves on, and is over."""

from __future__ import annotations

from collections.abc import Callable

from policies.pool.latency_model import Met


class InFlight:
    """A backend's attempts and their tokens, in whole numbers so that nothing drifts. Only trips change them."""

    __slots__ = ("decoding", "held_tokens", "requests", "waiting_tokens", "watchers", "whole_tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.waiting_tokens = 0
        """Uncached tokens of streams that have no first token yet."""
        self.whole_tokens = 0
        """Uncached tokens of answers that are not streamed: where they stand cannot be seen."""
        self.decoding = 0
        """Streams past their first token, and answers that are not streamed."""
        self.held_tokens = 0
        """Tokens of all prompts, and of the answers expected to them."""
        self.watchers: tuple[Callable[[], None], ...] = ()
        """Told when there has come to be less to do."""


class Trip:
    """One attempt from its going out to its end, once each whatever the order in which it is told.

    `met` is what it met when it went out; times are monotonic seconds.
    """

    __slots__ = (
        "_counters",
        "_held",
        "_is_over",
        "_is_waiting",
        "_uncached",
        "first_at",
        "limit_s",
        "met",
        "on_end",
        "on_output",
        "sent_at",
    )

    def __init__(
        self, counters: InFlight, uncached: int, held: int, *, is_stream: bool, met: Met, sent_at: float
    ) -> None:
        self.met = met
        self.sent_at = sent_at
        self.first_at: float | None = None
        self.limit_s: float | None = None
        """When its first token is in time, where anybody asks."""
        self.on_output: Callable[[int, float], None] | None = None
        """Told how many tokens a whole answer has had, where that is known, and when it ended."""
        self.on_end: Callable[[], None] | None = None
        """Told once that it is over."""
        self._counters = counters
        self._uncached = uncached
        self._held = held
        self._is_waiting = is_stream
        self._is_over = False
        counters.requests += 1
        counters.held_tokens += held
        if is_stream:
            counters.waiting_tokens += uncached
        else:
            counters.whole_tokens += uncached
            counters.decoding += 1

    def first_token(self, now: float) -> None:
        """A stream's first token has come."""
        if not self._is_waiting or self._is_over:
            return
        self.first_at = now
        self._is_waiting = False
        counters = self._counters
        counters.waiting_tokens -= self._uncached
        counters.decoding += 1
        self._uncached = 0
        for tell in counters.watchers:
            tell()

    def end(self) -> None:
        """It is over, in whichever way."""
        if self._is_over:
            return
        self._is_over = True
        counters = self._counters
        counters.requests -= 1
        counters.held_tokens -= self._held
        if self._is_waiting:
            counters.waiting_tokens -= self._uncached
        else:
            counters.whole_tokens -= self._uncached
            counters.decoding -= 1
        if self.on_end is not None:
            self.on_end()
        for tell in counters.watchers:
            tell()
