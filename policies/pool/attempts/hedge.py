"""Asks a second member when the first is late for this very call; whichever says something first answers alone.

The pool starts the attempts; this decides when, whether that can be afforded, and who wins. (Dean, Barroso, "The Tail
at Scale", 2013; written from the paper, with the call's own prediction in the place of one delay for all.)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from backends.clock import Clock
from backends.operations import Operation
from backends.protocol import Call, Facts, Reply
from backends.stream import StreamEnd
from policies.acting import only_answers
from policies.pool.attempts.classify import Outcome
from policies.pool.settings import HedgePolicy

StartAttempt = Callable[[], Coroutine[Any, Any, Outcome]]
"""Asks one member, once it is called; a stream is an outcome when its first content is there."""
_Running = asyncio.Task[Outcome]

_SAVED_HEDGES = 10.0
_FIRST_FACTOR = 2.0
_STEP = 0.1
_MIN_FACTOR, _MAX_FACTOR = 1.0, 1000.0


class HedgeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Since the start: second members asked, of these the ones that answered, calls that were late without one for want
    of budget, and prompt tokens (estimated) of attempts that were given up."""

    sent: int = 0
    won: int = 0
    over_budget: int = 0
    wasted_tokens: int = 0


class HedgeBudget:
    """A token bucket: each call earns its share of a hedge, ten are saved at most. Hence hedges <= share x calls."""

    __slots__ = ("_saved", "_share")

    def __init__(self, share: float) -> None:
        self._share = share
        self._saved = 0.0

    def add_call(self) -> None:
        """Earn one call's share."""
        self._saved = min(_SAVED_HEDGES, self._saved + self._share)

    def can_spend(self) -> bool:
        """Whether one is saved. Rounding may not cost one."""
        return self._saved > 1 - 1e-9

    def spend(self) -> None:
        """Pay for one; only where `can_spend`."""
        self._saved = max(0.0, self._saved - 1)


class Lateness:
    """From which multiple of its prediction on an answer is late: as many are in time as `quantile` says.

    Found by being told of each call on which side of it that was (stochastic approximation; Robbins, Monro, 1951), so
    an answer that nobody waits for any longer teaches as much as one that came.
    """

    __slots__ = ("_down", "_up", "factor")

    def __init__(self, quantile: float) -> None:
        self.factor = _FIRST_FACTOR
        self._up = math.exp(_STEP * quantile)
        self._down = math.exp(_STEP * (quantile - 1))

    def note(self, *, is_late: bool) -> None:
        """One more call."""
        factor = self.factor * (self._up if is_late else self._down)
        self.factor = min(max(factor, _MIN_FACTOR), _MAX_FACTOR)


class Hedging:
    """One route's hedges. `is_calm` is asked before each: where all are behind, a second attempt makes it worse."""

    def __init__(self, policy: HedgePolicy, clock: Clock, is_calm: Callable[[], bool] = lambda: True) -> None:
        self._quantile = policy.quantile
        self._clock = clock
        self._is_calm = is_calm
        self._budget = HedgeBudget(policy.budget)
        self._lateness: dict[tuple[Operation, bool], Lateness] = {}
        self._sent = 0
        self._won = 0
        self._over_budget = 0
        self._wasted_tokens = 0

    def statistics(self) -> HedgeStatistics:
        """A snapshot of the counters."""
        return HedgeStatistics(
            sent=self._sent, won=self._won, over_budget=self._over_budget, wasted_tokens=self._wasted_tokens
        )

    def earn(self) -> None:
        """A call has come that may be hedged: there is a little more to spend."""
        self._budget.add_call()

    def lateness(self, call: Call) -> Lateness | None:
        """When calls like this one are late; None for what may not be sent twice."""
        if not only_answers(call):
            return None
        kind = call.operation, call.stream
        if kind not in self._lateness:
            self._lateness[kind] = Lateness(self._quantile)
        return self._lateness[kind]

    async def ask(
        self,
        call: Call,
        expected_s: float,
        first: StartAttempt,
        second: Callable[[Call], StartAttempt | None],
        *,
        tokens: int,
    ) -> Outcome:
        """The outcome of `first`, or of `second` where that is later than expected: the one with the first content.

        An error is the outcome only where both have failed; it is that of `first`. The other attempt is cancelled and
        over when this returns. `second` gets a call with facts of its own, and gives None where there is nobody to ask.
        `tokens` are those of the prompt.
        """
        lateness = self.lateness(call)
        assert lateness is not None, "only what may be sent twice comes here"
        running = [_start(first)]
        hedge = call
        try:
            if not await self._is_in_time(running[0], expected_s * lateness.factor):
                lateness.note(is_late=True)
                hedge = msgspec.structs.replace(call, facts=call.facts.apart())
                if (attempt := self._afford(second, hedge)) is not None:
                    call.facts.attempts += 1
                    running.append(_start(attempt))
            elif _is_answer(running[0]):
                lateness.note(is_late=False)
            winner = await _first_answer(running)
            for loser in running:
                if loser is not winner:
                    self._wasted_tokens += 0 if _has_failed(loser) else tokens
                    await _give_up(loser)
        except BaseException:
            # Whoever is cancelled once more while it waits for one leaves none behind.
            for each in running:
                each.cancel()
            for each in running:
                await _give_up(each)
            raise
        if winner is not running[0]:
            self._won += 1
            adopt(call.facts, hedge.facts, winner.result())
        return winner.result()

    async def _is_in_time(self, first: _Running, limit_s: float) -> bool:
        timer = asyncio.get_running_loop().create_task(self._clock.sleep(limit_s))
        try:
            await asyncio.wait((first, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        return first.done()

    def _afford(self, second: Callable[[Call], StartAttempt | None], hedge: Call) -> StartAttempt | None:
        if not self._is_calm():
            return None
        if not self._budget.can_spend():
            self._over_budget += 1
            return None
        attempt = second(hedge)
        if attempt is not None:
            self._budget.spend()
            self._sent += 1
        return attempt


class _Relay:
    """A tap of the answer that won: what its stream tells its own facts at the end, the call's are told too."""

    __slots__ = ("_into", "_of")

    def __init__(self, into: Facts, of: Facts) -> None:
        self._into = into
        self._of = of

    def feed(self, piece: bytes) -> None:
        """One piece; what they say is not looked at."""
        self._into.may_quote = self._of.may_quote

    def end(self, how: StreamEnd) -> None:
        """The stream has ended."""
        self._into.usage = self._of.usage
        self._into.stream_end = self._of.stream_end
        self._into.speculation = self._of.speculation or self._into.speculation


def _start(attempt: StartAttempt) -> _Running:
    return asyncio.get_running_loop().create_task(attempt())


async def _first_answer(running: Sequence[_Running]) -> _Running:
    """The first that has an answer, else the first of all, once every one has failed."""
    pending = set(running)
    while pending:
        for task in running:
            if task in pending and task.done():
                if not _has_failed(task):
                    return task
                pending.discard(task)
        if pending:
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    return running[0]


def _is_answer(task: _Running) -> bool:
    return task.done() and not _has_failed(task)


def _has_failed(task: _Running) -> bool:
    if not task.done():
        return False
    if task.cancelled() or task.exception() is not None:
        return True
    outcome = task.result()
    return not isinstance(outcome, Reply) or outcome.status >= 400


async def _give_up(task: _Running) -> None:
    """End an attempt and whatever it holds. Safe to call twice."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled() and task.exception() is None and isinstance(outcome := task.result(), Reply):
        await outcome.aclose()


def adopt(into: Facts, of: Facts, outcome: Outcome) -> None:
    """The answer is another attempt's: its facts take the place of those of the first."""
    into.adopt_attempt(of)
    if isinstance(outcome, Reply) and outcome.stream is not None:
        outcome.stream.taps.append(_Relay(into, of))
