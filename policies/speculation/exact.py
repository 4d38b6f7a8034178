"""A stage that has a draft guess what streams of the backends within are about to say, where these take guesses.

Answers are the target's, token by token; only sooner. What cannot be helped passes as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import structs

from backends.clock import Clock
from backends.drafts.push import MAX_KEPT, DraftsBy, Pushable
from backends.drafts.rounds import MOST_A_ROUND, Verifier
from backends.protocol import Backend, Call, Reply
from backends.stream import Stream, StreamEnd
from policies.background import Background
from policies.single_stream import asks_for_one_answer, has_readable_events
from policies.speculation.controller import Controller
from policies.speculation.drafted_answer import DraftedAnswer
from policies.speculation.drafter import Drafter
from policies.speculation.methods import Methods
from policies.speculation.rounds.session_answer import SessionAnswer
from policies.speculation.settings import ExactPolicy, VerifyMethod
from policies.stage import Stage

_MAX_POSTS = 1024
"""Under way for all answers together."""


class Target(Pushable, Verifier, Protocol):
    """A backend that may have guesses checked; whether its server does shows when it is asked."""


class ExactSpeculation(Stage):
    """Around a route's pool. `targets`: those of its backends that drafts can be pushed to, by their names."""

    def __init__(
        self, inner: Backend, policy: ExactPolicy, draft: Backend, targets: Mapping[str, Target], clock: Clock
    ) -> None:
        super().__init__(inner)
        self._policy = policy
        self._draft = draft
        self._drafter = Drafter(draft, policy.model or "", clock)
        self._targets = targets
        self._clock = clock
        self._posts = Background(_MAX_POSTS)
        self.controllers = {name: Controller() for name in targets}
        """Whether a draft pays, for each of them."""
        self._methods = {name: Methods(policy.verify, clock) for name in targets}

    async def open(self) -> None:
        """Open the backends within, and the draft."""
        await super().open()
        await self._draft.open()

    async def aclose(self) -> None:
        """Close the backends within, and the draft. Safe to call twice."""
        await self._posts.aclose()
        await super().aclose()
        await self._draft.aclose()

    async def send(self, call: Call) -> Reply:
        """Answer through the pool, with a draft beside a stream of a single answer. Raises: as the pool."""
        if call.drafts or not (call.stream and call.operation.traits.has_choices and asks_for_one_answer(call)):
            return await self._inner.send(call)
        by_rounds = any(each.now == "session" for each in self._methods.values())
        asked = structs.replace(call, drafts=DraftsBy.GATEWAY, by_rounds=by_rounds)
        reply = await self._inner.send(asked)
        name = call.facts.backend or ""
        target = self._targets.get(name)
        if target is None or self._methods[name].now is None or not has_readable_events(reply):
            return reply
        answer = self._session(asked, reply, target, name) if by_rounds else self._pushed(call, reply, target, name)
        method: VerifyMethod = "session" if by_rounds else "push"

        def ended(how: StreamEnd) -> None:
            answer.ended(how)
            if not answer.is_marked:
                self._methods[name].refuse(method)

        stream = Stream(answer)
        stream.on_end.append(ended)
        return Reply(reply.status, reply.headers, stream=stream)

    def _pushed(self, call: Call, reply: Reply, target: Target, name: str) -> DraftedAnswer:
        return DraftedAnswer(
            call,
            reply,
            target=target,
            drafter=self._drafter,
            draft_name=self._policy.draft,
            controller=self.controllers[name],
            posts=self._posts,
            most=self._policy.k or MAX_KEPT,
            clock=self._clock,
        )

    def _session(self, call: Call, reply: Reply, target: Target, name: str) -> SessionAnswer:
        return SessionAnswer(
            call,
            reply,
            inner=self._inner,
            target=target,
            drafter=self._drafter,
            draft_name=self._policy.draft,
            controller=self.controllers[name],
            most=self._policy.k or MOST_A_ROUND,
            clock=self._clock,
        )
