"""`timeouts.total` holds whatever backend there is: one that ignores its deadline is broken off."""

from __future__ import annotations

import time

import httpx
import msgspec
import pytest

from tests.support.errors import openai_error
from tests.support.gateway import start_gateway
from tests.support.http_client import HttpClient
from tests.support.plugin import plugin

CHAT = "/v1/chat/completions"
TOTAL_S = 0.5
LATEST_S = TOTAL_S + 1.0 + 0.25 + 2.0
"""Its grace, one look of the timer, and a machine that has other work."""
POLICY = """
version: 1
backends: {deaf: {type: mine}, own: {type: scripted}}
defaults: {timeouts: {total: 500ms}}
routes:
  - {name: deaf, match: {models: [deaf]}, backends: [{ref: deaf}]}
  - {name: own, match: {models: [own]}, backends: [{ref: own}]}
"""
DEAF = """
import asyncio
from backends.protocol import Reply
from backends.registry import Kind
from backends.scripted.script import Scripted, ScriptedConfig
from backends.stream import Stream

class Endless:
    def __init__(self):
        self.has_begun = False

    async def read(self):
        if not self.has_begun:
            self.has_begun = True
            return b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\\n\\n'
        await asyncio.get_running_loop().create_future()

    async def aclose(self):
        pass

class Deaf(Scripted):
    async def send(self, call):
        if call.stream:
            return Reply(200, [(b"content-type", b"text/event-stream")], stream=Stream(Endless()))
        await asyncio.get_running_loop().create_future()

KIND = Kind(config=ScriptedConfig, build=Deaf)
"""


def question(model: str, *, stream: bool) -> bytes:
    """The body of a chat."""
    messages = [{"role": "user", "content": "hi"}]
    return msgspec.json.encode({"model": model, "stream": stream, "messages": messages})


@pytest.mark.timed
async def test_backend_that_waits_for_ever_is_broken_off() -> None:
    """Whole, a client gets 504; in a stream an error event and no end. Nothing stays behind."""
    with plugin(DEAF) as environ:
        async with start_gateway(POLICY, environ=environ) as gateway:
            client = await HttpClient.open(gateway.port)
            began = time.monotonic()
            whole = await client.post(CHAT, question("deaf", stream=False))
            whole_s = time.monotonic() - began
            began = time.monotonic()
            streamed = await client.post(CHAT, question("deaf", stream=True))
            streamed_s = time.monotonic() - began
            async with httpx.AsyncClient(base_url=gateway.url, verify=False) as other:
                after = await other.post(CHAT, content=question("own", stream=False))
            metrics = await gateway.metrics()
            await gateway.terminate()
            assert "Traceback" not in gateway.stderr

    assert whole.error() is not None
    assert (whole.status, whole.json()["error"]["code"]) == (504, "total_timeout")
    assert TOTAL_S <= whole_s <= LATEST_S
    assert (streamed.status, streamed.is_whole) == (200, False)
    assert b'"total_timeout"' in streamed.body
    assert TOTAL_S <= streamed_s <= LATEST_S
    assert after.status_code == 200
    assert metrics.value("slipstream_requests_in_flight") == 0


ODD_REPLIES = {
    "status": "Reply(600, [], body=b'{}')",
    "field": "Reply(200, [(b'x-a', b'1\\r\\nx-b: 2')], body=b'{}')",
}


@pytest.mark.parametrize("reply", ODD_REPLIES.values(), ids=ODD_REPLIES.keys())
async def test_reply_of_a_plugin_that_cannot_be_sent_is_an_error_in_openais_shape(reply: str) -> None:
    """What fails when an answer is to be written is told like any other failure, and never as text."""
    source = DEAF.replace(
        "        await asyncio.get_running_loop().create_future()\n\nKIND", f"        return {reply}\n\nKIND"
    )
    with plugin(source) as environ:
        async with start_gateway(POLICY, environ=environ) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
                answer = await client.post(CHAT, content=question("deaf", stream=False))

    assert openai_error(answer, 500)["code"] == "internal_error"
