"""What pages of other web origins may do: CORS, for the origins in `SLIPSTREAM_CORS_ORIGINS` and no others.

No cookies are taken, so nothing is said of credentials: a page sends its key in a header of its own.
"""

from __future__ import annotations

import re

from backends.protocol import Headers

_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}"
_METHOD = re.compile(_TOKEN.encode("ascii"))
_FIELD_NAMES = re.compile(rf"{_TOKEN}(?: ?, ?{_TOKEN}){{0,99}}".encode("ascii"))
_MAX_AGE_S = 600
_VARY = b"origin, access-control-request-method, access-control-request-headers"


def is_allowed_origin(origin: bytes, allowed: tuple[str, ...]) -> bool:
    """Whether pages of that origin may call."""
    return "*" in allowed or origin.decode("latin-1") in allowed


def cors_headers(origin: bytes, allowed: tuple[str, ...]) -> Headers:
    """What lets a page of that origin read the answer and its headers; nothing for origins that are not allowed."""
    if not is_allowed_origin(origin, allowed):
        return []
    headers: Headers = [(b"access-control-expose-headers", b"*")]
    if "*" in allowed:
        return [(b"access-control-allow-origin", b"*"), *headers]
    return [(b"access-control-allow-origin", origin), (b"vary", b"origin"), *headers]


def preflight_headers(asked: Headers, allowed: tuple[str, ...]) -> Headers:
    """The headers of the answer to a preflight request with these fields: every method and header is allowed.

    They are listed by name, as the browser requested them, because `*` would not include `authorization`.
    """
    fields = dict(asked)
    origin = fields.get(b"origin", b"")
    if not origin or not is_allowed_origin(origin, allowed):
        return []
    headers: Headers = [
        (b"access-control-allow-origin", b"*" if "*" in allowed else origin),
        (b"vary", _VARY),
        (b"access-control-max-age", b"%d" % _MAX_AGE_S),
    ]
    method = fields.get(b"access-control-request-method", b"")
    if _METHOD.fullmatch(method):
        headers.append((b"access-control-allow-methods", method))
    names = fields.get(b"access-control-request-headers", b"")
    if _FIELD_NAMES.fullmatch(names):
        headers.append((b"access-control-allow-headers", names))
    if fields.get(b"access-control-request-private-network") == b"true":
        headers.append((b"access-control-allow-private-network", b"true"))
    return headers
