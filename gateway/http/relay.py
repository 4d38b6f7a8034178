"""Relays a stream to the client, piece by piece as the upstream sends it, and says what went wrong."""

from __future__ import annotations

from math import ceil
from typing import Protocol

from starlette.types import Send

from backends.errors import Overloaded, SlipstreamError
from backends.protocol import Facts, Headers, Reply
from backends.sse import encode_event
from backends.stream import Stream
from backends.waits import MAX_WAIT_S
from gateway.http.connection import ClientConnection
from gateway.http.usage_chunk import UsageChunkFilter

JSON_HEADER = (b"content-type", b"application/json")
_EVENT_STREAM = b"text/event-stream"


async def send_error(connection: ClientConnection, error: SlipstreamError, headers: Headers) -> None:
    """An error of ours in OpenAI's shape."""
    headers.append(JSON_HEADER)
    if error.retry_after_s is not None and error.retry_after_s >= 0:
        wait_s = min(error.retry_after_s, MAX_WAIT_S)
        headers.append((b"retry-after", b"%d" % max(1, ceil(wait_s))))
        headers.append((b"retry-after-ms", b"%d" % max(1, ceil(wait_s * 1e3))))
    if isinstance(error, Overloaded) and error.first_token_s is not None:
        headers.append((b"x-slo-predicted-ttft-ms", b"%d" % ceil(error.first_token_s * 1e3)))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await connection.answer(error.status, headers, error.body())


class LateNews(Protocol):
    """What a stream brings that other workers must know before it ends, such as the owner of a new object."""

    async def share(self) -> None:
        """Store it where the others look."""


async def send_stream(
    send: Send,
    connection: ClientConnection,
    reply: Reply,
    headers: Headers,
    *,
    hides_usage: bool,
    facts: Facts,
    late: LateNews | None = None,
) -> SlipstreamError | None:
    """A streamed answer, to its end. `facts`: its call's.

    A stream that breaks is never made to look whole: an SSE client gets an error event, and in every case the body
    stays without its end, so that the server drops the connection. Returns the error it broke with.
    """
    stream = reply.stream
    assert stream is not None, "the reply has a body"
    is_sse = _is_readable_sse(reply)
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    try:
        if is_sse:
            await _pump_events(connection, stream, UsageChunkFilter(hides_usage=hides_usage), facts)
        else:
            while piece := await stream.read():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    except SlipstreamError as error:
        send_error_event(connection, reply, error)
        return error
    if late is not None:
        await late.share()
    connection.hold_end()
    await send({"type": "http.response.body", "body": b""})
    return None


def send_error_event(connection: ClientConnection, reply: Reply, error: SlipstreamError) -> None:
    """Send an error event in a stream that has begun and breaks, where the client can read events."""
    if _is_readable_sse(reply):
        connection.write_piece(encode_event(error.body()))


def _is_readable_sse(reply: Reply) -> bool:
    """Whether the events can be read, and one of ours added: not where they are compressed or left out (HEAD)."""
    content_type = reply.header(b"content-type") or b""
    return content_type.startswith(_EVENT_STREAM) and reply.header(b"content-encoding") in (None, b"identity")


async def _pump_events(
    connection: ClientConnection,
    stream: Stream,
    usage_filter: UsageChunkFilter,
    facts: Facts,
) -> None:
    conceal = facts.conceal
    flow, feed, write_piece = connection.flow, usage_filter.feed, connection.write_piece

    def receive(piece: bytes) -> bool:
        if connection.is_gone:
            # This task is about to be cancelled. It takes no more pieces, which would cost upstream.
            return False
        if out := feed(piece):
            write_piece(conceal(out) if facts.may_quote and conceal is not None else out)
        return not flow.write_paused

    def send_held(held: bytes) -> None:
        if held:
            write_piece(held if conceal is None else conceal(held))

    try:
        while await stream.forward(receive):
            await flow.drain()
    except SlipstreamError:
        send_held(usage_filter.whole())
        raise
    send_held(usage_filter.rest())
