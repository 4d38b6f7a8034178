"""The gateway fixture itself."""

from __future__ import annotations

import socket

import pytest

from tests.support.gateway import gateway_process, reserved_port, start_gateway

POLICY = """
version: 1
backends: {own: {type: scripted}}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: own}]}]
"""


async def test_gateway_started_answers_logs_reloads_and_ends() -> None:
    """Everything that tests rely on, once."""
    async with start_gateway(POLICY) as gateway:
        answer = await gateway.raw(b"GET /v1/models HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n")
        line = await gateway.wait_log()

        assert answer.startswith(b"HTTP/1.1 200 ")
        assert line["status"] == 200
        assert (await gateway.metrics()).value("slipstream_requests_total") == 1
        assert await gateway.reload(POLICY.replace("all", "every"))
        assert not await gateway.reload("version: 2")
        assert await gateway.terminate() == 0


async def test_gateway_that_cannot_start_says_why() -> None:
    """A wrong policy fails the test with the gateway's own words."""
    with pytest.raises(AssertionError, match="version"):
        async with start_gateway("version: 9"):
            pass


def test_gateway_process_ends_with_its_context() -> None:
    """Nothing is left running."""
    with gateway_process(POLICY) as gateway:
        assert gateway.process.poll() is None

    assert gateway.process.poll() is not None


def test_reserved_port_is_one_to_listen_on() -> None:
    """A server may listen on it, close and listen again."""
    with reserved_port() as port:
        for _ in range(2):
            with socket.create_server(("127.0.0.1", port)):
                pass

        assert port
