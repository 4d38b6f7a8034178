"""The stage that decides for each call which way it takes: the route's backends, the draft, or another route.

call -> forecasts of all ways -> choice -> one way; where that fails, the route's own backends
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Protocol

import msgspec

from backends.clock import Clock
from backends.errors import SlipstreamError
from backends.protocol import Backend, Call, Capabilities, Reply
from backends.stream import StreamEnd
from policies.acting import acts
from policies.pool.attempts.first_content import wait_content
from policies.pool.attempts.hedge import adopt
from policies.pool.fallback import FallbackTarget
from policies.pool.load.demand import read_demand
from policies.pool.load.match import Match
from policies.speculation.auto.action import Action
from policies.speculation.auto.choice import LatenessPrice, QualityPurse, choose
from policies.speculation.auto.forecast import Forecast
from policies.speculation.auto.settings import AutoPolicy
from policies.speculation.draft import mark, share_of_time
from policies.speculation.outcome import DraftOutcome
from policies.stage import Stage

ACTION_HEADER = b"x-slipstream-action"
"""Of answers on routes that choose: `target`, `draft`, or the name of the other route."""
TARGET, DRAFT = "target", "draft"
_TRIED_EVERY, _TRIED_AGAIN_EVERY = 2, 50
"""Calls, one of which goes a way of which too little was seen, and one that was slow for some time."""
_TRIED_AT_ONCE = 8
"""Calls under way on a way of which too little was seen."""
_LOST = 0.05
"""A way that is no likelier in time than this is not taken by itself, and would be slow for ever."""
_OUTPUT_STEP = 0.02
_UPSTREAM_FAILURES = frozenset({408, 429})
"""Statuses below 500 that are not the caller's mistake, which says nothing of a way."""
_PICO = 1e12


class LossJudge(Protocol):
    """Says what is lost where the draft answers."""

    async def open(self) -> None:
        """Check what it goes by. Raises: ConfigurationError."""

    async def loss(self, call: Call) -> float | None:
        """How much less often the draft is right about it, as a share of the target's; None where nobody can say."""


class Auto(Stage):
    """Around the target. `draft` and `judge` are there together, where the route allows the draft; `elsewhere` are the
    other routes with what they are asked through.
    """

    def __init__(
        self,
        inner: Backend,
        policy: AutoPolicy,
        target: Action,
        clock: Clock,
        *,
        draft: Action | None = None,
        judge: LossJudge | None = None,
        elsewhere: Sequence[tuple[Action, FallbackTarget]] = (),
    ) -> None:
        super().__init__(inner)
        self._policy = policy
        self._clock = clock
        self._target = target
        self._draft = draft
        self._judge = judge
        self._elsewhere = tuple(elsewhere)
        self.purse = QualityPurse(1 - policy.quality)
        self.late = LatenessPrice(policy.share)
        self._last = TARGET
        self._num_calls = 0
        self._output_tokens = 256.0

    @property
    def capabilities(self) -> Capabilities:
        """What the target can answer; callers who differ in what any of them reads share no answer."""
        own = self._inner.capabilities
        ways = [each.backend for each in (self._draft, *(action for action, _ in self._elsewhere)) if each is not None]
        headers = own.headers
        for way in ways:
            headers = headers | way.capabilities.headers
        return msgspec.structs.replace(own, headers=headers)

    async def open(self) -> None:
        """Open the target, and check what the draft is judged by. Raises: ConfigurationError."""
        await super().open()
        if self._judge is not None:
            await self._judge.open()

    async def send(self, call: Call) -> Reply:
        """The answer of the way that is chosen, or of the target where that has none. Raises: as the target."""
        match = Match(read_demand(call))
        is_text = call.body is not None and call.operation.traits.has_choices
        if call.slo is None or call.pinned or not is_text or acts(call):
            return self._mark(call, await self._target.send(call, match), TARGET)
        began_at = self._clock.now()
        loss = await self._judge.loss(call) if self._judge is not None else None
        chosen = self._choose(call, match, self.forecasts(call, match, loss), judged=loss is not None)
        # Spent at once, for others choose before this one is answered.
        self.purse.spend(chosen.loss)
        reply = None
        try:
            if chosen.name == DRAFT and self._draft is not None:
                reply = await self._ask(self._draft, call, match, None)
            elif chosen.name != TARGET:
                action, route = next(each for each in self._elsewhere if each[0].name == chosen.name)
                reply = await self._ask(action, call, match, route)
        finally:
            # A client that has left has not been answered either.
            if reply is None:
                self.purse.give_back(chosen.loss)
        way = chosen.name if reply is not None else TARGET
        if reply is None:
            reply = await self._target.send(call, match)
        self._watch(call, match, began_at, reply)
        return self._mark(call, reply, way)

    def forecasts(self, call: Call, match: Match, loss: float | None) -> list[Forecast]:
        """Of every way that the call may take, the target first. `loss` is the draft's, None where it may not."""
        slo, most = call.slo, call.body.get("max_tokens") if call.body is not None else None
        assert slo is not None, "send has looked"
        output = max(1.0, min(self._output_tokens, most) if isinstance(most, int) and most > 0 else self._output_tokens)
        late = self._policy.late_usd_per_s > 0
        own = self._target.forecast(match, call, slo, output, wants_late_s=late)
        found = [own if own is not None else Forecast(TARGET, inf, None)]
        if self._draft is not None and loss is not None:
            draft = self._draft.forecast(match, call, slo, output, loss, wants_late_s=late)
            found += [draft] if draft is not None else []
        asked = call.facts.asked_routes or ()
        for action, route in self._elsewhere:
            if route.route not in asked:
                other = action.forecast(match, call, slo, output, wants_late_s=late)
                found += [other] if other is not None else []
        return found

    def _choose(self, call: Call, match: Match, forecasts: Sequence[Forecast], *, judged: bool) -> Forecast:
        self._num_calls += 1
        if forecasts[0].cost < inf:
            self.late.asked(forecasts[0].cost)
        if judged:
            draft = next((each for each in forecasts if each.name == DRAFT), None)
            self.purse.earn(forecasts[0].cost - draft.cost if draft is not None else 0.0, draft.loss if draft else 0.0)
        tried = self._to_try(forecasts)
        if tried is not None:
            return tried
        chosen = choose(
            forecasts,
            self.purse,
            self.late,
            late_s_price=self._policy.late_usd_per_s * _PICO,
            last=self._last,
        )
        self._last = chosen.name
        return chosen

    def _to_try(self, forecasts: Sequence[Forecast]) -> Forecast | None:
        """A way of which more has to be seen: a cheaper one now and then, any at once where the target is not likely in
        time. To know a dearer one is worth nothing before.
        """
        own, turn = forecasts[0].p_in_slo, self._num_calls
        wants_other = own is not None and own < self._policy.share
        for each in forecasts[1:]:
            if each.loss > max(0.0, self.purse.left) or not (wants_other or each.cost < forecasts[0].cost):
                continue
            if each.p_in_slo is None:
                is_due = (wants_other or turn % _TRIED_EVERY == 0) and each.in_flight < _TRIED_AT_ONCE
            else:
                is_due = each.p_in_slo < _LOST and turn % _TRIED_AGAIN_EVERY == 0
            if is_due:
                return each
        return None

    async def _ask(self, action: Action, call: Call, match: Match, route: FallbackTarget | None) -> Reply | None:
        """That way's answer, its facts taken over; None where it has none. What it costs is the call's all the same."""
        facts, now = call.facts.apart(), self._clock.now()
        deadline, limit_s = share_of_time(call, self._clock)
        changed: dict[str, object] = {"facts": facts, "deadline": deadline}
        if route is not None:
            # No route is asked twice, however they lead to each other.
            call.facts.asked_routes = facts.asked_routes = {*(call.facts.asked_routes or {call.route}), route.route}
            changed |= {"route": route.route, "timeouts": route.timeouts}
        sent = msgspec.structs.replace(call, **changed)
        try:
            async with asyncio.timeout(limit_s):
                reply = await action.send(sent, match)
                if reply.status < 400:
                    await self._wait_content(action, reply, sent, now)
        except TimeoutError:
            action.rest()
            return None
        except SlipstreamError:
            return None
        finally:
            call.facts.attempts += facts.attempts
        if reply.status >= 400:
            await reply.aclose()
            return None
        adopt(call.facts, facts, reply)
        if route is not None:
            call.facts.fallback_route = route.route
        return reply

    async def _wait_content(self, action: Action, reply: Reply, call: Call, began_at: float) -> None:
        """Another route need not hold a stream back until it says something; who then fails has failed all the same."""
        try:
            await wait_content(reply, call, began_at + call.timeouts.first_token_s - self._clock.now())
        except SlipstreamError:
            action.rest()
            raise

    def _mark(self, call: Call, reply: Reply, way: str) -> Reply:
        if self._draft is not None:
            mark(call, reply, DraftOutcome.ACCEPTED if way == DRAFT else DraftOutcome.DECLINED)
        kept = (field for field in reply.headers if field[0] != ACTION_HEADER)
        reply.headers = [*kept, (ACTION_HEADER, way.encode())]
        return reply

    def _watch(self, call: Call, match: Match, began_at: float, reply: Reply) -> None:
        """Looks at the answer until it is over: how long it was, and whether it was in time."""
        if reply.status >= 500 or reply.status in _UPSTREAM_FAILURES:
            self.late.ended(was_in_time=False)
        elif reply.stream is not None:
            reply.stream.on_end.append(partial(self._ended, call, match, began_at))
        elif reply.status < 400:
            self._ended(call, match, began_at, StreamEnd.CLEAN)

    def _ended(self, call: Call, match: Match, began_at: float, how: StreamEnd) -> None:
        facts, slo, now = call.facts, call.slo, self._clock.now()
        if how is not StreamEnd.CLEAN or facts.usage is None or slo is None:
            return
        num_tokens = facts.usage.completion_tokens
        self._output_tokens += _OUTPUT_STEP * (num_tokens - self._output_tokens)
        gaps, total_s, tokens = max(0, num_tokens - 1), now - began_at, match.demand.tokens
        if match.demand.is_stream:
            first_s = (facts.first_token_at or now) - began_at
            is_met = slo.is_met(tokens, first_s, (total_s - first_s) / max(1, gaps), total_s)
        else:
            # Of a whole answer only the end is seen: it is in time where a stream in time could have ended.
            is_met = total_s <= min(slo.total_s, slo.first_token_limit_s(tokens) + gaps * slo.token_gap_s)
        self.late.ended(was_in_time=is_met)
