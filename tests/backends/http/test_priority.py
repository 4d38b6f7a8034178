"""A body's own `priority` upstream: a caller goes behind others by it, and before them only where its key may."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends.clock import SystemClock
from backends.http.openai import KIND
from backends.http.openai_settings import OpenAIConfig
from backends.operations import Operation
from backends.protocol import Priority
from tests.support.calls import make_call, read_all
from tests.support.servers.openai_server import OpenAIServer


async def sent(asked: bytes, allowed: Priority, operation: Operation = Operation.CHAT, **config: Any) -> bytes:
    """The body that the upstream gets of one with that priority."""
    raw = b'{"n": 1.0, "priority" : %b, "messages":[{"content":"\\u0041"}]}' % asked
    async with OpenAIServer() as server:
        settings = OpenAIConfig.model_validate({**config, "base_url": server.base_url})
        backend = KIND.build("up", settings, SystemClock())
        call = make_call(operation=operation, model="", raw=raw, priority=allowed)
        await read_all(await backend.send(msgspec.structs.replace(call, body=msgspec.json.decode(raw))))
        await backend.aclose()
    return (
        server.requests[0]
        .body.replace(b'{"n": 1.0, "priority" : ', b"")
        .replace(b', "messages":[{"content":"\\u0041"}]}', b"")
    )


@pytest.mark.parametrize("allowed", [Priority.NORMAL, Priority.LOW])
@pytest.mark.parametrize("asked", [b"-1000", b"-0.5", b'"-5"', b'" -1_000 "', b"-1" + b"0" * 400, b"-1e300"])
async def test_priority_before_others_is_sent_as_none(asked: bytes, allowed: Priority) -> None:
    """vLLM takes the lowest first, and reads numbers in texts; no other byte changes."""
    assert await sent(asked, allowed) == b"0"


@pytest.mark.parametrize("operation", [Operation.EMBEDDING, Operation.PASSTHROUGH])
async def test_priority_before_others_is_none_for_every_operation(operation: Operation) -> None:
    """Scores and rankings wait in the same line."""
    assert await sent(b"-1", Priority.NORMAL, operation) == b"0"


@pytest.mark.parametrize("asked", [b"5", b"0", b"null", b'"high"', b"[-1]", b"true"])
async def test_priority_behind_others_is_sent_as_it_came(asked: bytes) -> None:
    """So is what is no number: that is the upstream's matter."""
    assert await sent(asked, Priority.NORMAL) == asked


async def test_priority_of_a_high_key_is_sent_as_it_came() -> None:
    """The operator has said that it goes before others."""
    assert await sent(b"-5", Priority.HIGH) == b"-5"


@pytest.mark.parametrize(("asked", "expected"), [(b"5", b"0"), (b"-5", b"-5"), (b"true", b"0")])
async def test_priority_of_a_server_that_takes_the_highest_first_is_bounded_above(
    asked: bytes, expected: bytes
) -> None:
    """SGLang is such a one, as its preset knows."""
    assert await sent(asked, Priority.NORMAL, preset="sglang") == expected
