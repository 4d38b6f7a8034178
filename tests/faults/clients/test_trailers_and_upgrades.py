"""Fields behind a body, offers of other protocols, requests sent ahead: read as HTTP/1.1 says, however they come."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.faults import CHAT, CaseServer, Setting, setting
from tests.support.http_client import Answer, HttpClient, chat_body, request_bytes
from tests.support.servers.openai_server import Behaviour

_KEY = "sk-edge-0123456789"
_AUTHORIZED = f"authorization: Bearer {_KEY}\r\n".encode()
_BODY = chat_body()
_LENGTH = b"content-length: %d\r\n" % len(_BODY)
_CHUNKED = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n" % (9, _BODY[:9], len(_BODY) - 9, _BODY[9:])
_H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
_WEBSOCKET = b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAA\r\n"
_HEALTH = b"GET /health HTTP/1.1\r\nhost: gateway\r\n\r\n"


@pytest.fixture(scope="module")
def keyed() -> Iterator[Setting]:
    """A gateway with a key."""
    keys = [{"name": "edge", "key": "env:EDGE_KEY", "tenant": "edge"}]
    with setting(environ={"EDGE_KEY": _KEY}, keys=keys, forward_headers=["x-told", "x-more"]) as made:
        yield made


@pytest.fixture
async def upstream(keyed: Setting) -> AsyncIterator[CaseServer]:
    """The upstream of that gateway."""
    async with CaseServer(keyed.ports[0]) as server:
        yield server
        # One turn, in which the loop tells the clients' transports that they are closed.
        await asyncio.sleep(0)


def _head(fields: bytes, path: str = CHAT) -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n".encode() + fields + b"\r\n"


def _trailed(fields: bytes, trailers: bytes) -> bytes:
    return _head(fields + b"transfer-encoding: chunked\r\n") + _CHUNKED + trailers + b"\r\n"


async def _ask(setting: Setting, *pieces: bytes) -> Answer:
    """The answer to a request that comes in pieces; the gateway has read each one before the next is sent."""
    client, probe = await HttpClient.open(setting.gateway.port), await HttpClient.open(setting.gateway.port)
    try:
        for piece in pieces[:-1]:
            client.send(piece)
            probe.send(_HEALTH)
            await probe.answer()
        client.send(pieces[-1])
        return await client.answer(timeout_s=5)
    finally:
        client.close()
        probe.close()
        await asyncio.sleep(0)


def _halves(request: bytes, step: int = 1) -> Iterator[tuple[bytes, bytes]]:
    """The request cut in two at every place, or at every `step`th."""
    return ((request[:at], request[at:]) for at in range(1, len(request), step))


class TestTrailers:
    """Fields behind a chunked body."""

    @pytest.mark.usefixtures("upstream")
    async def test_credentials_in_a_trailer_are_none_wherever_the_request_is_cut(self, keyed: Setting) -> None:
        """401 for each of its places, and in one piece."""
        request = _trailed(b"", _AUTHORIZED)
        answers = [await _ask(keyed, request)]
        answers += [await _ask(keyed, *halves) for halves in _halves(request)]

        assert {answer.status for answer in answers} == {401}

    async def test_trailer_neither_replaces_nor_adds_a_field(self, keyed: Setting, upstream: CaseServer) -> None:
        """The upstream gets the head's fields and none of the trailers."""
        trailers = b"x-told: behind\r\nx-more: behind\r\nauthorization: Bearer sk-other\r\n"
        request = _trailed(_AUTHORIZED + b"x-told: before\r\n", trailers)
        for pieces in [(request,), *_halves(request, step=7)]:
            answer = await _ask(keyed, *pieces)

            received = upstream.last["m"]
            assert answer.status == 200
            assert received.body == _BODY
            assert received.header("x-told") == "before"
            assert received.header("x-more") is None

    @pytest.mark.usefixtures("upstream")
    async def test_request_behind_trailers_is_read_as_its_own(self, keyed: Setting) -> None:
        """The fields of the one do not get into the other."""
        text = await keyed.gateway.raw(
            _trailed(_AUTHORIZED, _AUTHORIZED) + _head(b"connection: close\r\n" + _LENGTH) + _BODY
        )

        assert re.findall(rb"HTTP/1.1 (\d+) ", text) == [b"200", b"401"]

    @pytest.mark.parametrize(
        "endless",
        [b"x-a: " + b"b" * 4000, b"x-a: b\r\n" * 500, b"5;" + b"e" * 4000],
        ids=["one trailer", "many trailers", "chunk extension"],
    )
    @pytest.mark.usefixtures("upstream")
    async def test_what_is_no_body_is_bounded(self, keyed: Setting, endless: bytes) -> None:
        """431 once 64 KiB of it are here."""
        before_mib = keyed.gateway.rss_mib()
        request = _trailed(_AUTHORIZED, b"")[:-2]
        client = await HttpClient.open(keyed.gateway.port)
        client.send(request[:-3] if endless.startswith(b"5;") else request)
        for _ in range(2000):
            client.send(endless)
            await asyncio.sleep(0)
            if client.is_closed or client.current.is_whole:
                break
        answer = await client.answer(timeout_s=5)
        client.close()

        # A client that is still writing may see its connection reset before it reads the refusal.
        assert answer.status in (431, 0)
        assert keyed.gateway.rss_mib() - before_mib <= 8


class TestUpgrades:
    """Offers of other protocols."""

    async def test_h2c_is_answered_as_http_wherever_the_request_is_cut(
        self, keyed: Setting, upstream: CaseServer
    ) -> None:
        """As Java's client sends it: 200, and the body reaches the upstream whole."""
        request = _head(_H2C + _AUTHORIZED + _LENGTH) + _BODY
        for pieces in [(request,), *_halves(request)]:
            answer = await _ask(keyed, *pieces)

            received = upstream.last["m"]
            upstream.forget("m")
            assert answer.status == 200
            assert received.body == _BODY
            assert received.header("upgrade") is received.header("http2-settings") is None

    @pytest.mark.parametrize(
        "fields",
        [
            b"upgrade: h2c\r\n",
            b"connection: upgrade\r\n",
            b"connection: upgrade\r\nupgrade: h2c, tls/1.3\r\n",
            b"connection: keep-alive\r\nconnection: Upgrade\r\nupgrade: h2c\r\nupgrade: foo/2\r\n",
            b"upgrade: websocket\r\n",
            b"connection: upgrade\r\nupgrade: websockets\r\n",
        ],
        ids=[
            "no connection",
            "no upgrade",
            "two in a line",
            "two lines",
            "websocket without connection",
            "a near name",
        ],
    )
    @pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
    async def test_offer_that_is_not_taken_changes_nothing(
        self, keyed: Setting, upstream: CaseServer, fields: bytes, *, is_chunked: bool
    ) -> None:
        """With a body of either framing, and a trailer."""
        if is_chunked:
            request = _trailed(fields + _AUTHORIZED, b"x-told: behind\r\n")
        else:
            request = _head(fields + _AUTHORIZED + _LENGTH) + _BODY
        for pieces in [(request,), *_halves(request, step=31)]:
            answer = await _ask(keyed, *pieces)

            assert answer.status == 200
            assert upstream.last["m"].body == _BODY

    async def test_h2c_with_expectation_is_told_to_go_on(self, keyed: Setting, upstream: CaseServer) -> None:
        """100 before the body, 200 behind it."""
        seen = await _until_told_to_go_on(keyed, _head(_H2C + _AUTHORIZED + b"expect: 100-continue\r\n" + _LENGTH))

        assert seen.count(b"HTTP/1.1 100 Continue\r\n\r\n") == 1
        assert b"HTTP/1.1 200 OK\r\n" in seen
        assert upstream.last["m"].body == _BODY

    async def test_offers_sent_ahead_are_answered_one_after_the_other(
        self, keyed: Setting, upstream: CaseServer
    ) -> None:
        """Three requests in one packet, each with an offer; the last one closes."""
        head = _H2C + _AUTHORIZED + _LENGTH
        request = (_head(b"x-request-id: one\r\n" + head) + _BODY) * 2 + _head(_AUTHORIZED + _LENGTH) + _BODY
        answer = await keyed.gateway.raw(request + _head(b"connection: close\r\n" + head) + _BODY)

        assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"200"] * 4
        assert upstream.num_asked["m"] == 4

    @pytest.mark.parametrize("path", ["/v1/responses", "/v1/realtime?model=m", "/responses", CHAT, "/anything"])
    @pytest.mark.parametrize("offer", [b"websocket", b"WebSocket", b"h2c, websocket", b"websocket/13, h2c"])
    async def test_websocket_is_refused_at_once(
        self, keyed: Setting, upstream: CaseServer, path: str, offer: bytes
    ) -> None:
        """426 in OpenAI's shape, whatever the path and the key; the upstream is not asked."""
        request = _head(_WEBSOCKET.replace(b": websocket", b": " + offer), path).replace(b"POST", b"GET")
        raw = await keyed.gateway.raw(request, timeout_s=3)
        head, _, body = raw.partition(b"\r\n\r\n")

        assert head.startswith(b"HTTP/1.1 426 ")
        assert b"\r\nupgrade: HTTP/1.1\r\n" in head
        assert json.loads(body)["error"]["code"] == "websocket_not_supported"
        assert not upstream.num_asked

    async def test_what_follows_a_refused_websocket_is_nobodys_request(
        self, keyed: Setting, upstream: CaseServer
    ) -> None:
        """One refusal, behind the answer to what came before it; then the connection ends."""
        whole = _head(_AUTHORIZED + _LENGTH) + _BODY
        for body in (b"", _LENGTH):
            asked = whole + _head(_WEBSOCKET + body) + (_BODY if body else b"") + whole
            answer = await keyed.gateway.raw(asked, timeout_s=3)

            assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"200", b"426"]
        assert upstream.num_asked["m"] == 2

    async def test_refused_websocket_is_in_the_log(self, keyed: Setting) -> None:
        """With its status and reason."""
        fields = b"x-request-id: wants-a-socket\r\n" + _WEBSOCKET
        await keyed.gateway.raw(_head(fields, "/v1/responses").replace(b"POST", b"GET"))
        line = await keyed.gateway.wait_log(lambda line: line["request_id"] == "wants-a-socket")

        assert (line["status"], line["error"]) == (426, "websocket_not_supported")

    @pytest.mark.parametrize("tail", [b"", b"content-length: 4\r\n", b"transfer-encoding: chunked\r\n", _H2C])
    async def test_tunnel_is_refused(self, keyed: Setting, upstream: CaseServer, tail: bytes) -> None:
        """CONNECT opens nothing, and what follows is not read."""
        target = f"127.0.0.1:{upstream.port}"
        request = f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n".encode() + _AUTHORIZED + tail + b"\r\n"
        answer = await keyed.gateway.raw(request + _head(_AUTHORIZED + _LENGTH) + _BODY)

        assert re.findall(rb"^HTTP/1.1 (\d+) ", answer) == [b"405"]
        assert not upstream.num_asked


class TestLeaving:
    """Clients that send ahead, or wait to be told to go on, and leave."""

    @pytest.mark.parametrize("num_requests", [2, 12])
    @pytest.mark.parametrize("way", ["reset", "close", "close_sending"])
    async def test_client_that_sent_ahead_leaves_without_a_trace(
        self, keyed: Setting, upstream: CaseServer, num_requests: int, way: str
    ) -> None:
        """While the first of its requests is answered: nothing of the others is asked or written."""
        upstream.default = Behaviour(events=(b'data: {"choices":[]}\n\n',) * 3, stall_after_events=2)
        since = len(keyed.gateway.stderr)
        client = await HttpClient.open(keyed.gateway.port)
        request = request_bytes(CHAT, chat_body(stream=True), [("authorization", f"Bearer {_KEY}")])
        num_gone = sum(line.get("error") == "client_gone" for line in keyed.gateway.log)
        client.send(request * num_requests)
        await client.wait_body()
        getattr(client, way)()
        await asyncio.sleep(0)
        await keyed.gateway.wait_log(lambda line: line.get("error") == "client_gone", num_gone + 1)
        client.close()
        upstream.default = Behaviour()
        after = await _ask(keyed, _head(_AUTHORIZED + _LENGTH) + _BODY)

        assert after.status == 200
        assert upstream.num_asked["m"] == 2
        assert keyed.gateway.stderr[since:] == ""

    @pytest.mark.usefixtures("upstream")
    async def test_request_refused_before_its_body_was_asked_for_ends_the_connection(self, keyed: Setting) -> None:
        """Nobody knows whether the body comes: what follows could be taken for it."""
        refused = _head(b"expect: 100-continue\r\n" + _LENGTH)
        answer = await keyed.gateway.raw(refused, timeout_s=3)

        assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"401"]
        assert b"\r\nconnection: close\r\n" in answer

    @pytest.mark.usefixtures("upstream")
    async def test_garbage_in_a_body_that_was_refused_is_not_answered_a_second_time(self, keyed: Setting) -> None:
        """The client would take that for the answer to its next request."""
        refused = _head(b"transfer-encoding: chunked\r\n")
        client = await HttpClient.open(keyed.gateway.port)
        client.send(refused)
        first = await client.answer()
        client.send(b"zz\r\n")
        second = await client.answer(timeout_s=3)

        assert (first.status, second.status, client.is_closed) == (401, 0, True)

    @pytest.mark.usefixtures("upstream")
    async def test_long_heads_sent_ahead_are_each_within_their_bound(self, keyed: Setting) -> None:
        """The bytes of one request do not count against the next, wherever they are cut."""
        long = _head(_AUTHORIZED + b"x-long: " + b"a" * 20_000 + b"\r\n" + _LENGTH) + _BODY
        request = long * 7 + _head(_AUTHORIZED + b"connection: close\r\n" + _LENGTH) + _BODY
        for at in range(1, len(request), 9973):
            reader, writer = await asyncio.open_connection("127.0.0.1", keyed.gateway.port)
            for piece in (request[:at], request[at:]):
                writer.write(piece)
                await writer.drain()
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()

            assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"200"] * 8

    @pytest.mark.usefixtures("upstream")
    async def test_requests_sent_ahead_without_end_are_not_kept(self, keyed: Setting) -> None:
        """A client that sends and never reads: the gateway stops reading, and its memory stays where it is."""
        client = await HttpClient.open(keyed.gateway.port)
        client.transport.pause_reading()
        before_mib = keyed.gateway.rss_mib()
        for _ in range(200):
            client.send(_HEALTH * 2000)
            await asyncio.sleep(0)
        probe = await HttpClient.open(keyed.gateway.port)
        for _ in range(20):
            probe.send(_HEALTH)
            await probe.answer()
        grown_mib = keyed.gateway.rss_mib() - before_mib
        client.close()
        probe.close()

        assert grown_mib <= 40


async def _until_told_to_go_on(setting: Setting, head: bytes) -> bytes:
    """Send a head, wait for the interim answer, send the body; everything that came back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", setting.gateway.port)
    try:
        async with asyncio.timeout(5):
            writer.write(head)
            seen = await reader.readuntil(b"\r\n\r\n")
            writer.write(_BODY)
            return seen + await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.transport.abort()
