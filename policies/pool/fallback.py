"""Other routes for a call that its own route could not answer, as long as nothing has been answered yet.

Wraps a route's whole stack; a target is another route's whole stack.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from backends.clock import Clock
from backends.errors import SlipstreamError
from backends.protocol import Backend, Call, Reply, Statistics, Timeouts
from policies.acting import acts
from policies.pool.attempts.classify import failure_of, has_begun
from policies.pool.attempts.settings import FallbackOn
from policies.stage import Stage


@dataclass(frozen=True, slots=True)
class FallbackTarget:
    """Another route: its name, its whole stack, and the time limits it sets for an attempt."""

    route: str
    backend: Backend
    timeouts: Timeouts


class Fallback(Stage):
    """Asks `targets` in turn when `inner` fails in a way listed in `on`; the first answer below 400 wins.

    If none can answer, the client sees how the first one failed, which says most. The call's deadline stays its own.
    One that acts goes on only after failures before anybody can have begun with it.
    A target may be a stack with fallbacks too; whichever way they meet, each route is asked at most once.
    """

    def __init__(
        self, inner: Backend, targets: Sequence[FallbackTarget], on: Collection[FallbackOn], clock: Clock
    ) -> None:
        super().__init__(inner)
        self._targets = tuple(targets)
        self._on = frozenset(on)
        self._clock = clock
        self._sent = 0
        self._failed = 0

    def statistics(self) -> Statistics:
        """Calls taken, and calls that no route answered."""
        return Statistics(sent=self._sent, failed=self._failed)

    async def send(self, call: Call) -> Reply:
        """Answer from the own route, else from another.

        Raises: whatever the wrapped stack raised, if no target answers.
        """
        self._sent += 1
        first = await _ask(self._inner, call)
        if isinstance(first, Reply) and first.status < 400:
            return first
        if failure_of(first).kind in self._on and _may_be_asked_again(call, first):
            try:
                answer = await self._ask_targets(call)
            except BaseException:
                await _close(first)
                raise
            if answer is not None:
                try:
                    await _close(first)
                except BaseException:
                    await answer.aclose()
                    raise
                return answer
        self._failed += 1
        if isinstance(first, Reply):
            return first
        try:
            raise first
        finally:
            # The error's traceback holds this frame; letting go of the error leaves no cycle behind.
            del first

    async def _ask_targets(self, call: Call) -> Reply | None:
        """The first target's answer; None if there is none, with the facts of the first failure as they were."""
        facts = call.facts
        before = facts.backend, facts.upstream_model, facts.fallback_route
        if facts.asked_routes is None:
            facts.asked_routes = {call.route}
        asked = facts.asked_routes
        for target in self._targets:
            if target.route in asked:
                continue
            if self._clock.now() >= call.deadline:
                break
            asked.add(target.route)
            facts.fallback_route = target.route
            sent_on = msgspec.structs.replace(call, route=target.route, timeouts=target.timeouts)
            outcome = await _ask(target.backend, sent_on)
            if isinstance(outcome, Reply) and outcome.status < 400:
                return outcome
            await _close(outcome)
            if not _may_be_asked_again(call, outcome):
                break
        facts.backend, facts.upstream_model, facts.fallback_route = before
        return None


def _may_be_asked_again(call: Call, outcome: Reply | SlipstreamError) -> bool:
    """Whether another route may be asked after this failure, as far as it matters how often the call is sent."""
    return not (acts(call) and has_begun(outcome))


async def _ask(backend: Backend, call: Call) -> Reply | SlipstreamError:
    try:
        return await backend.send(call)
    except SlipstreamError as error:
        return error


async def _close(outcome: Reply | SlipstreamError) -> None:
    if isinstance(outcome, Reply):
        await outcome.aclose()
