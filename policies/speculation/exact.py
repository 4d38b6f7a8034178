"""A stage that has a draft guess what streams of the backends within are about to say, where these take guesses.

Answers are the target's, token by token; only sooner. What cannot be helped passes as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import structs

from backends.clock import Clock
from backends.drafts.push import MAX_KEPT, DraftsBy, Pushable
from backends.drafts.rounds import MOST_A_ROUND, Verifier
from backends.errors import SlipstreamError
from backends.operations import Operation
from backends.protocol import Backend, Call, Reply
from backends.stream import Stream, StreamEnd
from policies.background import Background
from policies.single_stream import asks_for_one_answer, has_readable_events
from policies.speculation.controller import Controller
from policies.speculation.drafted_answer import DraftedAnswer
from policies.speculation.drafter import Drafter
from policies.speculation.methods import Methods
from policies.speculation.rounds.fit import most_tokens as most_tokens_of
from policies.speculation.rounds.fit import sampling_of, stops_of
from policies.speculation.rounds.probed_answer import ProbedAnswer, with_token_ids
from policies.speculation.rounds.probes import Probes
from policies.speculation.rounds.session_answer import SessionAnswer
from policies.speculation.rounds.words import Words
from policies.speculation.settings import ExactPolicy, VerifyMethod
from policies.speculation.shadow import Shadow
from policies.speculation.tokenizers import differs
from policies.stage import Stage

_logger = logging.getLogger(__name__)
_MOST_PROBED = 8
"""Tokens that are proposed in a round of probes."""
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
        self._words = words
        self.known_tokens: set[str] = set()
        """Targets of which it is known that they and the draft have the tokenizer's tokens."""
        self._checking: set[str] = set()
        self._policy = policy
        self._draft = draft
        self._drafter = Drafter(draft, policy.model or "", clock)
        self._targets = targets
        self._clock = clock
        self._posts = Background(_MAX_POSTS)
        self.shadow = Shadow(self._drafter, clock)
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
        await self.shadow.aclose()
        await super().aclose()
        await self._draft.aclose()

    async def send(self, call: Call) -> Reply:
        """Answer through the pool, with a draft beside a stream of a single answer. Raises: as the pool."""
        if call.drafts or not (call.stream and call.operation.traits.has_choices and asks_for_one_answer(call)):
            return await self._inner.send(call)
        methods = {each.now for each in self._methods.values()}
        if "probes" in methods:
            return await self._probed(call)
        by_rounds = "session" in methods
        asked = structs.replace(call, drafts=DraftsBy.GATEWAY, by_rounds=by_rounds)
        reply = await self._inner.send(asked)
        name = call.facts.backend or ""
        target = self._targets.get(name)
        if target is None or self._methods[name].now is None or not has_readable_events(reply):
            return reply
        if not by_rounds:
            return self._helped(self._pushed(call, reply, target, name), reply, "push", name)
        answer = self._session(asked, reply, target, name)

        def ended(how: StreamEnd) -> None:
            if how is StreamEnd.CLEAN and answer.said_alone is not None and self.shadow.is_due(self.controllers[name]):
                self.shadow.score(call, *answer.said_alone, self.controllers[name])

        return self._helped(answer, reply, "session", name, ended)

    async def _probed(self, call: Call) -> Reply:
        """Answer through the pool, by probes where that pays by now."""
        most_tokens = most_tokens_of(call)
        if most_tokens is None or self._words is None or call.body is None:
            return await self._inner.send(call)
        known = [self.controllers[name] for name in self.known_tokens]
        may_pay = any(each.draft_tokens(self._most_probed) for each in known)
        is_to_be_scored = not may_pay and any(self.shadow.is_due(each) for each in known)
        tells = may_pay or is_to_be_scored
        reply = await self._inner.send(with_token_ids(call) if tells else call)
        name = call.facts.backend or ""
        controller = self.controllers.get(name)
        if controller is None or not has_readable_events(reply) or reply.stream is None:
            return reply
        if not tells:
            reply.stream.on_end.append(lambda how: self._learn_alone(call, controller, how))
            if name not in self.known_tokens | self._checking and self._posts.start(
                self._check_tokens(call, self._words, name)
            ):
                self._checking.add(name)
            return reply
        methods = self._methods[name]
        answer = ProbedAnswer(
            call,
            reply,
            probes=Probes(self._inner, call, name, sampling_of(call.body)),
            writer=self._words.writer(stops_of(call.body), most_tokens, is_chat=call.operation is Operation.CHAT),
            drafter=self._drafter,
            draft_name=self._policy.draft,
            controller=controller,
            most=self._most_probed,
            most_tokens=most_tokens,
            clock=self._clock,
            told=lambda is_right: methods.judge("probes", is_right=is_right),
        )

        def ended(how: StreamEnd) -> None:
            if how is StreamEnd.CLEAN and answer.said_alone is not None and is_to_be_scored:
                self.shadow.score(call, *answer.said_alone, controller)

        return self._helped(answer, reply, "probes", name, ended)

    def _helped(
        self,
        answer: DraftedAnswer | SessionAnswer | ProbedAnswer,
        reply: Reply,
        method: VerifyMethod,
        name: str,
        *on_end: Callable[[StreamEnd], None],
    ) -> Reply:
        """The reply whose stream is that answer; what shows at its end that it cannot be helped so is refused then."""

        def ended(how: StreamEnd) -> None:
            answer.ended(how)
            if not answer.is_marked:
                self._methods[name].refuse(method)

        stream = Stream(answer)
        stream.on_end += [ended, *on_end]
        return Reply(reply.status, reply.headers, stream=stream)

    async def _check_tokens(self, call: Call, words: Words, name: str) -> None:
        """Whether target and draft have the tokenizer's tokens; if not, the target is left alone for a while."""
        call = structs.replace(call, deadline=self._clock.now() + call.timeouts.total_s)
        try:
            found = await differs(self._inner, call, call.model, words, pinned=name)
            found = f'target "{name}": {found}' if found else ""
            if not found:
                found = await differs(self._draft, call, self._policy.model or call.model, words)
                found = f'draft "{self._policy.draft}": {found}' if found else ""
        except SlipstreamError as error:
            found = error.message
        finally:
            self._checking.discard(name)
        if found:
            _logger.warning("answers of %s go on without a draft: %s", name, found)
            self._methods[name].refuse("probes")
        else:
            self.known_tokens.add(name)

    @property
    def _most_probed(self) -> int:
        return min(self._policy.k or _MOST_PROBED, _MOST_PROBED)

    def _learn_alone(self, call: Call, controller: Controller, how: StreamEnd) -> None:
        facts = call.facts
        if how is not StreamEnd.CLEAN or facts.usage is None or facts.first_token_at is None:
            return
        if (num_tokens := facts.usage.completion_tokens - 1) > 0:
            controller.note(num_tokens, self._clock.now() - facts.first_token_at, was_drafted=False)

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
