"""The requests in hand: their answers, and the events that each step brings for their sinks. No model, no scheduler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from backends.engine.answer import Answer, AnswerProgress
from backends.engine.request import Event, FinishReason, Request, TokenLogprob, TokenUsage
from backends.engine.sequence import Sequence
from backends.engine.speculation.speculate import ProposalOutcome

logger = logging.getLogger(__name__)

Sink = Callable[[list[Event]], None]
"""Takes a step's events of all requests that were submitted with it; called by the engine's thread, must not block."""


@dataclass(slots=True, eq=False)
class EngineCall:
    """One request in hand. `held` events wait for the best answers to be known."""

    request: Request
    sink: Sink
    submitted_s: float
    has_started: bool = False
    answers: dict[Sequence, Answer] = field(default_factory=dict)
    outcomes: dict[Sequence, ProposalOutcome] = field(default_factory=dict)
    """Of the answers that have ended."""
    held: list[Event] | None = None

    @property
    def running(self) -> list[Sequence]:
        """Sequences of the answers that have not ended."""
        return [sequence for sequence in self.answers if sequence not in self.outcomes]

    def usage(self) -> TokenUsage:
        """Tokens so far; speculation of the answers that have ended."""
        outcomes = self.outcomes.values()
        return TokenUsage(
            prompt_tokens=len(self.request.prompt),
            # Of several answers only the first meets the cache as it was.
            cached_tokens=min((sequence.num_cached for sequence in self.answers), default=0),
            completion_tokens=sum(answer.num_tokens for answer in self.answers.values()),
            draft_accepted=sum(outcome.draft_accepted for outcome in outcomes),
            draft_rejected=sum(outcome.draft_rejected for outcome in outcomes),
            prediction_accepted=sum(outcome.prediction_accepted for outcome in outcomes),
            prediction_rejected=sum(outcome.prediction_rejected for outcome in outcomes),
        )


class Calls:
    """All requests in hand, and the events that are still to be delivered. Owned by the engine's thread.

    `on_over` is told the id of each request whose last event is on its way.
    """

    def __init__(self, on_over: Callable[[str], None]) -> None:
        self._calls: dict[str, EngineCall] = {}
        self._call_of: dict[Sequence, EngineCall] = {}
        self._outbox: dict[Sink, list[Event]] = {}
        self._on_over = on_over

    def add(self, call: EngineCall, answers: Iterable[Answer]) -> None:
        """Takes a request in, with an answer for each of its sequences; what is known of it is told at once."""
        request = call.request
        call.answers = {answer.sequence: answer for answer in answers}
        call.held = [] if len(call.answers) > request.n else None
        self._calls[request.id] = call
        for sequence, answer in call.answers.items():
            self._call_of[sequence] = call
            for token, text in answer.replay():
                replayed = Event(
                    request_id=request.id, index=sequence.index, text=text, tokens=(token,), is_replayed=True
                )
                self._emit(call, replayed)

    def get(self, request_id: str) -> EngineCall | None:
        """The request, unless it is over."""
        return self._calls.get(request_id)

    def of(self, sequence: Sequence) -> EngineCall:
        """The request of a sequence in hand."""
        return self._call_of[sequence]

    def all(self) -> list[EngineCall]:
        """Every request in hand."""
        return list(self._calls.values())

    def progress(
        self,
        sequence: Sequence,
        progress: AnswerProgress,
        outcome: ProposalOutcome,
        prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None,
    ) -> None:
        """An answer went on, and may have ended; then `outcome` is what became of its drafts."""
        call = self._call_of[sequence]
        if progress.finish_reason is not None:
            call.outcomes[sequence] = outcome
        elif not progress.tokens and not progress.text and prompt_logprobs is None:
            return
        event = Event(
            request_id=call.request.id,
            index=sequence.index,
            text=progress.text,
            tokens=progress.tokens,
            logprobs=progress.logprobs,
            prompt_logprobs=prompt_logprobs,
            finish_reason=progress.finish_reason,
            stop_reason=progress.stop_reason,
            end_token=progress.kept[-1] if len(progress.kept) > len(progress.tokens) else None,
            usage=None if progress.finish_reason is None else call.usage(),
            is_last=len(call.outcomes) == len(call.answers),
        )
        self._emit(call, event)

    def prompt_done(
        self,
        sequence: Sequence,
        *,
        embedding: tuple[float, ...] | None = None,
        prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None,
    ) -> None:
        """An answer that is nothing but what was read of its prompt."""
        call = self._call_of[sequence]
        call.outcomes[sequence] = ProposalOutcome()
        event = Event(
            request_id=call.request.id,
            index=sequence.index,
            embedding=embedding,
            prompt_logprobs=prompt_logprobs,
            finish_reason="length" if embedding is None else "stop",
            usage=call.usage(),
            is_last=len(call.outcomes) == len(call.answers),
        )
        self._emit(call, event)

    def end(self, call: EngineCall, reason: FinishReason, error: Exception | None = None) -> None:
        """The whole request ends before its time, with one last event."""
        index = next((sequence.index for sequence in call.running), 0)
        event = Event(
            request_id=call.request.id,
            index=index,
            finish_reason=reason,
            error=error,
            usage=call.usage(),
            is_last=True,
        )
        call.held = None
        self._emit(call, event)

    def deliver(self) -> list[str]:
        """Hands each sink its events. Returns the requests in hand whose sink failed: nobody listens to them."""
        outbox, self._outbox = self._outbox, {}
        deaf: list[str] = []
        for sink, events in outbox.items():
            try:
                sink(events)
            except Exception:  # the sink is not ours: a listener that has gone must not stop the others
                logger.exception("a sink failed; its requests are aborted")
                deaf += [call.request.id for call in self._calls.values() if call.sink == sink]
        return deaf

    def _emit(self, call: EngineCall, event: Event) -> None:
        events = [event]
        if call.held is not None:
            call.held.append(event)
            events = _best(call) if event.is_last else []
        if events:
            self._outbox.setdefault(call.sink, []).extend(events)
        if event.is_last:
            del self._calls[call.request.id]
            for sequence in call.answers:
                del self._call_of[sequence]
            self._on_over(call.request.id)


def _best(call: EngineCall) -> list[Event]:
    """The held events of the `n` answers with the highest mean log-probability, numbered by rank."""
    assert call.held is not None
    ranked = sorted(call.answers.values(), key=lambda answer: -answer.logprob_sum / max(answer.num_tokens, 1))
    usage = call.usage()
    events: list[Event] = []
    for rank, answer in enumerate(ranked[: call.request.n]):
        for event in call.held:
            if event.index == answer.sequence.index:
                event = replace(event, index=rank, is_last=False, prompt_logprobs=None)
                if call.request.params.logprobs is None:
                    event = replace(event, logprobs=None)
                events.append(event if event.usage is None else replace(event, usage=usage))
    events[-1] = replace(events[-1], is_last=True)
    scored = next((event.prompt_logprobs for event in call.held if event.prompt_logprobs is not None), None)
    events[0] = replace(events[0], prompt_logprobs=scored)
    return events
