"""What the scripted backend says is OpenAI's in shape, down to OpenAI's own types, and follows from the request."""

from __future__ import annotations

import base64
import json
import math
from array import array
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CompletionUsage, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion import Completion
from openai.types.responses import Response, ResponseStreamEvent

from backends.charges.usage import Usage
from backends.errors import InvalidRequest, UnknownPath
from backends.operations import Operation
from backends.scripted.answers import answer
from backends.scripted.script import Scripted, ScriptedConfig
from tests.support.calls import event_values, make_call, read_all, streamed_text
from tests.support.clock import FakeClock

LATER = 1_000_000.0
STREAM_EVENT: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)


def scripted(reply: str | None = None) -> Scripted:
    """A backend that says `reply` to every call."""
    return Scripted("fake", ScriptedConfig.model_validate({"script": [{"reply": reply}]}), FakeClock())


async def ask(backend: Scripted, text: str = "hello", **fields: Any) -> Any:
    """The decoded whole answer to one call."""
    return json.loads(await read_all(await backend.send(make_call(text, deadline=LATER, **fields))))


async def ask_stream(backend: Scripted, text: str = "hello", **fields: Any) -> bytes:
    """The whole stream that answers one call."""
    return await read_all(await backend.send(make_call(text, deadline=LATER, stream=True, **fields)))


async def test_answer_without_script_says_who_speaks() -> None:
    """Nobody can take the built-in answer for a model's."""
    completion = await ask(scripted(), "what is a slipstream?")

    said = completion["choices"][0]["message"]["content"]
    assert said == ("This is Slipstream's scripted backend: no upstream is configured. You said: what is a slipstream?")


async def test_answer_to_a_long_question_quotes_its_beginning() -> None:
    """What is repeated is bounded, whatever the client sent."""
    completion = await ask(scripted(), "x" * 10_000)

    assert completion["choices"][0]["message"]["content"].endswith("x" * 2000 + "...")


async def test_chat_answer_validates_as_openai_type() -> None:
    """OpenAI's own client accepts the completion and its count of words."""
    completion = ChatCompletion.model_validate(await ask(scripted("one two three"), "four words are here"))

    assert completion.choices[0].message.content == "one two three"
    assert completion.usage == CompletionUsage(prompt_tokens=4, completion_tokens=3, total_tokens=7)
    assert completion.model == "test-model"


async def test_chat_stream_validates_as_openai_type() -> None:
    """Every event is a chunk to OpenAI's own client, and together they are the text and the usage."""
    stream = await ask_stream(scripted("one two three"), "four words are here")

    chunks = [ChatCompletionChunk.model_validate(value) for value in event_values(stream)]
    assert streamed_text(stream) == "one two three"
    assert chunks[-1].usage == CompletionUsage(prompt_tokens=4, completion_tokens=3, total_tokens=7)
    assert {chunk.id for chunk in chunks} == {"chatcmpl-scripted-1"}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_chat_with_n_gives_every_choice(stream: bool) -> None:
    """Each of n choices has the text and a reason to finish, and all are counted."""
    backend = scripted("one two")
    call = make_call(deadline=LATER, stream=stream, extra={"n": 3})

    whole = await read_all(await backend.send(call))

    values = event_values(whole) if stream else [json.loads(whole)]
    finishes = {c["index"]: c["finish_reason"] for v in values for c in v["choices"] if c["finish_reason"]}
    assert finishes == {0: "stop", 1: "stop", 2: "stop"}
    assert call.facts.usage == Usage(1, 6)


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
async def test_chat_over_max_tokens_is_cut_for_length(limit: str) -> None:
    """The limit counts words, and the answer says that it was reached."""
    backend = scripted("one two three")

    plain = await ask(backend, extra={limit: 2})
    stream = await ask_stream(backend, extra={limit: 2})

    assert plain["choices"][0]["message"]["content"] == "one two "
    assert plain["choices"][0]["finish_reason"] == "length"
    assert plain["usage"]["completion_tokens"] == 2
    assert streamed_text(stream) == "one two "
    assert b'"finish_reason":"length"' in stream


async def test_chat_within_max_tokens_stops_by_itself() -> None:
    """A limit that is just enough cuts nothing."""
    completion = await ask(scripted("one two three"), extra={"max_tokens": 3})

    assert completion["choices"][0]["finish_reason"] == "stop"


async def test_chat_with_content_parts_reads_their_text() -> None:
    """Text parts are read, pictures are not, and the last user message is the question."""
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "what is"}, {"type": "image_url", "image_url": {}}]},
        {"role": "assistant", "content": None},
    ]

    completion = await ask(scripted(), extra={"messages": messages})

    assert completion["choices"][0]["message"]["content"].endswith("You said: what is")
    assert completion["usage"]["prompt_tokens"] == 4


async def test_completion_answers_every_prompt() -> None:
    """Two prompts with two choices each are four answers, in order, in OpenAI's shape."""
    body = await ask(scripted(), operation=Operation.COMPLETION, extra={"prompt": ["red", "blue"], "n": 2})

    completion = Completion.model_validate(body)
    assert [choice.text.split()[-1] for choice in completion.choices] == ["red", "red", "blue", "blue"]
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]


async def test_completion_stream_joins_to_the_text() -> None:
    """The pieces of a streamed completion are its text."""
    stream = await ask_stream(scripted("one two"), operation=Operation.COMPLETION, extra={"max_tokens": 5})

    # OpenAI's type does not allow the null that its own server sends for an unfinished choice, so none is used here.
    values = event_values(stream)
    assert "".join(choice["text"] for value in values for choice in value["choices"]) == "one two"
    assert values[-1]["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert stream.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("prompt", "num_choices", "num_tokens"),
    [([1, 2, 3], 1, 3), ([[1, 2], [3]], 2, 3), (["a b", "c"], 2, 3), ("", 1, 0)],
)
async def test_completion_prompt_takes_every_form(prompt: Any, num_choices: int, num_tokens: int) -> None:
    """Text, texts, token ids and lists of them are all prompts."""
    body = await ask(scripted("ok"), operation=Operation.COMPLETION, extra={"prompt": prompt})

    assert len(body["choices"]) == num_choices
    assert body["usage"]["prompt_tokens"] == num_tokens


async def test_embedding_is_a_repeatable_unit_vector() -> None:
    """The same text always has the same vector, another text another one, all of length one."""
    backend = scripted()

    first = await ask(backend, operation=Operation.EMBEDDING, extra={"input": ["red", "blue", "red"]})
    red, blue, red_again = (item.embedding for item in CreateEmbeddingResponse.model_validate(first).data)

    assert red == red_again
    assert red != blue
    assert math.hypot(*red) == pytest.approx(1.0, abs=1e-6)
    assert first["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


async def test_embedding_in_base64_is_the_same_vector() -> None:
    """Both encodings carry the same numbers."""
    backend = scripted()

    floats = await ask(backend, operation=Operation.EMBEDDING, extra={"dimensions": 8})
    packed = await ask(backend, operation=Operation.EMBEDDING, extra={"dimensions": 8, "encoding_format": "base64"})

    vector = array("f", base64.b64decode(packed["data"][0]["embedding"]))
    assert vector.tolist() == floats["data"][0]["embedding"]
    assert len(vector) == 8


async def test_embedding_with_fewer_dimensions_points_the_same_way() -> None:
    """A shorter vector is the beginning of the longer one, scaled."""
    backend = scripted()

    long, short = [
        (await ask(backend, operation=Operation.EMBEDDING, extra={"dimensions": size}))["data"][0]["embedding"]
        for size in (16, 4)
    ]

    scale = short[0] / long[0]
    assert short == pytest.approx([value * scale for value in long[:4]], rel=1e-5)


async def test_embedding_asked_as_a_stream_is_plain() -> None:
    """There are no streamed embeddings, so the field means nothing there."""
    reply = await scripted().send(make_call(operation=Operation.EMBEDDING, stream=True, deadline=LATER))

    assert reply.body is not None
    assert reply.header(b"content-type") == b"application/json"


@pytest.mark.parametrize("limit", [None, 1], ids=["whole", "cut short"])
async def test_response_validates_as_openai_type(limit: int | None) -> None:
    """OpenAI's own client accepts the response; one cut short says so."""
    extra = {"max_output_tokens": limit}

    response = Response.model_validate(await ask(scripted("one two"), operation=Operation.RESPONSES, extra=extra))

    assert response.output_text == ("one two" if limit is None else "one ")
    assert response.status == ("completed" if limit is None else "incomplete")
    assert response.usage is not None
    assert response.usage.output_tokens == (limit or 2)


async def test_response_stream_validates_as_openai_type() -> None:
    """Every event of a streamed response is known to OpenAI's own client, numbered, and the last is the whole."""
    backend = scripted("one two")
    messages = [{"role": "user", "content": [{"type": "input_text", "text": "three words here"}]}]

    stream = await ask_stream(backend, operation=Operation.RESPONSES, extra={"input": messages})

    events = [STREAM_EVENT.validate_python(value) for value in event_values(stream)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "one two"
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "one two"
    assert events[-1].response.usage.input_tokens == 3
    names = [line[7:].decode() for line in stream.splitlines() if line.startswith(b"event: ")]
    assert names == [event.type for event in events]


async def test_passthrough_is_unknown() -> None:
    """What it does not do is a typed error."""
    with pytest.raises(UnknownPath, match="POST /echo"):
        await scripted().send(make_call(operation=Operation.PASSTHROUGH, deadline=LATER))


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 10**9}, "n"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
    ],
)
async def test_chat_that_cannot_be_used_names_the_field(extra: dict[str, Any], param: str) -> None:
    """A body that makes no sense is refused with the field's name."""
    with pytest.raises(InvalidRequest) as refused:
        await ask(scripted(), extra=extra)

    assert refused.value.param == param


async def test_call_without_json_body_is_refused() -> None:
    """A body that is no JSON object cannot be answered."""
    with pytest.raises(InvalidRequest):
        await ask(scripted(), body=None, raw=b"hello")


@given(text=st.text(), limit=st.integers(1, 50))
def test_words_of_any_text_join_to_it(text: str, limit: int) -> None:
    """Cutting a reply into deltas loses and adds nothing, up to the limit."""
    call = make_call(stream=True, deadline=LATER)
    limited = make_call(stream=True, deadline=LATER, extra={"max_tokens": limit})

    whole = b"".join(answer(call, text, number=1, created=0).pieces)
    part = answer(limited, text, number=1, created=0)

    assert streamed_text(whole) == text
    assert text.startswith(streamed_text(b"".join(part.pieces)))
    assert part.usage.completion_tokens <= limit


@given(
    body=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["messages", "prompt", "input", "content", "n", "text", "role"]), inner)
        ),
        max_leaves=12,
    ),
    operation=st.sampled_from([op for op in Operation if op is not Operation.PASSTHROUGH]),
)
def test_any_body_is_answered_or_refused(body: Any, operation: Operation) -> None:
    """Whatever JSON arrives, there is an answer or an InvalidRequest."""
    call = make_call(operation=operation, deadline=LATER, body=body)
    try:
        said = answer(call, "ok", number=1, created=0)
    except InvalidRequest:
        return

    assert msgspec.json.decode(next(said.pieces))
