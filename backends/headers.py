"""Which HTTP fields travel through a gateway, by name. Names are lower case."""

from __future__ import annotations

from backends.protocol import Headers

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110, section 7.6.1, and the old proxy-connection."""

_DROPPED_FROM_ANSWERS = HOP_BY_HOP | {
    b"content-length",
    # One upstream's cookies would follow every client of the gateway.
    b"set-cookie",
    b"alt-svc",
    b"strict-transport-security",
    b"server",
    b"date",
    # CORS is between the browser and the gateway.
    b"access-control-allow-origin",
    b"access-control-allow-credentials",
    b"access-control-expose-headers",
}


def end_to_end(headers: Headers) -> Headers:
    """An upstream's fields that may reach the client; its request id comes back as `x-upstream-request-id`."""
    kept: Headers = []
    connection = b""
    for field in headers:
        name = field[0]
        if name in _DROPPED_FROM_ANSWERS:
            if name == b"connection":
                connection = field[1]
            continue
        kept.append((b"x-upstream-request-id", field[1]) if name == b"x-request-id" else field)
    return without_named(kept, connection) if connection else kept


def without_named(headers: Headers, connection: bytes) -> Headers:
    """The fields that this value of `connection` does not name: those it names are for one hop only."""
    if connection.lower() in (b"keep-alive", b"close"):
        return headers
    named = {name.strip().lower() for name in connection.split(b",")}
    return [field for field in headers if field[0] not in named]
