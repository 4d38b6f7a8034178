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
from backends.stream import StreamEnd
from policies.background import Background
from policies.single_stream import asks_for_one_answer, has_readable_events
from policies.speculation.control.controller import Controller
from policies.speculation.drafted_answer import DraftedAnswer
from policies.speculation.drafter import Drafter
from policies.speculation.drafting import Drafting
from policies.speculation.methods import Methods
from policies.speculation.rounds.session_answer import SessionAnswer
from policies.speculation.rounds.words import Words
from policies.speculation.rounds.written_rounds import WrittenRounds
from policies.speculation.settings import WRITTEN, ExactPolicy, VerifyMethod
from policies.speculation.shadow import Shadow
from policies.speculation.tokenizers import KnownTokens
from policies.stage import Stage

_RUNNING: tuple[VerifyMethod, ...] = ("push", "session")
"""By which the target's own stream is helped."""
_MAX_POSTS = 1024
"""Under way for all answers together."""


class Target(Pushable, Verifier, Protocol):
    """A backend that may have guesses checked; whether its server does shows when it is asked."""


class ExactSpeculation(Stage):
    """Around a route's pool. `targets`: those of its backends that drafts can be pushed to, by their names."""

    def __init__(
        self,
        inner: Backend,
        policy: ExactPolicy,
        draft: Backend,
        targets: Mapping[str, Target],
        clock: Clock,
        words: Words | None = None,
    ) -> None:
        """`words`: the tokens of target and draft, where the policy names a tokenizer."""
        super().__init__(inner)
        self._draft = draft
        self._targets = targets
        self._posts = Background(_MAX_POSTS)
        drafter = Drafter(draft, policy.model or "", clock)
        self.shadow = Shadow(drafter, clock)
        self.controllers = {name: Controller() for name in targets}
        """Whether a draft pays, for each of them."""
        methods = {name: Methods(policy.verify, clock) for name in targets}
        self._drafting = Drafting(policy, drafter, self.shadow, clock, self.controllers, methods)
        self.tokens: KnownTokens | None = None
        """Of which targets it is known that they have the tokens that the policy names."""
        self._writing: WrittenRounds | None = None
        if words is not None:
            self.tokens = KnownTokens(inner, draft, policy.model or "", words, clock)
            self._writing = WrittenRounds(inner, self._drafting, words, self.tokens)

    async def open(self) -> None:
        """Open the backends within, and the draft."""
        await super().open()
        await self._draft.open()

    async def aclose(self) -> None:
        """Close the backends within, and the draft. Safe to call twice."""
        await self._posts.aclose()
        await self.shadow.aclose()
        if self.tokens is not None:
            await self.tokens.aclose()
        await super().aclose()
        await self._draft.aclose()

    async def send(self, call: Call) -> Reply:
        """Answer through the pool, with a draft beside a stream of a single answer. Raises: as the pool."""
        if call.drafts or not (call.stream and call.operation.traits.has_choices and asks_for_one_answer(call)):
            return await self._inner.send(call)
        writing = self._writing
        fit = writing.fit(call) if writing is not None else None
        fitting = _RUNNING if fit is None else (*_RUNNING, *fit.methods)
        methods = {each.now(fitting) for each in self._drafting.methods.values()}
        if writing is not None and fit is not None and not methods.isdisjoint(WRITTEN):
            return await writing.send(call, fit)
        if methods <= {None}:
            return await self._inner.send(call)
        by_rounds = "session" in methods
        asked = structs.replace(call, drafts=DraftsBy.GATEWAY, by_rounds=by_rounds)
        reply = await self._inner.send(asked)
        name = call.facts.backend or ""
        target = self._targets.get(name)
        if target is None or self._drafting.methods[name].now(_RUNNING) is None or not has_readable_events(reply):
            return reply
        if not by_rounds:
            return self._drafting.helped(self._pushed(call, reply, target, name), reply, "push", name)
        answer, controller = self._session(asked, reply, target, name), self.controllers[name]

        def ended(how: StreamEnd) -> None:
            if how is StreamEnd.CLEAN and answer.said_alone is not None and self.shadow.is_due(controller):
                self.shadow.score(call, *answer.said_alone, controller)

        return self._drafting.helped(answer, reply, "session", name, ended)

    def _pushed(self, call: Call, reply: Reply, target: Target, name: str) -> DraftedAnswer:
        drafting = self._drafting
        return DraftedAnswer(
            call,
            reply,
            target=target,
            drafter=drafting.drafter,
            draft_name=drafting.policy.draft,
            controller=drafting.controllers[name],
            posts=self._posts,
            most=drafting.policy.k or MAX_KEPT,
            clock=drafting.clock,
        )

    def _session(self, call: Call, reply: Reply, target: Target, name: str) -> SessionAnswer:
        drafting = self._drafting
        return SessionAnswer(
            call,
            reply,
            inner=self._inner,
            target=target,
            drafter=drafting.drafter,
            draft_name=drafting.policy.draft,
            controller=drafting.controllers[name],
            most=drafting.policy.k or MOST_A_ROUND,
            clock=drafting.clock,
        )
