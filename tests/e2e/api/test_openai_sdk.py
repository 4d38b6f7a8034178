"""OpenAI's own Python client against the gateway: what it sends is served, what it expects comes back."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import openai as sdk
import pytest
from openai import AsyncOpenAI

from backends.errors import error_body
from tests.e2e.conftest import ENVIRON
from tests.support.gateway import Gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error, html_error

ASK: Any = [{"role": "user", "content": "hello there"}]
MODELS = ["plain", "scripted"]
"""Through an HTTP upstream, and the built-in backend."""

TOOL_ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": None,
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city":"Bern"}'},
                    }
                ],
            },
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}


@pytest.mark.parametrize("model", MODELS)
async def test_sdk_chat_is_answered(openai: AsyncOpenAI, upstream: OpenAIServer, model: str) -> None:
    """A whole answer, parsed, with its usage and request id."""
    answer = await openai.chat.completions.create(model=model, messages=ASK)

    assert "hello there" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens > 0
    assert answer._request_id is not None
    assert answer._request_id.startswith("req_")


@pytest.mark.parametrize("model", MODELS)
async def test_sdk_stream_is_read_to_its_end(openai: AsyncOpenAI, upstream: OpenAIServer, model: str) -> None:
    """Deltas add up, the finish reason comes, and no usage chunk that nobody asked for."""
    stream: Any = await openai.chat.completions.create(model=model, messages=ASK, stream=True)
    chunks = [chunk async for chunk in stream]

    assert "hello there" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize("model", [*MODELS, "cached-sdk-usage"])
async def test_sdk_stream_with_usage_gets_one_chunk_of_it_last(
    openai: AsyncOpenAI, upstream: OpenAIServer, model: str
) -> None:
    """`include_usage` is the client's to ask for."""
    for _ in range(2):
        stream: Any = await openai.chat.completions.create(
            model=model, messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]

        assert [chunk.usage is not None for chunk in chunks].index(True) == len(chunks) - 1
        assert chunks[-1].choices == []


@pytest.mark.parametrize("model", ["plain", "cached-sdk-tools"])
async def test_sdk_tool_calls_arrive_whole(openai: AsyncOpenAI, upstream: OpenAIServer, model: str) -> None:
    """Tools go up and calls come down, also a second time."""
    upstream.default = Behaviour(body=json.dumps(TOOL_ANSWER).encode())
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    for _ in range(2):
        answer = await openai.chat.completions.create(
            model=model, messages=ASK, tools=tools, tool_choice="auto", parallel_tool_calls=False
        )

        call = (answer.choices[0].message.tool_calls or [])[0]
        assert call.type == "function"
        assert json.loads(call.function.arguments) == {"city": "Bern"}
    assert upstream.requests[0].json()["tools"] == tools


async def test_sdk_structured_output_sends_its_schema(openai: AsyncOpenAI, upstream: OpenAIServer) -> None:
    """`response_format` with a schema travels."""
    schema: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}}

    await openai.chat.completions.create(
        model="plain", messages=ASK, response_format=schema, extra_body={"chat_template_kwargs": {"think": False}}
    )

    sent = upstream.requests[0].json()
    assert sent["response_format"] == schema
    assert sent["chat_template_kwargs"] == {"think": False}


@pytest.mark.parametrize("model", [*MODELS, "cached-sdk-embed"])
async def test_sdk_embeddings_come_in_their_default_form(
    openai: AsyncOpenAI, upstream: OpenAIServer, model: str
) -> None:
    """The client asks for base64 behind its user's back: order and dimensions hold, also from a cache."""
    for _ in range(2):
        answer = await openai.embeddings.create(model=model, input=["one", "two", "three"], dimensions=8)
        plain = await openai.embeddings.create(
            model=model, input=["one", "two", "three"], dimensions=8, encoding_format="float"
        )

        assert [item.index for item in answer.data] == [0, 1, 2]
        for item, floats in zip(answer.data, plain.data, strict=True):
            assert item.embedding == pytest.approx(floats.embedding, abs=1e-6)
            assert len(item.embedding) == 8


async def test_embeddings_in_base64_are_little_endian_floats(openai: AsyncOpenAI, upstream: OpenAIServer) -> None:
    """What is on the wire, seen without the client's own decoding."""
    raw = await openai.embeddings.with_raw_response.create(
        model="scripted", input="one", dimensions=4, encoding_format="base64"
    )

    encoded = raw.http_response.json()["data"][0]["embedding"]
    assert len(struct.unpack("<4f", base64.b64decode(encoded))) == 4


async def test_sdk_lists_and_retrieves_models(openai: AsyncOpenAI, upstream: OpenAIServer) -> None:
    """The policy's names, ids with slashes, and what the upstream behind a glob lists."""
    models = [model.id async for model in openai.models.list()]
    one = await openai.models.retrieve("team/alias-2")

    assert {"alias", "team/alias-2", "scripted", "plain", "cached"} <= set(models)
    assert not any("*" in model for model in models)
    assert (one.id, one.object) == ("team/alias-2", "model")
    with pytest.raises(sdk.NotFoundError) as caught:
        await openai.models.retrieve("no/such")
    assert caught.value.code == "model_not_found"


async def test_sdk_responses_pass_through(openai: AsyncOpenAI, upstream: OpenAIServer) -> None:
    """The Responses API, whole and streamed."""
    whole = await openai.responses.create(model="plain", input="hello there")
    stream: Any = await openai.responses.create(model="plain", input="hello there", stream=True)
    events = [event async for event in stream]

    assert "hello there" in whole.output_text
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"


async def test_sdk_completions_are_served(openai: AsyncOpenAI, upstream: OpenAIServer) -> None:
    """The old operation, with a prompt of several texts."""
    answer = await openai.completions.create(model="plain", prompt=["a", "b"], echo=True, logprobs=1)

    assert upstream.requests[0].json() == {"model": "plain", "prompt": ["a", "b"], "echo": True, "logprobs": 1}
    assert answer.choices


@pytest.mark.parametrize(
    ("behaviour", "expected", "code"),
    [
        (error(400), sdk.BadRequestError, None),
        (error(403), sdk.PermissionDeniedError, None),
        (error(404), sdk.NotFoundError, None),
        (error(409), sdk.ConflictError, None),
        (error(422), sdk.UnprocessableEntityError, None),
        (error(429, retry_after="7"), sdk.RateLimitError, None),
        (error(500), sdk.InternalServerError, None),
        (error(503), sdk.InternalServerError, None),
        (error(401), sdk.InternalServerError, "upstream_authentication_failed"),
        (html_error(502), sdk.InternalServerError, "upstream_invalid_response"),
        (Behaviour(raw=b""), sdk.InternalServerError, "upstream_cut"),
    ],
    ids=lambda value: str(getattr(value, "status", None) or getattr(value, "__name__", value)),
)
@pytest.mark.parametrize("stream", [False, True])
async def test_sdk_raises_its_own_exception_for_each_error(
    openai: AsyncOpenAI,
    upstream: OpenAIServer,
    behaviour: Behaviour,
    expected: type[sdk.APIStatusError],
    code: str | None,
    stream: bool,
) -> None:
    """Status, message, code and request id are there for whoever catches it, before the first byte of a stream too."""
    upstream.next(behaviour)

    with pytest.raises(expected) as caught:
        await openai.chat.completions.create(model="plain", messages=ASK, stream=stream)

    assert caught.value.code == code
    assert caught.value.body is not None
    assert caught.value.request_id is not None
    if behaviour.status == 429:
        assert caught.value.response.headers["retry-after"] == "7"


async def test_sdk_sees_the_code_that_agents_act_on(openai: AsyncOpenAI, upstream: OpenAIServer) -> None:
    """`context_length_exceeded` and its param come as the upstream sent them."""
    body = error_body("too long", type="invalid_request_error", param="messages", code="context_length_exceeded")
    upstream.next(Behaviour(status=400, body=body))

    with pytest.raises(sdk.BadRequestError) as caught:
        await openai.chat.completions.create(model="plain", messages=ASK)

    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


async def test_sdk_retries_as_retry_after_says(gateway: Gateway, upstream: OpenAIServer) -> None:
    """The client's own retry sees the upstream's wait."""
    upstream.next(Behaviour(status=429, headers=(("retry-after-ms", "20"),), body=error_body("slow", type="x")))
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=ENVIRON["DEV_KEY"], max_retries=1) as client:
        answer = await client.chat.completions.create(model="plain", messages=ASK)

    assert answer.choices
    assert len(upstream.requests) == 2


async def test_sdk_sees_a_cut_stream_as_an_error(openai: AsyncOpenAI, upstream: OpenAIServer) -> None:
    """A stream that breaks off never ends like a whole one."""
    upstream.next(Behaviour(cut_after_events=3))
    stream: Any = await openai.chat.completions.create(model="plain", messages=ASK, stream=True)

    with pytest.raises(sdk.APIError) as caught:
        async for _ in stream:
            pass

    assert caught.value.code == "upstream_cut"


async def test_sdk_with_a_wrong_key_gets_an_authentication_error(gateway: Gateway) -> None:
    """401 is ours alone."""
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="sk-wrong", max_retries=0) as client:
        with pytest.raises(sdk.AuthenticationError) as caught:
            await client.chat.completions.create(model="plain", messages=ASK)

    assert caught.value.code == "invalid_api_key"


async def test_sdk_with_a_base_url_without_v1_works(gateway: Gateway, upstream: OpenAIServer) -> None:
    """Some people leave it away."""
    async with AsyncOpenAI(base_url=gateway.url, api_key=ENVIRON["DEV_KEY"], max_retries=0) as client:
        answer = await client.chat.completions.create(model="plain", messages=ASK)
        models = [model.id async for model in client.models.list()]

    assert answer.choices
    assert models


async def test_sdk_files_and_audio_pass_through(openai: AsyncOpenAI, upstream: OpenAIServer) -> None:
    """Multipart goes up as it was sent, binary comes back as it was."""
    sound = bytes(range(256)) * 40
    upstream.next(Behaviour(body=b'{"text":"hi"}'), Behaviour(body=sound, content_type="audio/mpeg"))

    transcript = await openai.audio.transcriptions.create(model="whisper-1", file=("a.wav", sound))
    speech = await openai.audio.speech.create(model="tts-1", voice="alloy", input="hi")

    assert transcript.text == "hi"
    assert sound in upstream.requests[0].body
    assert speech.read() == sound
