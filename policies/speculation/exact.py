"""A stage that has a draft guess what streams of the backends within are about to say, where these take guesses.

Answers are the target's, token by token; only sooner. What cannot be helped passes as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from backends.clock import Clock
from backends.drafts.push import MAX_KEPT, DraftsBy, Pushable
from backends.protocol import Backend, Call, Reply
from backends.stream import Stream
from policies.background import Background
from policies.single_stream import asks_for_one_answer, has_readable_events
from policies.speculation.controller import Controller
from policies.speculation.drafted_answer import DraftedAnswer
from policies.speculation.drafter import Drafter
from policies.speculation.settings import ExactPolicy
from policies.stage import Stage

_MAX_POSTS = 1024
"""Under way for all answers together."""


class ExactSpeculation(Stage):
    """Around a route's pool. `targets`: those of its backends that drafts can be pushed to, by their names."""

    def __init__(
        self, inner: Backend, policy: ExactPolicy, draft: Backend, targets: Mapping[str, Pushable], clock: Clock
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
        reply = await self._inner.send(structs.replace(call, drafts=DraftsBy.GATEWAY))
        name = call.facts.backend or ""
        target = self._targets.get(name)
        if target is None or not has_readable_events(reply):
            return reply
        answer = DraftedAnswer(
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
        stream = Stream(answer)
        stream.on_end.append(answer.ended)
        return Reply(reply.status, reply.headers, stream=stream)
