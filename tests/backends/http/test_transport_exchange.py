"""One exchange over our own transport: what goes out, what comes back, and when a connection is used again."""

from __future__ import annotations

import asyncio

import pytest

from backends.errors import InvalidRequest, UpstreamGarbage
from backends.http.http1_exchange import MAX_FRAMING_BYTES
from backends.http.transport import Transport
from tests.support.servers.raw_server import OK, Peer, RawRequest, RawServer, always, fetch, generous


async def test_send_with_body_writes_exactly_the_request(transport: Transport) -> None:
    """Request line, host, the given headers and the length go out, and nothing else."""
    seen: list[RawRequest] = []
    async with RawServer(always(OK, seen)) as server:
        exchange = await transport.wire(server.base_url).send(
            "POST", b"/v1/chat?a=b", [(b"x-one", b"1"), (b"x-two", b"2")], b"hello", generous()
        )
        await exchange.aclose()

    head = b"POST /v1/chat?a=b HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nx-one: 1\r\nx-two: 2\r\ncontent-length: 5\r\n\r\n"
    assert seen == [RawRequest(head % server.port, b"hello")]


@pytest.mark.parametrize(("method", "lengths"), [("GET", []), ("HEAD", []), ("POST", [b"0"]), ("PUT", [b"0"])])
async def test_send_without_body_announces_length_only_where_one_is_due(
    transport: Transport, method: str, lengths: list[bytes]
) -> None:
    """An empty body has a length only with methods that usually carry one."""
    seen: list[RawRequest] = []
    async with RawServer(always(b"HTTP/1.1 204 No Content\r\n\r\n", seen)) as server:
        await fetch(transport.wire(server.base_url), method)

    assert seen[0].field(b"content-length") == lengths


@pytest.mark.parametrize(
    ("target", "header"),
    [
        (b"/a\r\nx: y", (b"a", b"b")),
        (b"/a\nb", (b"a", b"b")),
        (b"/a HTTP/1.1", (b"a", b"b")),
        (b"/a\0", (b"a", b"b")),
        (b"/", (b"a\r\nx", b"b")),
        (b"/", (b"a", b"b\r\nx: y")),
        (b"/", (b"a", b"b\n")),
        (b"/", (b"a", b"b\r")),
        (b"/", (b"a", b"\0")),
    ],
)
async def test_send_with_a_line_break_in_the_head_is_refused_unsent(
    transport: Transport, target: bytes, header: tuple[bytes, bytes]
) -> None:
    """Nothing that would add a line to the head reaches the network."""
    async with RawServer(always(OK)) as server:
        wire = transport.wire(server.base_url)
        with pytest.raises(InvalidRequest):
            await wire.send("GET", target, [header], b"", generous())

    assert server.num_connections == 0


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Empty:\r\n\r\nhello", b"hello"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Empty:\r\n\r\n2\r\nhe\r\n3;a=b\r\nllo\r\n0\r\n\r\n",
            b"hello",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Empty:\r\n\r\n1\r\nx\r\n0\r\nX-Trailer: t\r\n\r\n", b"x"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Empty:\r\n\r\n1\r\nx\r\n0\r\n"
            b"Content-Length: 9\r\nTransfer-Encoding: gzip\r\nConnection: close\r\n\r\n",
            b"x",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nX-Empty:\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\nX-Empty:\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\nX-Empty:\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\nX-Empty:\r\n\r\nx", b"x"),
        (b"HTTP/1.1 103 Early\r\nlink: a\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\nX-Empty:\r\n\r\nx", b"x"),
        (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\nX-Empty:\r\n\r\nx", b"x"),
    ],
    ids=[
        *("length", "chunked", "trailers", "trailers that are no framing"),
        *("empty", "204", "304", "100", "103", "http10-keep-alive"),
    ],
)
async def test_exchange_with_a_delimited_answer_is_read_whole_and_its_connection_reused(
    transport: Transport, answer: bytes, body: bytes
) -> None:
    """However the end of the answer is shown, the next request goes over the same connection."""
    async with RawServer(always(answer)) as server:
        wire = transport.wire(server.base_url)
        for _ in range(3):
            exchange = await wire.send("POST", b"/", [], b"", generous())
            received = await exchange.body(100)
            await exchange.aclose()

            assert received == body
            assert (b"x-empty", b"") in exchange.headers
            assert not any(name in (b"x-trailer", b"link") for name, _ in exchange.headers)
        statistics = wire.statistics()

    assert server.num_connections == 1
    assert (statistics.sent, statistics.connections_opened, statistics.connections_reused) == (3, 1, 2)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi!",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\nevil",
    ],
    ids=["close", "http10", "surplus-byte", "surplus-answer", "surplus-start", "surplus-after-chunks"],
)
async def test_exchange_with_an_answer_that_ends_its_connection_is_read_and_the_connection_dropped(
    transport: Transport, answer: bytes
) -> None:
    """Surplus bytes never get into an answer, neither this one nor the next."""
    async with RawServer(always(answer)) as server:
        wire = transport.wire(server.base_url)
        outcomes = [await fetch(wire) for _ in range(2)]

    assert outcomes == [(200, b"hi")] * 2
    assert server.num_connections == 2


async def test_head_with_a_length_has_no_body(transport: Transport) -> None:
    """The length in an answer to HEAD is that of another body."""
    async with RawServer(always(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")) as server:
        wire = transport.wire(server.base_url)
        outcomes = [await fetch(wire, "HEAD") for _ in range(2)]

    assert outcomes == [(200, b"")] * 2


async def test_head_with_a_body_all_the_same_drops_it_and_the_connection(transport: Transport) -> None:
    """A server that sends a body to HEAD cannot be trusted with the connection."""
    async with RawServer(always(OK)) as server:
        wire = transport.wire(server.base_url)
        outcomes = [await fetch(wire, "HEAD") for _ in range(2)]

    assert outcomes == [(200, b"")] * 2
    assert server.num_connections == 2


async def test_head_with_a_body_that_comes_late_is_not_read_as_the_next_answer(transport: Transport) -> None:
    """It may look like one, and whoever comes next may be of another tenant."""
    late = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"

    async def serve(peer: Peer) -> None:
        was_head = False
        while True:
            request = await peer.request()
            if was_head:
                peer.send(late)
            was_head = request.head.startswith(b"HEAD")
            peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(late) if was_head else OK)

    async with RawServer(serve) as server:
        wire = transport.wire(server.base_url)
        outcomes = [await fetch(wire, method) for method in ("HEAD", "POST")]

    assert outcomes == [(200, b""), (200, b"hi")]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 000 Nothing\r\n\r\nabc",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: %b\r\n\r\n" % (b"y" * MAX_FRAMING_BYTES),
        b"HTTP/1.1 200 OK\r\n%b\r\n" % (b"x: y\r\n" * (MAX_FRAMING_BYTES // 6 + 1)),
        b"HTTP/1.1 100 Continue\r\n\r\n" * 4000,
    ],
    ids=["upgrade", "101", "status-0", "ssh", "http2", "lengths", "both", "no-colon", "huge", "many", "endless-1xx"],
)
async def test_send_to_what_is_not_http_raises_garbage(transport: Transport, answer: bytes) -> None:
    """What cannot be an answer is told apart from one that was cut, and the connection is closed."""
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(answer)
        await peer.wait_gone()
        gone.set_result(None)

    async with RawServer(serve) as server:
        with pytest.raises(UpstreamGarbage):
            await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        async with asyncio.timeout(10):
            await gone


@pytest.mark.parametrize("size", [MAX_FRAMING_BYTES - 100, MAX_FRAMING_BYTES])
async def test_send_bounds_the_header_section_whatever_follows_in_the_same_read(
    transport: Transport, size: int
) -> None:
    """A head just below the bound passes with a body behind it, one at the bound does not."""
    answer = b"HTTP/1.1 200 OK\r\nx: %b\r\ncontent-length: 100000\r\n\r\n" % (b"y" * size) + b"z" * 100_000
    async with RawServer(always(answer)) as server:
        wire = transport.wire(server.base_url)
        if size < MAX_FRAMING_BYTES:
            assert await fetch(wire) == (200, b"z" * 100_000)
        else:
            with pytest.raises(UpstreamGarbage):
                await fetch(wire)


async def test_aclose_twice_does_not_disturb_the_next_exchange(transport: Transport) -> None:
    """An exchange that is over has no power over the connection it was on."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(OK)
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab")
        await is_closed_again.wait()
        peer.send(b"cd")

    is_closed_again = asyncio.Event()
    async with RawServer(serve) as server:
        wire = transport.wire(server.base_url)
        first = await wire.send("POST", b"/", [], b"", generous())
        await first.body(10)
        await first.aclose()
        second = await wire.send("POST", b"/", [], b"", generous())
        await first.aclose()
        is_closed_again.set()
        body = await second.body(10)
        await second.aclose()

    assert body == b"abcd"
    assert server.num_connections == 1


async def test_aclose_in_the_middle_closes_the_connection_at_once(transport: Transport) -> None:
    """An upstream whose answer nobody wants any more learns so immediately."""
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nab")
        await peer.wait_gone()
        gone.set_result(None)

    async with RawServer(serve) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        await exchange.aclose()
        async with asyncio.timeout(10):
            await gone


async def test_idle_connection_with_unsolicited_bytes_is_closed(transport: Transport) -> None:
    """Bytes that answer no question end the connection before anyone takes them for an answer."""
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(OK)
        if peer.number == 0:
            await may_speak.wait()
            peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
            await peer.wait_gone()
            gone.set_result(None)

    may_speak = asyncio.Event()
    async with RawServer(serve) as server:
        wire = transport.wire(server.base_url)
        await fetch(wire)
        may_speak.set()
        async with asyncio.timeout(10):
            await gone
        outcome = await fetch(wire)

    assert outcome == (200, b"hi")
    assert server.num_connections == 2
