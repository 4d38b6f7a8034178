"""The Messages server of these tests speaks the protocol: the real client library understands it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import pytest

from tests.support.servers.anthropic_server import (
    KEY,
    Answer,
    AnthropicServer,
    make_error,
    make_event,
    make_message,
    message_events,
    text_block,
    thinking_block,
    tool_block,
)

_ASKED = {"model": "claude-test-1", "max_tokens": 16, "messages": [{"role": "user", "content": "hi"}]}
_RICH = make_message(
    thinking_block("Let me think."),
    text_block("I look it up."),
    tool_block("toolu_1", "weather", {"city": "Zürich"}),
    tool_block("toolu_2", "now", {}),
    stop_reason="tool_use",
    cache_read_input_tokens=7,
)


@pytest.fixture
async def server() -> AsyncIterator[AnthropicServer]:
    """The server, listening."""
    async with AnthropicServer() as server:
        yield server


@pytest.fixture
async def client(server: AnthropicServer) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """The real client, pointed at the server."""
    async with anthropic.AsyncAnthropic(base_url=server.origin, api_key=KEY, max_retries=0) as client:
        yield client


async def test_server_whole_answer_is_what_the_real_client_reads(
    server: AnthropicServer, client: anthropic.AsyncAnthropic
) -> None:
    """Every block of an answer passes the library's own types."""
    server.message = _RICH

    message = await client.messages.create(**_ASKED)  # type: ignore[call-overload]

    assert message.to_dict() == _RICH
    assert server.requests[0].body == _ASKED


async def test_server_stream_adds_up_to_the_whole_answer_in_the_real_client(
    server: AnthropicServer, client: anthropic.AsyncAnthropic
) -> None:
    """What the library gathers from the events is the same message."""
    server.message = _RICH

    async with client.messages.stream(**_ASKED) as stream:  # type: ignore[arg-type]
        message = await stream.get_final_message()

    assert message.to_dict() == _RICH


async def test_server_first_error_event_is_an_error_in_the_real_client(
    server: AnthropicServer, client: anthropic.AsyncAnthropic
) -> None:
    """The library takes our error event for one."""
    server.answer = Answer(
        events=[*message_events(_RICH)[:2], make_event(**make_error("overloaded_error", "Overloaded"))]
    )

    with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
        async with client.messages.stream(**_ASKED) as stream:  # type: ignore[arg-type]
            await stream.get_final_message()


async def test_server_wrong_key_is_refused_as_the_real_client_expects(server: AnthropicServer) -> None:
    """Error answers have the API's shape and status."""
    async with anthropic.AsyncAnthropic(base_url=server.origin, api_key="wrong", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
            await client.messages.create(**_ASKED)  # type: ignore[call-overload]
