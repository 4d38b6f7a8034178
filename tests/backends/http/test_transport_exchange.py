"""One exchange over our own transport: what goes out, what comes back, and when a connection is used again."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable

import pytest

from backends.errors import InvalidRequest, UpstreamCut, UpstreamGarbage
from backends.http.connection import HIGH_WATER_BYTES, MAX_FRAMING_BYTES
from backends.http.transport import HttpWire, Transport
from tests.support.clock import settle
from tests.support.raw_server import Peer, RawRequest, RawServer, generous

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


async def fetch(wire: HttpWire, method: str = "POST", body: bytes = b"") -> tuple[int, bytes]:
    """One whole exchange: status and body."""
    exchange = await wire.send(method, b"/v1/x", [], body, generous())
    try:
        return exchange.status, await exchange.body(1 << 24)
    finally:
        await exchange.aclose()


def always(answer: bytes, seen: list[RawRequest] | None = None) -> Callable[[Peer], Awaitable[None]]:
    """A server that gives every request this answer and keeps the connection."""

    async def serve(peer: Peer) -> None:
        while True:
            request = await peer.request()
            if seen is not None:
                seen.append(request)
            peer.send(answer)

    return serve


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
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nX-Empty:\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\nX-Empty:\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\nX-Empty:\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\nX-Empty:\r\n\r\nx", b"x"),
        (b"HTTP/1.1 103 Early\r\nlink: a\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\nX-Empty:\r\n\r\nx", b"x"),
        (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\nX-Empty:\r\n\r\nx", b"x"),
    ],
    ids=["length", "chunked", "trailers", "empty", "204", "304", "100", "103", "http10-keep-alive"],
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


async def test_head_with_a_length_has_no_body_and_keeps_the_connection(transport: Transport) -> None:
    """The length in an answer to HEAD is that of another body."""
    async with RawServer(always(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")) as server:
        wire = transport.wire(server.base_url)
        outcomes = [await fetch(wire, "HEAD") for _ in range(2)]

    assert outcomes == [(200, b"")] * 2
    assert server.num_connections == 1


async def test_head_with_a_body_all_the_same_drops_it_and_the_connection(transport: Transport) -> None:
    """A server that sends a body to HEAD cannot be trusted with the connection."""
    async with RawServer(always(OK)) as server:
        wire = transport.wire(server.base_url)
        outcomes = [await fetch(wire, "HEAD") for _ in range(2)]

    assert outcomes == [(200, b"")] * 2
    assert server.num_connections == 2


async def test_exchange_that_ends_with_the_connection_is_clean(transport: Transport) -> None:
    """Without length and chunks the end of the connection is the end of the answer."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        await peer.send_split(b"HTTP/1.1 200 OK\r\n\r\n", b"to the ", b"end")

    async with RawServer(serve) as server:
        outcome = await fetch(transport.wire(server.base_url))

    assert outcome == (200, b"to the end")


async def test_exchange_that_ends_with_a_reset_is_cut(transport: Transport) -> None:
    """A reset is no orderly end, also where the end of the connection would have been."""
    is_read = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await is_read.wait()
        peer.reset()

    async with RawServer(serve) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        assert await exchange.read() == b"half"
        is_read.set()
        with pytest.raises(UpstreamCut):
            await exchange.read()
        with pytest.raises(UpstreamCut):
            await exchange.read()
        await exchange.aclose()


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
        async with asyncio.timeout(1):
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


async def test_read_of_endless_trailers_raises_garbage(transport: Transport) -> None:
    """Trailers are tolerated but not without end."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx-trailer: ")
        while True:
            peer.send(b"y" * 10_000)
            await peer.drain()

    async with RawServer(serve) as server:
        with pytest.raises(UpstreamGarbage, match="trailers"):
            await fetch(transport.wire(server.base_url))


async def test_read_hands_over_what_one_read_of_the_socket_brought_as_one_piece(transport: Transport) -> None:
    """A hundred chunks that arrive together are one piece."""
    chunks = b"3\r\nabc\r\n" * 100
    async with RawServer(always(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks)) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        piece = await exchange.read()
        await exchange.aclose()

    assert piece == b"abc" * 100


async def test_read_leaves_content_encoding_alone(transport: Transport) -> None:
    """Compressed bytes go on as they came."""
    packed = gzip.compress(b"hello")
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    async with RawServer(always(head + packed)) as server:
        outcome = await fetch(transport.wire(server.base_url))

    assert outcome == (200, packed)


@pytest.mark.parametrize("framing", ["content-length: 2000", "transfer-encoding: chunked", "x: y"])
async def test_body_longer_than_allowed_raises_garbage_and_closes(transport: Transport, framing: str) -> None:
    """The bound holds however the answer is delimited."""
    chunk = b"7d0\r\n" if "chunked" in framing else b""
    answer = f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode() + chunk + b"x" * 2000
    async with RawServer(always(answer)) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        with pytest.raises(UpstreamGarbage, match="1999"):
            await exchange.body(1999)
        await exchange.aclose()


async def test_read_after_an_early_close_never_looks_like_a_clean_end(transport: Transport) -> None:
    """Closing drops what was not read; a reader who comes later is told so."""
    async with RawServer(always(OK)) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        await exchange.aclose()
        await exchange.aclose()
        with pytest.raises(UpstreamCut):
            await exchange.read()


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
        async with asyncio.timeout(1):
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
        async with asyncio.timeout(1):
            await gone
        outcome = await fetch(wire)

    assert outcome == (200, b"hi")
    assert server.num_connections == 2


async def test_slow_reader_holds_the_upstream_back(transport: Transport) -> None:
    """What is not read stays with the upstream, and all of it comes once it is read."""
    num_bytes = 64 * 1024 * 1024
    is_held_back = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % num_bytes)
        for _ in range(num_bytes // 65536):
            peer.send(bytes(65536))
            if peer.num_unsent:
                is_held_back.set()
                await peer.drain()

    async with RawServer(serve) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        async with asyncio.timeout(5):
            await is_held_back.wait()
        await settle(1000)
        pieces = [await exchange.read()]
        while pieces[-1]:
            pieces.append(await exchange.read())
        await exchange.aclose()

    assert sum(map(len, pieces)) == num_bytes
    # One read of the socket may come on top of the mark.
    assert HIGH_WATER_BYTES < len(pieces[0]) <= 2 * HIGH_WATER_BYTES


@pytest.mark.parametrize("num_bytes", [1, 65536, 262_144, 262_145, 5_000_000])
async def test_send_of_any_body_arrives_whole_at_a_slow_server(transport: Transport, num_bytes: int) -> None:
    """Small and large bodies go out unharmed, and the connection is kept."""
    seen: list[RawRequest] = []
    body = bytes(range(256)) * (num_bytes // 256 + 1)
    async with RawServer(always(OK, seen)) as server:
        wire = transport.wire(server.base_url)
        for _ in range(2):
            await fetch(wire, body=body[:num_bytes])

    assert [request.body == body[:num_bytes] for request in seen] == [True, True]
    assert server.num_connections == 1


async def test_send_whose_answer_comes_before_the_body_is_out_returns_it_and_drops_the_connection(
    transport: Transport,
) -> None:
    """A refusal counts although the upstream did not read the request to its end."""

    async def serve(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        if peer.number == 0:
            await asyncio.get_running_loop().create_future()

    async with RawServer(serve) as server:
        # More than the sockets' buffers and the stream reader of the server take.
        outcome = await fetch(transport.wire(server.base_url), body=bytes(100_000_000))

    assert outcome == (413, b"no")
