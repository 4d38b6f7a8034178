"""What providers' prompt caches are told: the key for OpenAI's, the marks for Anthropic's, and nothing else changed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends.clock import SystemClock
from backends.http.anthropic.messages import KIND as ANTHROPIC
from backends.http.anthropic.messages import AnthropicConfig
from backends.http.openai import KIND as OPENAI
from backends.http.openai_settings import OpenAIConfig
from backends.operations import Operation
from tests.support.calls import make_call, read_all
from tests.support.servers.anthropic_server import KEY, AnthropicServer
from tests.support.servers.openai_server import OpenAIServer

_MARK = {"type": "ephemeral"}
_TOOL = {"type": "function", "function": {"name": "now"}}
_QUESTION = {"role": "user", "content": "Well?"}
_BODIES = [
    (
        Operation.CHAT,
        b'{ "messages":[{"content" :"\\u0041"} ] ,"n":1.0}',
        b'{"prompt_cache_key":"k", "messages":[{"content" :"\\u0041"} ] ,"n":1.0}',
    ),
    (Operation.RESPONSES, b'{"input": "a\\u0062"}', b'{"prompt_cache_key":"k","input": "a\\u0062"}'),
    (Operation.RESPONSES, b'{"prompt_cache_key" : null, "input":"x"}', b'{"prompt_cache_key" : "k", "input":"x"}'),
    (Operation.RESPONSES, b'{"prompt_cache_key" : "own", "input":"x"}', b'{"prompt_cache_key" : "own", "input":"x"}'),
    (Operation.COMPLETION, b'{"prompt": "x"}', b'{"prompt": "x"}'),
    (Operation.EMBEDDING, b'{"input": "x"}', b'{"input": "x"}'),
]


@pytest.mark.parametrize(
    ("operation", "raw", "expected"), _BODIES, ids=["chat", "responses", "null", "own", "completion", "embedding"]
)
async def test_send_to_openai_adds_the_key_and_changes_no_other_byte(
    operation: Operation, raw: bytes, expected: bytes
) -> None:
    """Spliced in where the API knows the field and the client gave none; a call without a key goes as it came."""
    async with OpenAIServer() as server:
        config = OpenAIConfig.model_validate({"base_url": server.base_url})
        backend = OPENAI.build("up", config, SystemClock())
        for key in ("k", ""):
            call = make_call(operation=operation, prompt_cache_key=key, model="", raw=raw)
            await read_all(await backend.send(msgspec.structs.replace(call, body=msgspec.json.decode(raw))))
        await backend.aclose()

    assert [request.body for request in server.requests] == [expected, raw]


async def ask_anthropic(body: dict[str, Any], *keys: str) -> list[dict[str, Any]]:
    """What the Messages API is sent for that body, with each of these keys."""
    async with AnthropicServer() as server:
        config = AnthropicConfig.model_validate(
            {"api_key": "env:KEY", "base_url": server.base_url}, context={"environ": {"KEY": KEY}}
        )
        backend = ANTHROPIC.build("claude", config, SystemClock())
        for key in keys:
            await read_all(await backend.send(make_call(extra=body, prompt_cache_key=key)))
        await backend.aclose()
    return [request.body for request in server.requests]


async def test_send_to_anthropic_marks_the_ends_of_tools_system_and_messages() -> None:
    """Each once, at its last block, and nothing else differs from the call without a key."""
    system = {"role": "system", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]}
    asked = [system, _QUESTION, {"role": "assistant", "content": "Hm."}, {"role": "user", "content": "And?"}]
    marked, plain = await ask_anthropic({"messages": asked, "tools": [_TOOL, _TOOL]}, "k", "")

    ends = [marked["tools"][-1], marked["system"][-1], marked["messages"][-1]["content"][-1]]
    assert [end.pop("cache_control") for end in ends] == [_MARK] * 3
    assert marked == plain
    assert b"cache_control" not in msgspec.json.encode(plain)


async def test_send_to_anthropic_without_tools_or_system_marks_the_messages_only() -> None:
    """Where there is nothing to mark there is no mark."""
    (sent,) = await ask_anthropic({"messages": [_QUESTION]}, "k")

    assert sent["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Well?", "cache_control": _MARK}]}
    ]


@pytest.mark.parametrize(
    "own",
    [
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"tools": [{**_TOOL, "cache_control": _MARK}, _TOOL]},
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "a", "cache_control": _MARK}]},
                _QUESTION,
            ]
        },
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": _MARK}]}, _QUESTION]},
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "now", "arguments": ""}}]},
                {
                    "role": "tool",
                    "tool_call_id": "c",
                    "content": [{"type": "text", "text": "noon", "cache_control": _MARK}],
                },
                _QUESTION,
            ]
        },
    ],
    ids=["whole", "tool", "system", "message", "tool_result"],
)
async def test_send_to_anthropic_leaves_a_client_that_marks_alone(own: dict[str, Any]) -> None:
    """Who marks anything has decided about everything."""
    body = {"messages": [_QUESTION], "tools": [_TOOL], **own}
    with_key, without = await ask_anthropic(body, "k", "")

    assert with_key == without
    assert b"cache_control" in msgspec.json.encode(without)
