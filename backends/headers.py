"""Which HTTP fields travel through a gateway, by name. Names are lower case."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

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

ENDS_HERE = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"authorization",
    b"x-api-key",
    b"api-key",
    b"cookie",
    b"accept-encoding",
    b"cache-control",
    b"pragma",
    b"expect",
    b"origin",
    b"referer",
    b"forwarded",
    b"via",
    b"x-real-ip",
    b"x-request-id",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-port",
    b"x-forwarded-proto",
    b"x-http-method",
    b"x-http-method-override",
    b"x-method-override",
    b"x-original-url",
    b"x-rewrite-url",
    # An upstream would tell the client what only the gateway's own key may know.
    b"x-slipstream-draft",
}
"""A client's fields that no backend sees: its credentials, what describes its connection, what the gateway sets, and
what would make another call of this one.
"""


def _may_travel(name: str) -> str:
    if name.lower().encode("ascii") in ENDS_HERE:
        raise ValueError(f'"{name}" never travels: it is for the gateway, or for one connection')
    return name


ForwardedHeader = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_|~-]{1,128}$"), AfterValidator(_may_travel)]
"""A setting: the name of a field, `*` in it for any text."""

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


def is_field_value(text: str) -> bool:
    """Whether a header can carry it: Latin-1, and on one line."""
    return all(ord(character) < 256 for character in text) and not any(end in text for end in "\r\n\0")


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


def with_defaults(headers: Headers, defaults: Headers) -> Headers:
    """The fields, and those of the defaults of whose name there is none."""
    names = {name for name, _ in headers}
    return [*headers, *(field for field in defaults if field[0] not in names)]


def without_named(headers: Headers, connection: bytes) -> Headers:
    """The fields that this value of `connection` does not name: those it names are for one hop only."""
    if connection.lower() in (b"keep-alive", b"close"):
        return headers
    named = {name.strip().lower() for name in connection.split(b",")}
    return [field for field in headers if field[0] not in named]
