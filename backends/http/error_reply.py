"""An upstream's error answer, put into OpenAI's shape without losing what a client acts on.

An answer that already has that shape keeps its bytes, but for what the backend's `Redactor` hides. Text that is not
JSON (a proxy's HTML page) is never shown.
"""

from __future__ import annotations

from http import HTTPStatus
from math import ceil
from typing import Any

import jiter
import msgspec

from backends.clock import Clock
from backends.errors import UpstreamGarbage, UpstreamRejectedKey, error_body
from backends.http.redact import Redactor
from backends.json_errors import NOT_JSON
from backends.protocol import Headers, Reply
from backends.waits import asked_wait_s, told_in_body_s, with_believed_waits

_JSON_HEADER = (b"content-type", b"application/json")
_OF_A_BODY = frozenset({b"content-type", b"content-encoding", b"cache-control"})
_MAX_MESSAGE_CHARS = 2000
_SAYS_ENOUGH = frozenset(
    {
        # With a Retry-After that the client needs.
        *(HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE),
        # What the client has sent is too large, mostly for a proxy in front, or a condition or part that cannot be.
        *(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.REQUEST_URI_TOO_LONG),
        *(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, HTTPStatus.PRECONDITION_FAILED),
        HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    }
)
"""Statuses that tell a client what to do, whatever page comes with them."""


class ErrorReplies:
    """Those of one backend."""

    def __init__(self, backend: str, redactor: Redactor, clock: Clock) -> None:
        self._backend = backend
        self._redactor = redactor
        self._clock = clock

    def of_answer(self, status: int, headers: Headers, body: bytes) -> Reply:
        """The reply for an answer with `status` >= 300; `headers` are end-to-end already.

        Raises: UpstreamRejectedKey for 401 (the client's own key was fine), UpstreamGarbage for a redirect or for an
        error without JSON whose status tells the client nothing it could act on.
        """
        backend = self._backend
        if status == HTTPStatus.UNAUTHORIZED:
            raise UpstreamRejectedKey(
                f'the upstream "{backend}" refused the gateway\'s credentials; set api_key of that backend'
            )
        if status < HTTPStatus.BAD_REQUEST:
            raise UpstreamGarbage(f'the upstream "{backend}" answered with a redirect ({status}); check its base_url')
        shown = self._redactor.fields(with_believed_waits(headers, self._clock.wall()))
        if status == HTTPStatus.TOO_MANY_REQUESTS and asked_wait_s(shown, self._clock.wall()) is None:
            wait_s = told_in_body_s(body)
            if wait_s is not None:
                shown.append((b"retry-after", b"%d" % ceil(wait_s)))
        body = self._redactor.data(body)
        try:
            decoded = jiter.from_json(body, allow_inf_nan=False)
        except ValueError:
            # Any other page says nothing about the call.
            if status not in _SAYS_ENOUGH:
                raise UpstreamGarbage(
                    f'the upstream "{backend}" answered with status {status} and no JSON; check its base_url'
                ) from None
            decoded = None
        error = decoded.get("error") if isinstance(decoded, dict) else None
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            return Reply(status, called_json(shown), body=body)
        message, detail = _message_of(decoded)
        return _own(
            status,
            shown,
            error_body(
                message or f'the upstream "{backend}" answered with status {status}',
                type=_text(detail.get("type")) or _type_of(status),
                param=_text(detail.get("param")),
                code=_text(detail.get("code")),
            ),
        )

    def of_error(self, error: bytes, headers: Headers) -> Reply | None:
        """The reply for an error that came as a success: the JSON of the field `error`. None where it is no error.

        Its status is its code, where that is one. Raises: as `of_answer`.
        """
        try:
            decoded = jiter.from_json(error, allow_inf_nan=False)
        except ValueError:
            return None
        if not decoded or not isinstance(decoded, (dict, str)):
            return None
        return self.of_answer(_status_of(decoded), headers, b'{"error":%b}' % error)


def called_json(headers: Headers) -> Headers:
    """The fields of a JSON body: whatever its server calls it, it is shown as what it is."""
    if any(name == b"content-type" and b"json" in value for name, value in headers):
        return headers
    return [*(field for field in headers if field[0] != b"content-type"), _JSON_HEADER]


def is_error_alone(body: bytes) -> bool:
    """Whether an answer that has an error has nothing else: some that went well say what went wrong on the way."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except NOT_JSON:
        return False
    return fields.keys().isdisjoint(("choices", "data", "output"))


def _own(status: int, headers: Headers, body: bytes) -> Reply:
    return Reply(status, [*_without_body(headers), _JSON_HEADER], body=body)


def _without_body(headers: Headers) -> Headers:
    return [field for field in headers if field[0] not in _OF_A_BODY]


def _status_of(error: dict[str, Any] | str) -> int:
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdigit():
        code = int(code)
    return code if isinstance(code, int) and 400 <= code < 600 else int(HTTPStatus.BAD_GATEWAY)


def _message_of(decoded: Any) -> tuple[str | None, dict[str, Any]]:
    """The message in the shapes servers use: vLLM's flat object, FastAPI's detail, a text, Gemini's list of one."""
    if isinstance(decoded, list) and len(decoded) == 1 and isinstance(decoded[0], dict):
        error = decoded[0].get("error")
        return (_message_of(error)[0], error) if isinstance(error, dict) else (None, {})
    if not isinstance(decoded, dict):
        return None, {}
    error = decoded.get("error")
    for candidate in (error, decoded.get("message"), decoded.get("detail")):
        if isinstance(candidate, str):
            return candidate[:_MAX_MESSAGE_CHARS], decoded
    detail = decoded.get("detail")
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        where = detail[0].get("loc")
        place = ".".join(str(part) for part in where if part != "body") if isinstance(where, list) else ""
        message = f"{place}: {detail[0].get('msg', 'invalid')}" if place else str(detail[0].get("msg", "invalid"))
        return message[:_MAX_MESSAGE_CHARS], {"param": place or None}
    return None, {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _type_of(status: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "upstream_error"
