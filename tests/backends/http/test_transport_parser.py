"""How our own transport understands bytes: any answer, split anywhere, cut anywhere, and any garbage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.clock import SystemClock
from backends.errors import UpstreamCut, UpstreamGarbage
from backends.http.connection import READ_BYTES, Connection
from backends.http.http1_exchange import MAX_FRAMING_BYTES, HttpExchange
from backends.protocol import Headers
from tests.support.servers.raw_server import generous


class _MemoryTransport(asyncio.Transport):
    """Swallows what is written."""

    def __init__(self, num_unsent: int = 0) -> None:
        super().__init__()
        self.num_unsent = num_unsent
        self.takes_data = True
        self.is_aborted = False

    def writelines(self, list_of_data: Any) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.num_unsent

    def pause_reading(self) -> None:
        self.takes_data = False

    def resume_reading(self) -> None:
        self.takes_data = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


class _Owner:
    """Remembers how an exchange ended."""

    is_reusable = False

    def forget(self, connection: Connection) -> None:
        pass

    def finish(self, exchange: HttpExchange, connection: Connection, *, is_reusable: bool, has_failed: bool) -> None:
        self.is_reusable = is_reusable


def begin(owner: _Owner, transport: asyncio.Transport, *, is_head: bool = False) -> tuple[Connection, HttpExchange]:
    """An exchange whose request has been sent."""
    connection = Connection(memoryview(bytearray(READ_BYTES)))
    connection.connection_made(transport)
    connection.owner = owner
    exchange = HttpExchange(connection, owner, SystemClock(), generous(), is_head=is_head)
    exchange.write(b"", b"")
    return connection, exchange


def deliver(connection: Connection, data: bytes) -> None:
    """Bytes come from the socket."""
    for start in range(0, len(data), READ_BYTES):
        part = data[start : start + READ_BYTES]
        connection.get_buffer(-1)[: len(part)] = part
        connection.buffer_updated(len(part))


async def receive(
    *reads: bytes, ends: bool = True, is_head: bool = False, num_unsent: int = 0
) -> tuple[int, Headers, list[bytes], bool]:
    """What an exchange makes of these reads of its socket, followed by the connection's end.

    Status, headers, pieces, and whether the connection could be used again.
    """
    owner, transport = _Owner(), _MemoryTransport(num_unsent)
    connection, exchange = begin(owner, transport, is_head=is_head)
    for data in reads:
        if not transport.is_aborted:
            deliver(connection, data)
    if ends and not transport.is_aborted:
        connection.eof_received()
    try:
        await exchange.wait_head()
        pieces = [await exchange.read()]
        while pieces[-1]:
            pieces.append(await exchange.read())
    finally:
        exchange.close()
    return exchange.status, exchange.headers, pieces, owner.is_reusable


def split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """`data` in pieces, parted at each of `cuts` (taken modulo its length)."""
    points = sorted({cut % len(data) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(points)]


_token = st.from_regex(rb"[A-Za-z][A-Za-z0-9-]{0,20}", fullmatch=True).filter(
    lambda name: name.lower() not in (b"content-length", b"transfer-encoding", b"connection", b"upgrade")
)
_value = st.from_regex(rb"([!-~\x80-\xff]([ -~\x80-\xff]{0,30}[!-~\x80-\xff])?)?", fullmatch=True)
_fields = st.lists(st.tuples(_token, _value), max_size=6)


Answer = tuple[bytes, int, Headers, bytes]
_cuts = st.lists(st.integers(min_value=0), max_size=8)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    """The bytes of a valid answer, and its status, headers and body."""
    status = draw(st.sampled_from([200, 201, 206, 400, 404, 429, 500, 503, 599]))
    fields = draw(_fields)
    chunks = draw(st.lists(st.binary(min_size=1, max_size=200), max_size=6))
    body = b"".join(chunks)
    framing = draw(st.sampled_from(["length", "chunked", "eof"]))
    if framing == "length":
        fields.append((b"Content-Length", b"%d" % len(body)))
        wire_body = body
    elif framing == "chunked":
        fields.append((b"Transfer-Encoding", b"chunked"))
        wire_body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n"
        trailers = draw(st.lists(st.tuples(_token, _value), max_size=2))
        wire_body += b"".join(b"%b: %b\r\n" % trailer for trailer in trailers) + b"\r\n"
    else:
        wire_body = body
    informational = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 E\r\nlink: x\r\n\r\n"]))
    head = b"HTTP/1.1 %d Reason\r\n" % status + b"".join(b"%b: %b\r\n" % field for field in fields) + b"\r\n"
    return informational + head + wire_body, status, [(name.lower(), value) for name, value in fields], body


@given(answer=answers(), cuts=_cuts)
async def test_any_answer_split_anywhere_is_the_same(answer: Answer, cuts: list[int]) -> None:
    """Where the network parts an answer makes no difference to what it says."""
    data, status, headers, body = answer
    for reads in ([data], split(data, cuts), [data[at : at + 1] for at in range(len(data))]):
        got_status, got_headers, pieces, _ = await receive(*reads)

        assert (got_status, got_headers, b"".join(pieces)) == (status, headers, body)
        assert all(pieces[:-1])


LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\nx-a: b\r\n\r\nhello world!"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6;x=y\r\nhello \r\n6\r\nworld!\r\n0\r\nx-trailer: t\r\n\r\n"
)


@pytest.mark.parametrize("data", [LENGTH, CHUNKED], ids=["length", "chunked"])
async def test_answer_split_at_every_byte_is_the_same(data: bytes) -> None:
    """Two reads, parted at each position."""
    for at in range(1, len(data)):
        status, _, pieces, is_reusable = await receive(data[:at], data[at:], ends=False)

        assert (status, b"".join(pieces), is_reusable) == (200, b"hello world!", True)


@pytest.mark.parametrize("data", [LENGTH, CHUNKED], ids=["length", "chunked"])
async def test_answer_cut_at_every_byte_is_a_cut_and_never_clean(data: bytes) -> None:
    """An answer whose length is known cannot end early unnoticed."""
    for at in range(len(data)):
        with pytest.raises(UpstreamCut):
            await receive(data[:at])


@given(data=st.binary(max_size=300), cuts=_cuts, is_head=st.booleans())
async def test_garbage_ends_in_one_of_our_errors(data: bytes, cuts: list[int], is_head: bool) -> None:
    """Noise neither hangs nor escapes as a foreign error."""
    with pytest.raises((UpstreamCut, UpstreamGarbage)):
        await receive(*split(data, cuts) if data else [], is_head=is_head)


@given(
    answer=answers(),
    at=st.integers(min_value=0),
    junk=st.binary(min_size=1, max_size=8),
    cuts=_cuts,
    is_head=st.booleans(),
)
async def test_damaged_answer_is_read_or_ends_in_one_of_our_errors(
    answer: Answer, at: int, junk: bytes, cuts: list[int], is_head: bool
) -> None:
    """A valid answer with bytes overwritten never hangs and never raises anything foreign."""
    data = answer[0]
    at %= len(data)
    damaged = data[:at] + junk + data[at + len(junk) :]
    try:
        status, _, _, _ = await receive(*split(damaged, cuts), is_head=is_head)
    except (UpstreamCut, UpstreamGarbage):
        return
    assert status >= 200


@given(answer=answers(), surplus=st.binary(min_size=1, max_size=20), cuts=_cuts)
async def test_surplus_bytes_never_reach_the_answer(answer: Answer, surplus: bytes, cuts: list[int]) -> None:
    """Whatever follows a delimited answer is dropped with its connection; line ends alone are tolerated."""
    data, status, headers, body = answer
    if not any(name in (b"content-length", b"transfer-encoding") for name, _ in headers):
        return
    got_status, got_headers, pieces, is_reusable = await receive(*split(data + surplus, cuts), ends=False)

    assert (got_status, got_headers, b"".join(pieces)) == (status, headers, body)
    assert not is_reusable or not surplus.strip(b"\r\n")


async def test_framing_is_bounded_only_where_no_body_comes_with_it() -> None:
    """A long stream may spend any number of bytes on its chunks, each of which comes in reads of its own."""
    transport = _MemoryTransport()
    connection, exchange = begin(_Owner(), transport)
    deliver(connection, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(2 * MAX_FRAMING_BYTES // 1000):
        deliver(connection, b"1;" + b"e" * 1000 + b"\r\n")
        deliver(connection, b"x\r\n")

        assert await exchange.read() == b"x"
    assert not transport.is_aborted
    exchange.close()


async def test_connection_with_unsent_bytes_is_not_used_again() -> None:
    """The rest of a request whose answer came early would stand before the next one."""
    _, _, pieces, is_reusable = await receive(LENGTH, ends=False, num_unsent=1)

    assert b"".join(pieces) == b"hello world!"
    assert not is_reusable
