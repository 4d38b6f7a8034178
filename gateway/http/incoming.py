"""Reading a request off ASGI: the fields acted on, the ones that may travel on, and the body within its limit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from io import BytesIO

import msgspec
from starlette.types import Message, Receive

from backends.clock import Clock
from backends.errors import BodyTooLarge, BodyTooSlow, ClientGone, InvalidRequest
from backends.headers import ENDS_HERE, without_named
from backends.protocol import Headers
from gateway.http.body_budget import HeldBody
from policies.admission.urgency import URGENCY_HEADERS

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


_SESSIONS = frozenset({b"x-session-id", b"session_id", b"session-id", b"x-claude-code-session-id"})
"""Where clients name their session or agent run, Codex and Claude Code by themselves."""
_MAX_SESSION_BYTES = 256

_TAKEN = frozenset(
    {
        *_SESSIONS,
        *(b"authorization", b"x-api-key", b"api-key", b"content-length", b"cache-control", b"connection"),
        *(b"accept-encoding", b"origin", b"x-request-id", b"content-type", b"content-encoding"),
        b"user-agent",
    }
)
"""Fields that are acted on here, whether they travel or not."""


class Incoming(msgspec.Struct, eq=False):
    """The head of a request: what is acted on here, and the fields that may travel upstream."""

    headers: Iterable[tuple[bytes, bytes]]
    """As they came, names in lower case."""
    _authorization: bytes | None = None
    credentials: bytes | None = None
    """None where there are none, empty where there are several that differ."""
    request_id: bytes = b""
    content_length: int = 0
    content_type: bytes = b""
    content_encoding: bytes = b""
    accept_encoding: bytes = b""
    cache_control: str = ""
    origin: bytes = b""
    connection: bytes = b""
    user_agent: bytes = b""
    _session: bytes = b""
    urgency: Headers = []
    """The headers by which a caller sets its own limits and priority (`x-slo-*`, `x-priority`). They are in `forwarded`
    too, because a route without limits passes them on."""
    forwarded: Headers = []

    def __post_init__(self) -> None:
        forwarded = self.forwarded
        for field in self.headers:
            name = field[0]
            if name in _TAKEN:
                self._take(name, field[1])
            elif name in URGENCY_HEADERS:
                self.urgency.append(field)
            if name not in ENDS_HERE:
                forwarded.append(field)
        if self.connection:
            self.forwarded = without_named(forwarded, self.connection)
            if self.content_encoding and all(name != b"content-encoding" for name, _ in self.forwarded):
                self.content_encoding = b""

    def _take(self, name: bytes, value: bytes) -> None:
        if name == b"content-type":
            self.content_type = value
        elif name == b"content-length":
            # The server in front has checked that these are digits.
            self.content_length = int(value)
        elif name == b"authorization":
            # Two different values are ambiguous, as a proxy in front may have checked the first one: neither counts.
            self.credentials = value if self._authorization in (None, value) else b""
            self._authorization = value
        elif name in (b"x-api-key", b"api-key"):
            if self._authorization is None:
                self.credentials = value if self.credentials in (None, value) else b""
        elif name == b"content-encoding":
            self.content_encoding = value
        elif name == b"user-agent":
            self.user_agent = value
        elif name == b"cache-control":
            text = value.decode("latin-1")
            self.cache_control = f"{self.cache_control},{text}" if self.cache_control else text
        elif name == b"connection":
            self.connection = value
        elif name == b"accept-encoding":
            self.accept_encoding = value
        elif name == b"origin":
            self.origin = value
        elif name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            self.request_id = value
        elif name in _SESSIONS and not self._session:
            self._session = value

    def session(self) -> str:
        """The session that the client has named first, empty without one. Raises: InvalidRequest."""
        if len(self._session) > _MAX_SESSION_BYTES:
            raise InvalidRequest(f"the name of a session has at most {_MAX_SESSION_BYTES} bytes")
        return self._session.decode("latin-1") if self._session else ""


class Pace:
    """The least rate at which a body has to arrive. A client that stays below it is not waited for."""

    _GRACE_S = 30.0

    def __init__(self, clock: Clock, min_bytes_per_s: int) -> None:
        self._clock = clock
        self._min_bytes_per_s = min_bytes_per_s
        self._waited_s = 0.0

    async def next(self, receive: Receive, num_bytes: int) -> Message:
        """The next message, where so many bytes are there already. Raises: BodyTooSlow."""
        late_s = self._waited_s - self._GRACE_S
        if late_s > 0 and num_bytes < late_s * self._min_bytes_per_s:
            raise BodyTooSlow(
                f"the body has come with less than {self._min_bytes_per_s} bytes a second for {self._waited_s:.0f} s"
            )
        asked_at = self._clock.now()
        message = await receive()
        self._waited_s += self._clock.now() - asked_at
        return message


async def read_body(
    receive: Receive, incoming: Incoming, max_bytes: int, pace: Pace, held: HeldBody | None = None
) -> bytes:
    """The whole body. `held` grows with what has arrived; a length that is announced must fit.

    Raises: BodyTooLarge as soon as that is known, ClientGone, and what `Pace.next` and `HeldBody.grow` raise.
    """
    if incoming.content_length > max_bytes:
        raise BodyTooLarge(f"the body has {incoming.content_length} bytes; at most {max_bytes} are taken")
    if held is not None:
        held.announce(incoming.content_length)
    # Unlike pieces that are joined, this is never there twice.
    body = BytesIO()
    num_bytes = 0
    more_body = True
    while more_body:
        message = await pace.next(receive, num_bytes)
        if message["type"] == "http.disconnect":
            raise ClientGone("the client left before its request was whole")
        num_bytes += body.write(message.get("body", b""))
        if num_bytes > max_bytes:
            raise BodyTooLarge(f"at most {max_bytes} bytes are taken")
        if held is not None:
            held.grow(num_bytes)
        more_body = message.get("more_body", False)
    return body.getvalue()


def ascii_text(value: bytes, what: str) -> str:
    """A path or query as text.

    Raises: InvalidRequest for bytes that HTTP does not allow there.
    """
    try:
        return value.decode("ascii")
    except UnicodeDecodeError:
        raise InvalidRequest(f"the {what} has characters outside ASCII; percent-encode them") from None
