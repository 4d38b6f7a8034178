"""Requests that ask to go on in another protocol, of which the gateway speaks none.

`Upgrade` is an offer that a server may leave aside: h2c (Java's client makes it with every request) is answered as
HTTP/1.1. A WebSocket client cannot go on with that, so it is told so at once.
"""

from __future__ import annotations

from backends.protocol import Headers


def asks_for_websocket(headers: Headers) -> bool:
    """Whether WebSocket is among the protocols offered."""
    offers = [value for name, value in headers if name == b"upgrade"]
    return any(offer.strip().lower().split(b"/")[0] == b"websocket" for offer in b",".join(offers).split(b","))


def head_without_upgrade(method: str, target: bytes, http_version: str, headers: Headers) -> bytes:
    """The head of a request as it would have come from a client that speaks HTTP/1.1 only.

    The parts were parsed already: none holds a line end.
    """
    lines = [b"%b %b HTTP/%b" % (method.encode("ascii"), target, http_version.encode("ascii"))]
    lines += [b"%b: %b" % field for field in headers if field[0] != b"upgrade"]
    return b"\r\n".join(lines) + b"\r\n\r\n"
