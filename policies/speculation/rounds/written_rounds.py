"""Answers of targets that know no drafts: which of them go by rounds that the gateway writes, and by which verdicts."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from backends.operations import Operation
from backends.protocol import Backend, Call, Reply
from backends.stream import StreamEnd
from policies.single_stream import has_readable_events
from policies.speculation.control.controller import Controller
from policies.speculation.drafting import Drafting
from policies.speculation.rounds.fit import is_greedy, most_tokens, sampling_of, stops_of
from policies.speculation.rounds.opening import EVENTS, Begun, begun_by, of_one_token, telling_tokens
from policies.speculation.rounds.probes import Probes
from policies.speculation.rounds.suffix_scores import SuffixScores
from policies.speculation.rounds.verdicts import Malformed, Verdicts
from policies.speculation.rounds.words import ChunkWriter, Words
from policies.speculation.rounds.written_answer import WrittenAnswer
from policies.speculation.settings import WRITTEN, VerifyMethod
from policies.speculation.tokenizers import KnownTokens

_MOST_WRITTEN = 8
"""Tokens that are proposed in a round."""
_REFUSALS = (400, 422)
"""With which a server refuses a field that it does not know."""


class Fit(NamedTuple):
    """How guesses for a call can be checked, and how many tokens its answer has at most."""

    methods: tuple[VerifyMethod, ...]
    most_tokens: int


class WrittenRounds:
    """Around a route's pool, below the stage that knows when to ask it. `tokens` are those of `words`."""

    def __init__(self, inner: Backend, drafting: Drafting, words: Words, tokens: KnownTokens) -> None:
        self._inner = inner
        self._drafting = drafting
        self._words = words
        self._tokens = tokens
        self._tell_whole: set[str] = set()
        """Targets that do not tell the tokens of streamed chats."""

    def fit(self, call: Call) -> Fit | None:
        """None where the gateway cannot write the answer to a call."""
        length = most_tokens(call)
        if call.body is None or length is None:
            return None
        return Fit(WRITTEN if is_greedy(call.body) else ("probes",), length)

    async def send(self, call: Call, fit: Fit) -> Reply:
        """Answer a call that fits so: through the pool, by rounds where that pays. Raises: as the pool."""
        known = [self._drafting.controllers[name] for name in self._tokens.known]
        may_pay = any(each.draft_tokens(self._most) for each in known)
        is_to_be_scored = not may_pay and any(map(self._drafting.shadow.is_due, known))
        has_no_stream = call.operation is Operation.CHAT and bool(self._tell_whole)
        if may_pay and has_no_stream:
            return await self._begun_whole(call, fit)
        if has_no_stream or not (may_pay or is_to_be_scored):
            reply = await self._inner.send(call)
            self._learn_alone(call, reply, fit)
            return reply
        reply = await self._inner.send(telling_tokens(call))
        name = call.facts.backend or ""
        method = self._method(call, fit)
        if reply.status in _REFUSALS and method is not None:
            # Where it is the client's fault the answer to the call as it came says so.
            await reply.aclose()
            reply = await self._inner.send(call)
            if reply.status not in _REFUSALS:
                self._tells_no_stream(call, name, method)
        elif method is not None and has_readable_events(reply) and reply.stream is not None:
            return self._by_rounds(call, reply, method, self._writer(call, fit), fit, is_to_be_scored=is_to_be_scored)
        return reply

    async def _begun_whole(self, call: Call, fit: Fit) -> Reply:
        """A chat by rounds behind a first token asked whole; by the target alone where it does not tell that."""
        reply = await self._inner.send(of_one_token(call))
        method, begun, writer = self._method(call, fit), None, self._writer(call, fit)
        try:
            begun = begun_by(reply, self._words, writer) if method is not None and reply.status == 200 else None
        except Malformed:
            pass
        finally:
            await reply.aclose()
        if begun is None or method is None:
            alone = await self._inner.send(call)
            if method is not None and alone.status not in _REFUSALS:
                self._drafting.methods[call.facts.backend or ""].judge(method, is_right=False)
            return alone
        headers = [field for field in reply.headers if not field[0].startswith(b"content-")]
        return self._by_rounds(call, Reply(200, [*EVENTS, *headers], body=b""), method, writer, fit, begun=begun)

    def _by_rounds(
        self,
        call: Call,
        reply: Reply,
        method: VerifyMethod,
        writer: ChunkWriter,
        fit: Fit,
        *,
        begun: Begun | None = None,
        is_to_be_scored: bool = False,
    ) -> Reply:
        drafting, name = self._drafting, call.facts.backend or ""
        controller, methods = drafting.controllers[name], drafting.methods[name]
        answer = WrittenAnswer(
            call,
            reply,
            verdicts=self._verdicts(call, method, name),
            writer=writer,
            drafter=drafting.drafter,
            draft_name=drafting.policy.draft,
            controller=controller,
            most=self._most,
            most_tokens=fit.most_tokens,
            clock=drafting.clock,
            told=lambda is_right: methods.judge(method, is_right=is_right),
            begun=begun,
        )

        def ended(how: StreamEnd) -> None:
            if is_to_be_scored and how is StreamEnd.CLEAN and answer.said_alone is not None:
                drafting.shadow.score(call, *answer.said_alone, controller)

        return drafting.helped(answer, reply, method, name, ended)

    def _verdicts(self, call: Call, method: VerifyMethod, name: str) -> Verdicts:
        assert call.body is not None, "it fits"
        sampling = sampling_of(call.body)
        if method == "probes":
            return Probes(self._inner, call, name, sampling)
        return SuffixScores(self._inner, call, name, sampling, self._words.special)

    def _writer(self, call: Call, fit: Fit) -> ChunkWriter:
        assert call.body is not None, "it fits"
        return self._words.writer(stops_of(call.body), fit.most_tokens, is_chat=call.operation is Operation.CHAT)

    @property
    def _most(self) -> int:
        return min(self._drafting.policy.k or _MOST_WRITTEN, _MOST_WRITTEN)

    def _method(self, call: Call, fit: Fit) -> VerifyMethod | None:
        """How guesses are checked by the target that has answered; None where in no way of these."""
        methods = self._drafting.methods.get(call.facts.backend or "")
        return methods.now(fit.methods) if methods is not None else None

    def _tells_no_stream(self, call: Call, name: str, method: VerifyMethod) -> None:
        if call.operation is Operation.CHAT:
            self._tell_whole.add(name)
        else:
            self._drafting.methods[name].refuse(method)

    def _learn_alone(self, call: Call, reply: Reply, fit: Fit) -> None:
        """What tokens take alone, and whether they are the tokenizer's."""
        name = call.facts.backend or ""
        controller = self._drafting.controllers.get(name)
        if controller is None or not has_readable_events(reply) or reply.stream is None:
            return
        reply.stream.on_end.append(partial(self._note_alone, call, controller))
        method = self._method(call, fit)
        if method is not None:
            self._tokens.check(call, name, partial(self._drafting.methods[name].refuse, method))

    def _note_alone(self, call: Call, controller: Controller, how: StreamEnd) -> None:
        facts = call.facts
        if how is not StreamEnd.CLEAN or facts.usage is None or facts.first_token_at is None:
            return
        if (num_tokens := facts.usage.completion_tokens - 1) > 0:
            controller.note(num_tokens, self._drafting.clock.now() - facts.first_token_at, was_drafted=False)
