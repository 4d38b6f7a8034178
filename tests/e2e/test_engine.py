"""A model in the gateway's own process, as its users meet it: a real process, OpenAI's own client, raw sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.support.gateway import Gateway, gateway_process, running_gateway

pytest.importorskip("torch")
pytest.importorskip("transformers")

_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "{% endfor %}"
)
GREEDY: dict[str, Any] = {"temperature": 0, "extra_body": {"ignore_eos": True}}


class Answer(BaseModel):
    """A form that an answer may be held to."""

    is_so: bool


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folders of a tiny random model, whose template knows tools, and its draft."""
    from tests.support.engine.tiny_pair import make_pair

    made = make_pair(tmp_path_factory.mktemp("pair"))
    (made.target / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def gateway(pair: Any) -> Iterator[Gateway]:
    """`slipstream serve --model DIR --draft DIR`."""
    with running_gateway(None, args=["--model", str(pair.target), "--draft", str(pair.draft), "--device", "cpu"]) as it:
        yield it


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's client."""
    async with AsyncOpenAI(base_url=gateway.url + "/v1", api_key="-", max_retries=0) as client:
        yield client


async def in_hand(gateway: Gateway) -> float:
    """Answers that the engine works on, or that wait, and the share of pages in use."""
    metrics = await gateway.metrics()
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return sum(metrics.value(name) for name in names)


async def test_engine_response_is_the_chat_answer(client: AsyncOpenAI) -> None:
    """The same question in both APIs, whole and streamed: the same words and tokens."""
    chat = await client.chat.completions.create(
        model="target", messages=[{"role": "user", "content": "hello"}], max_tokens=12, **GREEDY
    )
    response = await client.responses.create(model="target", input="hello", max_output_tokens=12, **GREEDY)
    async with client.responses.stream(model="target", input="hello", max_output_tokens=12, **GREEDY) as stream:
        types = [event.type async for event in stream]

    assert response.output_text == chat.choices[0].message.content
    assert (response.status, types[0], types[-1]) == ("incomplete", "response.created", "response.incomplete")
    assert response.usage is not None
    assert chat.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (5, 12)
    assert response.usage.total_tokens == chat.usage.total_tokens


async def test_engine_response_is_parsed_by_its_form(client: AsyncOpenAI) -> None:
    """The client's own helper sends its class as text.format and reads it back."""
    response = await client.responses.parse(
        model="target", input="hello", text_format=Answer, temperature=0, max_output_tokens=200
    )

    assert isinstance(response.output_parsed, Answer)


async def test_engine_response_calls_the_function_that_it_must(client: AsyncOpenAI) -> None:
    """A function that is named is called, and its output goes back with the next question."""
    parameters = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    asked: dict[str, Any] = {
        "model": "target",
        "tools": [{"type": "function", "name": "f", "parameters": parameters, "strict": True}],
        "temperature": 0,
        "max_output_tokens": 100,
    }

    response = await client.responses.create(input="hello", tool_choice={"type": "function", "name": "f"}, **asked)
    [call] = response.output
    assert call.type == "function_call"
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    again = await client.responses.create(
        input=[{"role": "user", "content": "hello"}, call.model_dump(), output],  # type: ignore[list-item]
        **asked,
    )

    assert set(json.loads(call.arguments)) == {"ok"}
    assert again.usage is not None
    assert response.usage is not None
    assert again.usage.input_tokens > response.usage.input_tokens


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_engine_client_that_leaves_frees_everything(gateway: Gateway, stream: bool) -> None:
    """Connections cut in the middle of long answers: no answer and no page is left behind."""
    body = json.dumps(
        {
            "model": "target",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 480,
            "n": 4,
            "stream": stream,
            "ignore_eos": True,
        }
    ).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n"
    )
    writers = []
    for _ in range(5):
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head % len(body) + body)
        writers.append(writer)
    async with asyncio.timeout(5):
        while not await in_hand(gateway):
            await asyncio.sleep(0.005)

    for writer in writers:
        writer.transport.abort()

    async with asyncio.timeout(5):
        while await in_hand(gateway):
            await asyncio.sleep(0.005)


async def test_engine_that_is_asked_to_stop_finishes_its_answers(pair: Any) -> None:
    """SIGTERM in the middle of a stream: it comes whole, and the process ends by itself."""
    with running_gateway(None, args=["--model", str(pair.target), "--device", "cpu"]) as gateway:
        async with AsyncOpenAI(base_url=gateway.url + "/v1", api_key="-", max_retries=0) as client:
            stream = await client.completions.create(
                model="target", prompt="hello", max_tokens=300, stream=True, **GREEDY
            )
            first = await anext(aiter(stream))
            gateway.process.terminate()
            reasons = [chunk.choices[0].finish_reason async for chunk in stream]

        assert first.choices[0].finish_reason is None
        assert reasons[-1] == "length"
        assert await gateway.wait_exit() == 0


def test_engine_that_cannot_be_loaded_ends_with_a_line(pair: Any, tmp_path: Path) -> None:
    """The file and what to do, without a traceback."""
    for file in pair.target.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])

    with gateway_process(None, args=["--model", str(tmp_path), "--device", "cpu"]) as gateway:
        code = gateway.process.wait(60)
        said = gateway.stderr

    assert code == 1
    assert said.splitlines()[-1].startswith(f"Error: backends.model: {weights} is torn")
    assert "Traceback" not in said
