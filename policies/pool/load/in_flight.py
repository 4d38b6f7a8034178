"""What a proxy knows of the work a backend has in hand: counted when an attempt goes out, moves on, and is over."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from policies.pool.load.latency_model import Met


class InFlight:
    """A backend's attempts and their tokens, in whole numbers so that nothing drifts. Only attempts change them."""

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


class InFlightAttempt(msgspec.Struct, gc=False):
    """One attempt from its going out to its end, once each whatever the order in which it is told.

    `uncached` and `held` tokens are what it adds to its backend's counters, `met` is what it met when it went out.
    Times are monotonic seconds.
    """

    load: InFlight
    uncached: int
    held: int
    is_waiting: bool
    """For the first token; an answer that is not streamed is never seen to wait."""
    met: Met
    sent_at: float
    first_at: float | None = None
    limit_s: float | None = None
    """When its first token is in time, where anybody asks."""
    on_output: Callable[[int, float], None] | None = None
    """Told how many tokens a whole answer has had, where that is known, and when it ended."""
    on_end: Callable[[], None] | None = None
    """Told once that it is over."""
    is_over: bool = False

    def __post_init__(self) -> None:
        """It goes out."""
        load = self.load
        load.requests += 1
        load.held_tokens += self.held
        if self.is_waiting:
            load.waiting_tokens += self.uncached
        else:
            load.whole_tokens += self.uncached
            load.decoding += 1

    def first_token(self, now: float) -> None:
        """A stream's first token has come."""
        if not self.is_waiting or self.is_over:
            return
        self.first_at = now
        self.is_waiting = False
        load = self.load
        load.waiting_tokens -= self.uncached
        load.decoding += 1
        self.uncached = 0
        for tell in load.watchers:
            tell()

    def end(self) -> None:
        """It is over, in whichever way."""
        if self.is_over:
            return
        self.is_over = True
        load = self.load
        load.requests -= 1
        load.held_tokens -= self.held
        if self.is_waiting:
            load.waiting_tokens -= self.uncached
        else:
            load.whole_tokens -= self.uncached
            load.decoding -= 1
        if self.on_end is not None:
            self.on_end()
        for tell in load.watchers:
            tell()
