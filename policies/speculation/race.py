"""A race as a backend: where the target is late for a call, the draft is asked as well; the first content answers.

When a call is late, what may be spent and who wins is decided as in a pool's hedges (`pool/attempts/hedge.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from backends.clock import Clock
from backends.errors import UpstreamError
from backends.protocol import Backend, Call, Capabilities, Reply
from policies.acting import only_answers
from policies.pool.attempts.classify import Outcome
from policies.pool.attempts.first_content import wait_content
from policies.pool.attempts.hedge import Hedging, StartAttempt
from policies.pool.load.demand import read_demand
from policies.pool.load.in_flight import InFlightAttempt
from policies.pool.load.match import Match
from policies.pool.load.replica import Replica
from policies.pool.prompts.prefix_index import PrefixIndex
from policies.speculation.draft import mark
from policies.speculation.outcome import DraftOutcome
from policies.speculation.settings import RacePolicy
from policies.stage import Stage

_NO_BOUND = 10**9
"""Tokens that a target has room for, as far as a race knows."""


class Race(Stage):
    """Around the target, all of whose backends are taken for one: what a first token takes there is learned here.

    `is_calm`: whether it makes sense to ask a second time; where all are behind, that makes it worse.
    """

    def __init__(
        self,
        inner: Backend,
        draft: Backend,
        policy: RacePolicy,
        clock: Clock,
        is_calm: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(inner)
        self._draft = draft
        self._clock = clock
        self._target = Replica(inner.name, _NO_BOUND, PrefixIndex(), clock)
        self._hedging = Hedging(policy, clock, is_calm)

    @property
    def capabilities(self) -> Capabilities:
        """What the target can answer; callers who differ in what either of both reads share no answer."""
        own = self._inner.capabilities
        return msgspec.structs.replace(own, headers=own.headers | self._draft.capabilities.headers)

    async def send(self, call: Call) -> Reply:
        """The first answer. Raises: as the target, where neither has one."""
        if call.body is None or call.pinned or not (call.operation.traits.has_choices and only_answers(call)):
            call.facts.draft = DraftOutcome.UNFIT
            return mark(call, await self._inner.send(call), DraftOutcome.UNFIT)
        call.facts.draft = DraftOutcome.UNUSED
        match = Match(read_demand(call))
        counted = self._target.begin(match, self._clock.now())
        expected_s = self._target.expected_s(match, counted)
        of_draft: list[Outcome | None] = []

        def beside(second: Call) -> StartAttempt:
            of_draft.append(None)

            async def ask() -> Outcome:
                of_draft[0] = outcome = await self._ask(self._draft, second)
                return outcome

            return ask

        first = partial(self._ask_target, call, counted)
        if expected_s is None:
            outcome = await first()
        else:
            self._hedging.earn()
            outcome = await self._hedging.ask(call, expected_s, first, beside, tokens=match.demand.tokens)
        became = _became(outcome, of_draft)
        if isinstance(outcome, Reply):
            return mark(call, outcome, became)
        call.facts.draft = became
        try:
            raise outcome
        finally:
            # The error's traceback holds this frame; letting go of the error leaves no cycle behind.
            del outcome
            of_draft.clear()

    async def _ask_target(self, call: Call, counted: InFlightAttempt) -> Outcome:
        """The target, from which is learned how long it takes."""
        try:
            outcome = await self._ask(self._inner, call)
        except BaseException:
            counted.end()
            raise
        if isinstance(outcome, Reply):
            self._target.answered(counted, outcome, call)
        else:
            counted.end()
        return outcome

    async def _ask(self, backend: Backend, call: Call) -> Outcome:
        """One of the two, until there is something of its answer; an upstream's error is returned."""
        began_at = self._clock.now()
        try:
            reply = await backend.send(call)
            if reply.status < 400:
                await wait_content(reply, call, began_at + call.timeouts.first_token_s - self._clock.now())
        except UpstreamError as error:
            return error
        return reply


def _became(outcome: Outcome, of_draft: Sequence[Outcome | None]) -> DraftOutcome:
    """What became of the draft's part in that outcome."""
    if not of_draft:
        return DraftOutcome.UNUSED
    given = of_draft[0]
    if given is None or (isinstance(given, Reply) and given.status < 400 and given is not outcome):
        return DraftOutcome.LATE
    return DraftOutcome.ACCEPTED if given is outcome else DraftOutcome.FAILED
