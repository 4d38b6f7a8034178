"""An engine without a model: it has a thread of its own and the engine's methods, and does what a test tells it.

One token is one character. It repeats the prompt, or says what it is told to, one word a step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from backends.engine.errors import EngineStopped, RequestRefused
from backends.engine.kv.pages import PagePool
from backends.engine.request import Event, Request, TokenLogprob, TokenUsage
from backends.engine.speculation.speculate import SpeculationStatistics
from backends.engine.statistics import EngineStatistics, StepCounts
from backends.engine.step.scheduler import Scheduler
from backends.engine.step.utilization import ComputeCounts
from backends.serving.requests import Model
from backends.serving.tool_syntax import ToolSyntax

Sink = Callable[[list[Event]], None]


class Characters:
    """A vocabulary of characters; its chat template is the contents of the messages, one a line."""

    def __init__(self) -> None:
        self.rendered: list[dict[str, Any]] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(map(chr, ids))

    def token_bytes(self, token: int) -> bytes:
        return chr(token).encode("utf-8")

    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        self.rendered.append(
            {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt, **kwargs}
        )
        return self.encode("\n".join(message["content"] for message in messages))


class NamedGrammars:
    """Grammars that say what was asked for."""

    def json_object(self) -> str:
        return "json"

    def json_schema(self, schema: Mapping[str, Any] | bool) -> str:
        return "schema:" + msgspec.json.encode(schema).decode()


def make_model(*, syntax: ToolSyntax | None = None, max_context: int = 100_000, call_token: int | None = None) -> Model:
    """What serving knows of a fake engine's model."""
    return Model(
        vocabulary=Characters(),
        vocab_size=0x110000,
        max_context=max_context,
        grammars=NamedGrammars(),
        syntax=syntax,
        call_token=call_token,
        pooling="mean",
        num_dimensions=4,
    )


class FakeEngine:
    """Answers requests in a thread, a word of each a step, every `delay_s`."""

    def __init__(self) -> None:
        self.reply: str | None = None
        self.delay_s = 0.0
        self.stall_after: int | None = None
        self.cut_after: int | None = None
        self.refusal: RequestRefused | None = None
        self.events_instead: Callable[[Request], Iterator[Event]] | None = None
        self.is_stopped = False
        self.requests: list[Request] = []
        self.aborted: list[str] = []
        self.pushed: list[tuple[str, int, tuple[int, ...]]] = []
        self.sinks: set[Sink] = set()
        self._active: dict[str, tuple[Iterator[Event], Sink]] = {}
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)
        self._thread.start()

    @property
    def num_active(self) -> int:
        """Requests in hand."""
        return len(self._active)

    def submit(self, request: Request, sink: Sink) -> None:
        """Take a request."""
        if self.is_stopped or self._is_closed:
            raise EngineStopped("the fake engine is stopped")
        if self.refusal is not None:
            raise self.refusal
        with self._changed:
            self.requests.append(request)
            self.sinks.add(sink)
            make = self.events_instead or self._events
            self._active[request.id] = (make(request), sink)
            self._changed.notify()

    def push(self, request_id: str, start: int, tokens: Sequence[int], most_kept: int) -> None:
        """Note a guess."""
        self.pushed.append((request_id, start, tuple(tokens)))

    def go_on(self, request_id: str, *, freely: bool) -> None:
        """Nothing is held here."""

    def abort(self, request_id: str) -> None:
        """Give up a request."""
        with self._changed:
            self.aborted.append(request_id)
            self._active.pop(request_id, None)

    def statistics(self) -> EngineStatistics:
        """Those of an engine that has worked on nothing so far."""
        pool = PagePool(1, host_pages=0, fingerprint=b"fake")
        scheduler = Scheduler(pool, max_batch_tokens=1, max_sequences=1, max_context=1)
        return EngineStatistics(
            num_requests=self.num_active,
            num_started=0,
            queue_s=0.0,
            queue_times=(),
            steps=StepCounts(),
            scheduler=scheduler.statistics(),
            speculation=SpeculationStatistics({}, {}, ()),
            weight_bytes=0,
            page_bytes=0,
            compute=ComputeCounts(),
            peaks=None,
            kernel_fallbacks={},
            failure=None,
        )

    def say(self, events: list[Event]) -> None:
        """Hand over these events, as a step's."""
        for sink in self.sinks:
            sink(events)

    def close(self) -> None:
        """Stop the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._is_closed:
                    self._changed.wait_for(lambda: self._active or self._is_closed, self.delay_s or None)
                if self._is_closed:
                    return
                if self.delay_s:
                    self._changed.wait_for(lambda: self._is_closed, self.delay_s)
                self._step()

    def _step(self) -> None:
        batches: dict[Sink, list[Event]] = {}
        silent = 0
        for request_id, (events, sink) in list(self._active.items()):
            event = next(events, None)
            if event is None:
                silent += 1
                continue
            batches.setdefault(sink, []).append(event)
            if event.is_last:
                del self._active[request_id]
        for sink, batch in batches.items():
            sink(batch)
        if silent and not batches:
            self._changed.wait(0.005)

    def _events(self, request: Request) -> Iterator[Event]:
        usage = TokenUsage(prompt_tokens=len(request.prompt))
        if request.pooling is not None:
            yield Event(
                request_id=request.id, embedding=(3.0, 4.0, 0.0, 12.0), finish_reason="stop", usage=usage, is_last=True
            )
            return
        said = Characters().decode(request.prompt) if self.reply is None else self.reply
        words = said.split(" ")
        for index in range(request.n):
            yield from self._answer(request, index, words)

    def _answer(self, request: Request, index: int, words: Sequence[str]) -> Iterator[Event]:
        for number, word in enumerate(words):
            if number == self.cut_after:
                error = EngineStopped("the test stops it")
                yield Event(request_id=request.id, finish_reason="error", error=error, is_last=True)
                return
            if number == self.stall_after:
                return
            is_end = number == len(words) - 1
            text = word if is_end else word + " "
            yield Event(
                request_id=request.id,
                index=index,
                text=text,
                tokens=tuple(map(ord, text)),
                logprobs=_logprobs(text, request.params.logprobs),
                prompt_logprobs=_prompt_logprobs(request) if number == index == 0 else None,
                finish_reason="stop" if is_end else None,
                usage=TokenUsage(prompt_tokens=len(request.prompt), completion_tokens=index * len(words) + number + 1),
                is_last=is_end and index == request.n - 1,
            )


def _logprobs(text: str, num_top: int | None) -> tuple[TokenLogprob, ...] | None:
    if num_top is None:
        return None
    top = ((120, -0.25), (121, -1.5))[:num_top]
    return tuple(TokenLogprob(ord(character), -0.5, top) for character in text)


def _prompt_logprobs(request: Request) -> tuple[TokenLogprob | None, ...] | None:
    if request.prompt_logprobs is None:
        return None
    top = ((120, -0.25), (121, -1.5))[: request.prompt_logprobs]
    return (None, *(TokenLogprob(token, -0.5, top) for token in request.prompt[1:]))
