"""Streams of a served model that break off and go on behind a mark: on the wire as if they never had."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.clock import SystemClock
from backends.engine.request import Event, TokenUsage
from backends.errors import InvalidRequest, UpstreamCut
from backends.operations import Operation
from backends.protocol import Backend, Call, Reply
from backends.registry import Registry
from backends.resume import RESUME_FIELD, BrokenAnswer, Resume, read_mark
from backends.serving.replies.chat_reply import ChatShape, ChatStream
from backends.serving.replies.parts import Head
from backends.serving.requests import plan
from backends.serving.tool_syntax import HERMES, ToolParser
from backends.sse import DONE_EVENT, split_events
from backends.stream import Source, Stream
from policies.pool.attempts.retry import RetryBudget
from policies.pool.settings import ResumePolicy
from policies.resume.stage import Resuming
from policies.stage import Stage
from tests.support.calls import event_values, make_call, read_all
from tests.support.engine.fake_engine import Characters, make_model
from tests.support.policy.pool import Member, make_pool

pytest.importorskip("torch")
pytest.importorskip("transformers")

SEEDED = {"seed": 11, "max_tokens": 12, "ignore_eos": True}
HEAD = Head("id-1", 1_700_000_000, "test-model", "fp")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folders of a tiny random model and its draft; their tokens are bytes."""
    from tests.support.engine.tiny_pair import make_pair

    return make_pair(tmp_path_factory.mktemp("pair"))


async def opened(model: Path, *, name: str = "local", **settings: Any) -> Backend:
    """A backend of `type: engine` at work."""
    kind = Registry().kind("engine")
    given = {"model": str(model), "device": "cpu", "dtype": "float32", "threads": 1, "max_sequences": 8, **settings}
    backend = kind.build(name, kind.config.model_validate(given), SystemClock())
    await backend.open()
    return backend


@pytest.fixture
async def backends(pair: Any) -> AsyncIterator[tuple[Backend, Backend]]:
    """The one that breaks off, and the one that takes over: the same weights in another folder, without a draft."""
    copy = shutil.copytree(pair.target, pair.target.parent / "copy", dirs_exist_ok=True)
    first, second = await opened(pair.target, draft=str(pair.draft)), await opened(copy)
    yield first, second
    await first.aclose()
    await second.aclose()


def parted(stream: bytes) -> list[tuple[list[bytes], Resume | None]]:
    """A stream's events up to each mark, with that; those behind the last one with None."""
    parts: list[tuple[list[bytes], Resume | None]] = []
    events: list[bytes] = []
    for event in split_events(stream):
        mark = read_mark(event)
        if mark is None:
            events.append(event)
        else:
            parts.append((events, mark))
            events = []
    return [*parts, (events, None)]


def unmarked(stream: bytes) -> bytes:
    """The events without the marks."""
    return b"".join(event for events, _ in parted(stream) for event in events)


def seen(stream: bytes) -> dict[str, Any]:
    """What a client makes of a stream, however its text was cut; log-probabilities without their last digits."""
    found: dict[str, Any] = {"text": "", "tokens": [], "logprobs": [], "offsets": [], "roles": 0}
    for chunk in event_values(stream):
        found.setdefault("heads", set()).add((chunk["id"], chunk["created"], chunk["system_fingerprint"]))
        found["usage"] = chunk.get("usage")
        for choice in chunk["choices"]:
            delta = choice.get("delta", {})
            found["roles"] += "role" in delta
            found["text"] += delta.get("content") or choice.get("text") or ""
            found["end"] = choice["finish_reason"]
            told = choice["logprobs"] or {}
            for token in told.get("content", ()):
                found["tokens"].append(token["token"])
                found["logprobs"].append(pytest.approx(token["logprob"], abs=1e-4))
            found["tokens"] += told.get("tokens", ())
            found["offsets"] += told.get("text_offset", ())
            found["logprobs"] += [pytest.approx(value, abs=1e-4) for value in told.get("token_logprobs", ())]
    return found


CASES: list[tuple[Operation, dict[str, Any]]] = [
    (Operation.CHAT, {**SEEDED, "temperature": 0}),
    (Operation.CHAT, SEEDED),
    (Operation.CHAT, {**SEEDED, "frequency_penalty": 1.5, "repetition_penalty": 1.2, "logprobs": True}),
    (Operation.COMPLETION, {**SEEDED, "logprobs": 2, "echo": True}),
]


@pytest.mark.parametrize("is_field", [False, True], ids=["by the call", "by its body"])
@pytest.mark.parametrize(("operation", "extra"), CASES)
async def test_stream_resumed_behind_every_mark_is_the_unbroken_one(
    backends: tuple[Backend, Backend], operation: Operation, extra: dict[str, Any], is_field: bool
) -> None:
    """Text, log-probabilities, offsets, head, end and usage; the role comes once."""
    first, second = backends

    async def ask(backend: Backend, begun: Resume) -> bytes:
        if is_field:
            extra_ = {**extra, RESUME_FIELD: msgspec.to_builtins(begun)}
            return await read_all(await backend.send(make_call(operation=operation, extra=extra_, stream=True)))
        call = make_call(operation=operation, extra=extra, stream=True, resume=BrokenAnswer(begun=begun))
        return await read_all(await backend.send(call))

    # On a busy machine tokens wait for each other, and several come behind one mark.
    for _ in range(20):
        whole = await ask(first, Resume())
        parts = parted(whole)
        if len(parts) > 2:
            break

    assert len(parts) > 2
    begun, passed = Resume(), b""
    for events, mark in parts[:-1]:
        assert mark is not None
        begun = Resume(
            id=begun.id or mark.id,
            created=begun.created or mark.created,
            fingerprint=begun.fingerprint or mark.fingerprint,
            tokens=begun.tokens + mark.tokens,
        )
        passed += b"".join(events)
        rest = await ask(second, begun)
        assert seen(passed + unmarked(rest)) == seen(unmarked(whole)), len(begun.tokens)


class Breaking(Source):
    """A stream that is cut behind so many pieces."""

    def __init__(self, stream: Stream, num_pieces: int) -> None:
        self._stream = stream
        self._num_left = num_pieces

    async def read(self) -> bytes:
        """The next piece, or the cut."""
        if not self._num_left:
            raise UpstreamCut("the engine is gone")
        piece = await self._stream.read()
        # Behind the end nothing can break.
        self._num_left -= DONE_EVENT not in piece
        return piece

    async def aclose(self) -> None:
        """Stop the engine's work."""
        await self._stream.aclose()


class BreakingBackend(Stage):
    """A backend whose next stream is cut behind so many pieces."""

    num_pieces = 0

    async def send(self, call: Call) -> Reply:
        """Its answer, until it is cut."""
        reply = await self._inner.send(call)
        assert reply.stream is not None
        return Reply(reply.status, reply.headers, stream=Stream(Breaking(reply.stream, self.num_pieces)))


@pytest.mark.parametrize("extra", [{**SEEDED, "temperature": 0}, {**SEEDED, "stop": "never"}], ids=["greedy", "seeded"])
async def test_route_of_two_engines_goes_on_wherever_one_breaks(pair: Any, extra: dict[str, Any]) -> None:
    """In one process, behind every piece of a stream: what the client reads is the unbroken one, and a comment."""
    engines = [await opened(pair.target, name=name, speculate="off") for name in ("one", "two")]
    breaking = BreakingBackend(engines[0])
    members = [Member(breaking), Member(engines[1], priority=1)]
    pool = make_pool(members, SystemClock(), breaker={"consecutive_failures": 100, "error_rate": 1})
    able = {engine.name: engine.capabilities.continues for engine in engines}
    stage = Resuming(pool, ResumePolicy(), able, SystemClock(), RetryBudget(20, SystemClock()))
    whole = seen(await read_all(await engines[1].send(make_call(extra=extra, stream=True))))
    del whole["heads"]
    num_resumed = 0
    for num_pieces in range(1, 13):
        breaking.num_pieces = num_pieces
        call = make_call(extra=extra, stream=True)

        stream = await read_all(await stage.send(call))

        comments = [event for event in split_events(stream) if event.startswith(b":")]
        found = seen(b"".join(event for event in split_events(stream) if not event.startswith(b":")))
        assert len(found.pop("heads")) == 1
        assert found == whole, num_pieces
        if call.facts.resumed is not None:
            num_resumed += 1
            tokens = call.facts.resumed[0].tokens
            assert comments == [b": slipstream resumed exact backend=two tokens=%d\n\n" % tokens]
    assert num_resumed >= 3
    for engine in engines:
        await engine.aclose()


async def test_stream_that_nobody_wants_marked_has_no_marks(backends: tuple[Backend, Backend]) -> None:
    """A client sees no tokens that it did not ask for."""
    stream = await read_all(await backends[0].send(make_call(extra=SEEDED, stream=True)))

    assert b"slipstream-resume" not in stream


async def test_tokens_of_the_beginning_are_not_counted_as_this_engines(pair: Any) -> None:
    """The client's usage is of the whole answer; the engine's own numbers are of what it did."""
    backend = await opened(pair.target)
    whole = await read_all(await backend.send(make_call(extra=SEEDED, stream=True, resume=BrokenAnswer())))
    begun = next(mark for _, mark in parted(whole) if mark is not None)
    before = backend.model_statistics()  # type: ignore[attr-defined]  # a ModelServer

    call = make_call(extra=SEEDED, stream=True, resume=BrokenAnswer(begun=begun))
    await read_all(await backend.send(call))

    assert call.facts.usage is not None
    assert call.facts.usage.completion_tokens == 12
    after = backend.model_statistics()  # type: ignore[attr-defined]
    assert after.generated - before.generated == 12 - len(begun.tokens)
    await backend.aclose()


@pytest.mark.parametrize(
    ("changes", "settings"),
    [({"id": "x", "tokens": (5,), "fingerprint": "fp_other"}, {}), ({}, {"kv_dtype": "int8"}), ({}, {"weights": True})],
    ids=["another name", "another setting", "other weights"],
)
async def test_answer_of_another_model_is_not_continued(
    backends: tuple[Backend, Backend], pair: Any, tmp_path: Path, changes: dict[str, Any], settings: dict[str, Any]
) -> None:
    """It would go on with other tokens: refused, and the field named."""
    first, taker = backends
    whole = await read_all(await first.send(make_call(extra=SEEDED, stream=True, resume=BrokenAnswer())))
    begun = next(mark for _, mark in parted(whole) if mark is not None)
    if changes:
        begun = Resume(**changes)
    elif settings.pop("weights", False):
        shutil.copytree(pair.target, tmp_path / "other")
        shutil.copyfile(pair.draft / "model.safetensors", tmp_path / "other" / "model.safetensors")
        taker = await opened(tmp_path / "other")
    else:
        taker = await opened(pair.target, **settings)

    reply = await taker.send(make_call(extra=SEEDED, stream=True, resume=BrokenAnswer(begun=begun)))

    assert (reply.status, json.loads(reply.body or b"")["error"]["param"]) == (400, RESUME_FIELD)
    if taker not in backends:
        await taker.aclose()


@pytest.mark.parametrize(
    ("operation", "extra", "stream"),
    [
        (Operation.CHAT, {}, False),
        (Operation.CHAT, {"n": 2}, True),
        (Operation.COMPLETION, {"prompt": ["a", "b"]}, True),
        (Operation.RESPONSES, {}, True),
    ],
)
def test_other_forms_are_neither_marked_nor_continued(
    operation: Operation, extra: dict[str, Any], stream: bool
) -> None:
    """Several answers, whole ones and responses: asking for marks changes nothing, to go on is refused."""
    asked = make_call(operation=operation, extra={**extra, RESUME_FIELD: {}}, stream=stream)
    plain = make_call(operation=operation, extra=extra, stream=stream)
    begun = {"id": "a", "created": 1, "fingerprint": "fp", "tokens": [1]}
    continued = make_call(operation=operation, extra={**extra, RESUME_FIELD: begun}, stream=stream)

    assert type(plan(asked, make_model(), HEAD).answer) is type(plan(plain, make_model(), HEAD).answer)
    with pytest.raises(InvalidRequest, match="single streamed"):
        plan(continued, make_model(), HEAD)


@pytest.mark.parametrize("value", [5, [], {"tokens": [-1]}, {"tokens": ["a"]}, {"id": "x" * 300}, {"created": -1}])
def test_field_that_cannot_be_read_is_refused_by_its_name(value: Any) -> None:
    """It comes from outside."""
    with pytest.raises(InvalidRequest) as refused:
        plan(make_call(extra={RESUME_FIELD: value}, stream=True), make_model(), HEAD)

    assert (refused.value.param or "").startswith(RESUME_FIELD)


TOLD = (
    'Well <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call> and <tool_call>\n{"name": "g"}\n</tool_call>'
)


@pytest.mark.parametrize("is_hidden", [False, True], ids=["tags are text", "tags are hidden tokens"])
def test_tool_calls_go_on_where_they_broke_off(is_hidden: bool) -> None:
    """Neither lost nor told twice, with the same ids, wherever the tokens are parted."""
    events = _hidden_events() if is_hidden else [_event(character) for character in TOLD]
    events.append(Event(request_id="id-1", finish_reason="stop", usage=TokenUsage(), is_last=True))

    def stream() -> ChatStream:
        shape = ChatShape(
            make_parser=lambda: ToolParser(HERMES),
            call_token=1 if is_hidden else None,
            call_tag="<tool_call>" if is_hidden else "",
        )
        return ChatStream(HEAD, shape, Characters())

    def written(answer: ChatStream, some: list[Event]) -> bytes:
        for event in some:
            answer.take(event)
        return answer.drain()

    whole = written(stream(), events)
    assert whole.count(b'"tool_calls":[') == 2
    for number in range(1, len(events)):
        broken, rest = stream(), stream()
        passed = written(broken, events[:number])
        for event in events[:number]:
            rest.replay(event)
        assert passed + written(rest, events[number:]) == whole, number


def _event(text: str, token: int = 2) -> Event:
    return Event(request_id="id-1", text=text, tokens=(token,))


def _hidden_events() -> list[Event]:
    """The same where the tag that begins a call is a token without text."""
    events = []
    for number, part in enumerate(TOLD.split("<tool_call>")):
        if number:
            events.append(_event("", 1))
        events += [_event(character) for character in part]
    return events
