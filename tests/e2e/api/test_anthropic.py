"""Anthropic's clients against the gateway, and OpenAI's client against an Anthropic upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic as sdk
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.anthropic_server import (
    KEY,
    AnthropicServer,
    make_message,
    text_block,
    thinking_block,
    tool_block,
)

GATEWAY_KEY = "sk-gateway-0123456789"
POLICY = """
version: 1
backends:
  through: {{type: openai, base_url: "{url}", api_key: "env:UP", auth_header: x-api-key, auth_scheme: ""}}
  spoken: {{type: anthropic, base_url: "{url}", api_key: "env:UP"}}
keys: [{{name: dev, key: "env:KEY"}}]
routes:
  - {{name: messages, match: {{paths: ["/v1/messages*"]}}, backends: [{{ref: through}}]}}
  - {{name: chat, match: {{models: ["claude-*"]}}, backends: [{{ref: spoken}}]}}
"""
ASK: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def upstream() -> AsyncIterator[AnthropicServer]:
    """An upstream that speaks the Messages API."""
    async with AnthropicServer() as server:
        yield server


@pytest.fixture
async def gateway(upstream: AnthropicServer) -> AsyncIterator[Gateway]:
    """A gateway that passes Messages through and translates chats."""
    environ = {"UP": KEY, "KEY": GATEWAY_KEY}
    async with start_gateway(POLICY.format(url=upstream.base_url), environ=environ) as gateway:
        yield gateway


async def test_anthropic_sdk_talks_through_the_gateway(gateway: Gateway, upstream: AnthropicServer) -> None:
    """Its base URL has no /v1, its key comes as x-api-key: whole answers, streams, and errors of both sides."""
    async with AsyncAnthropic(base_url=gateway.url, api_key=GATEWAY_KEY, max_retries=0) as client:
        whole = await client.messages.create(model="claude-x", max_tokens=9, messages=ASK)
        async with client.messages.stream(model="claude-x", max_tokens=9, messages=ASK) as stream:
            streamed = await stream.get_final_message()
        with pytest.raises(sdk.BadRequestError, match="max_tokens"):
            await client.post("/v1/messages", body={"model": "claude-x"}, cast_to=object)
    async with AsyncAnthropic(base_url=gateway.url, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(sdk.AuthenticationError):
            await stranger.messages.create(model="claude-x", max_tokens=9, messages=ASK)

    for message in (whole, streamed):
        assert message.content[0].type == "text"
        assert message.content[0].text == "Hello there."
    assert len(upstream.requests) == 3
    for request in upstream.requests:
        assert request.headers["x-api-key"] == KEY
        assert request.headers["anthropic-version"]


async def test_openai_sdk_talks_to_an_anthropic_upstream(gateway: Gateway, upstream: AnthropicServer) -> None:
    """Chats are translated both ways: whole, streamed, with tools and usage."""
    upstream.message = make_message(text_block("Hello there."), tool_block("tool_1", "weather", {"city": "Bern"}))
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=GATEWAY_KEY, max_retries=0) as client:
        whole = await client.chat.completions.create(model="claude-x", messages=ASK, tools=tools)
        async with client.chat.completions.stream(model="claude-x", messages=ASK, tools=tools) as stream:
            streamed = await stream.get_final_completion()

    for answer in (whole, streamed):
        message = answer.choices[0].message
        call = (message.tool_calls or [])[0]
        assert message.content == "Hello there."
        assert call.type == "function"
        assert (call.function.name, call.function.arguments.replace(" ", "")) == ("weather", '{"city":"Bern"}')
    assert whole.usage is not None
    assert whole.usage.total_tokens == 15
    line = await gateway.wait_log(lambda line: line.get("stream_end") == "clean")
    assert line["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_openai_sdk_brings_back_what_was_thought(
    gateway: Gateway, upstream: AnthropicServer, is_streamed: bool
) -> None:
    """Claude takes the results of tools only with its own signed thoughts before the calls. OpenAI's client sends a
    message back as it came, streamed or not.
    """
    call: Any = tool_block("toolu_1", "weather", {"city": "Bern"})
    first, second = thinking_block("Bern first."), {**thinking_block("And then? 🎉"), "signature": "YW5vdGhlcg=="}
    upstream.message = make_message(first, call, second, text_block("Well."), stop_reason="tool_use")
    asked: Any = {"model": "claude-x", "tools": [{"type": "function", "function": {"name": "weather"}}]}
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=GATEWAY_KEY, max_retries=0) as client:
        if is_streamed:
            async with client.chat.completions.stream(messages=ASK, **asked) as stream:
                answer: Any = await stream.get_final_completion()
        else:
            answer = await client.chat.completions.create(messages=ASK, **asked)
        message = answer.choices[0].message
        result = {"role": "tool", "tool_call_id": "toolu_1", "content": "12 C"}
        told: Any = [*ASK, message.to_dict(), result]
        await client.chat.completions.create(messages=told, **asked)

    assert message.reasoning_content == "Bern first.And then? 🎉"
    _, assistant, _ = upstream.requests[1].body["messages"]
    assert assistant["content"][:2] == [first, second]
    assert [block["type"] for block in assistant["content"][2:]] == ["text", "tool_use"]
