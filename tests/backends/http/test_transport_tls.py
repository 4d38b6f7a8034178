"""Our own transport over TLS, with certificates made for the test."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.clock import SystemClock
from backends.errors import ConnectFailed, UpstreamCut
from backends.http.transport import HttpWire, Transport
from tests.support.clock import settle
from tests.support.servers.raw_server import Peer, RawServer, generous


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-made certificate for 127.0.0.1 with its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    pem = folder / "both.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        " -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(
        [*command.split(), "-keyout", folder / "key.pem", "-out", folder / "certificate.pem"],
        check=True,
        capture_output=True,
    )
    pem.write_text((folder / "key.pem").read_text() + (folder / "certificate.pem").read_text())
    return pem


@pytest.fixture
def server_context(certificate: Path) -> ssl.SSLContext:
    """For the server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
async def trusting(certificate: Path) -> AsyncIterator[Transport]:
    """A transport that trusts the certificate."""
    transport = Transport(SystemClock(), ssl_context=ssl.create_default_context(cafile=certificate))
    yield transport
    await transport.aclose()


async def fetch(wire: HttpWire, body: bytes = b"") -> bytes:
    """One whole exchange."""
    exchange = await wire.send("POST", b"/", [], body, generous())
    try:
        return await exchange.body(1 << 24)
    finally:
        await exchange.aclose()


async def echo(peer: Peer) -> None:
    """Send every body back."""
    while True:
        body = (await peer.request()).body
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


@pytest.mark.parametrize("num_bytes", [0, 10, 3_000_000])
async def test_tls_exchange_round_trips_and_keeps_the_connection(
    trusting: Transport, server_context: ssl.SSLContext, num_bytes: int
) -> None:
    """Bodies of any size survive, and one handshake serves several requests."""
    body = bytes(num_bytes)
    async with RawServer(echo, tls=server_context) as server:
        wire = trusting.wire(server.base_url)
        await wire.open()
        outcomes = [await fetch(wire, body) for _ in range(3)]

    assert outcomes == [body] * 3
    assert server.num_connections == 1


async def test_tls_with_an_unknown_authority_fails_to_connect(
    transport: Transport, server_context: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    """The system's authorities do not know the certificate, so nothing is sent."""
    async with RawServer(echo, tls=server_context) as server:
        wire = transport.wire(server.base_url)
        with pytest.raises(ConnectFailed):
            await fetch(wire, b"secret")
        assert "certificate verify failed" in caplog.text

        assert wire._pool.num_open == 0


async def test_tls_authorities_are_loaded_once_for_all_transports() -> None:
    """A policy of fifty providers would otherwise wait for them fifty times, and hold them as often."""
    transports = [Transport(SystemClock()) for _ in range(2)]
    contexts = set()
    for transport in transports:
        wire = transport.wire("https://provider.test")
        await wire.open()
        contexts.add(wire._pool._tls())
        await transport.aclose()

    assert len(contexts) == 1


async def test_tls_for_another_name_fails_to_connect(trusting: Transport, server_context: ssl.SSLContext) -> None:
    """A trusted certificate counts only for the host it was made for."""
    async with RawServer(echo, tls=server_context) as server:
        with pytest.raises(ConnectFailed):
            await fetch(trusting.wire(f"https://localhost:{server.port}"))


async def test_tls_to_a_plain_server_fails_to_connect(trusting: Transport, caplog: pytest.LogCaptureFixture) -> None:
    """A server that does not speak TLS is named in the log, with the reason."""

    async def serve(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.wait_gone()

    async with RawServer(serve) as server:
        with pytest.raises(ConnectFailed):
            await fetch(trusting.wire(f"https://127.0.0.1:{server.port}"))
        assert f"127.0.0.1:{server.port}: [SSL" in caplog.text


@pytest.mark.parametrize(
    ("answer", "is_cut"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", True),
        (b"HTTP/1.1 200 OK\r\n\r\nhalf", False),
    ],
    ids=["length", "chunked", "to-the-end"],
)
async def test_tls_answer_that_ends_with_the_connection_is_told_from_a_cut(
    trusting: Transport, server_context: ssl.SSLContext, answer: bytes, is_cut: bool
) -> None:
    """An orderly TLS end is an end of the connection like any other."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(answer)

    async with RawServer(serve, tls=server_context) as server:
        wire = trusting.wire(server.base_url)
        if is_cut:
            with pytest.raises(UpstreamCut):
                await fetch(wire)
        else:
            assert await fetch(wire) == b"half"


async def test_tls_cancellation_closes_the_connection_at_once(
    trusting: Transport, server_context: ssl.SSLContext
) -> None:
    """Nobody waits for a TLS farewell."""
    gone: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    reached = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        reached.set()
        await peer.wait_gone()
        gone.set_result(time.monotonic())

    async with RawServer(serve, tls=server_context) as server:
        wire = trusting.wire(server.base_url)
        fetching = asyncio.ensure_future(fetch(wire))
        async with asyncio.timeout(2):
            await reached.wait()
            await settle()
            fetching.cancel()
            cancelled_at = time.monotonic()
            await asyncio.wait([fetching])

            assert await gone - cancelled_at < 0.1
            assert wire._pool.num_open == 0


@pytest.mark.parametrize("reads", [False, True])
async def test_tls_request_is_sent_again_only_where_it_was_not_read(
    trusting: Transport, server_context: ssl.SSLContext, reads: bool
) -> None:
    """A kept TLS connection that the server has left behaves like a plain one."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
        if reads:
            await peer.request()

    async with RawServer(serve, tls=server_context) as server:
        wire = trusting.wire(server.base_url)
        await fetch(wire)
        if reads:
            with pytest.raises(UpstreamCut):
                await fetch(wire)
        else:
            assert await fetch(wire) == b"hi"

    assert server.num_connections == 1 + (not reads)
