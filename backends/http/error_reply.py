"""An upstream's error answer, put into OpenAI's shape without losing what a client acts on.

An answer that already has that shape keeps its bytes. Text that is not JSON (a proxy's HTML page) is never shown.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import jiter

from backends.errors import UpstreamGarbage, UpstreamRejectedKey, error_body
from backends.protocol import Headers, Reply

_JSON_HEADER = (b"content-type", b"application/json")
_MAX_MESSAGE_CHARS = 2000


def error_reply(backend: str, status: int, headers: Headers, body: bytes) -> Reply:
    """The reply for an answer with `status` >= 300; `headers` are end-to-end already.

    Raises: UpstreamRejectedKey for 401 (the client's own key was fine), UpstreamGarbage for a redirect or for an
    error without JSON whose status tells the client nothing it could act on.
    """
    if status == HTTPStatus.UNAUTHORIZED:
        raise UpstreamRejectedKey(
            f'the upstream "{backend}" refused the gateway\'s credentials; set api_key of that backend'
        )
    if status < HTTPStatus.BAD_REQUEST:
        raise UpstreamGarbage(f'the upstream "{backend}" answered with a redirect ({status}); check its base_url')
    try:
        decoded = jiter.from_json(body)
    except ValueError:
        return _without_json(backend, status, headers)
    error = decoded.get("error") if isinstance(decoded, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return Reply(status, headers, body=body)
    message, detail = _message_of(decoded)
    kept = [field for field in headers if field[0] not in (b"content-type", b"content-encoding")]
    return Reply(
        status,
        [*kept, _JSON_HEADER],
        body=error_body(
            message or f'the upstream "{backend}" answered with status {status}',
            type=_text(detail.get("type")) or _type_of(status),
            param=_text(detail.get("param")),
            code=_text(detail.get("code")),
        ),
    )


def _without_json(backend: str, status: int, headers: Headers) -> Reply:
    # 429 and 503 carry a Retry-After that the client needs; any other page says nothing about the call.
    if status not in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        raise UpstreamGarbage(f'the upstream "{backend}" answered with status {status} and no JSON; check its base_url')
    kept = [field for field in headers if field[0] not in (b"content-type", b"content-encoding")]
    message = f'the upstream "{backend}" answered with status {status}'
    return Reply(status, [*kept, _JSON_HEADER], body=error_body(message, type=_type_of(status)))


def _message_of(decoded: Any) -> tuple[str | None, dict[str, Any]]:
    """The message in the shapes servers use: vLLM's flat object, FastAPI's detail, a bare string."""
    if not isinstance(decoded, dict):
        return None, {}
    error = decoded.get("error")
    for candidate in (error, decoded.get("message"), decoded.get("detail")):
        if isinstance(candidate, str):
            return candidate[:_MAX_MESSAGE_CHARS], decoded
    detail = decoded.get("detail")
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        place = ".".join(str(part) for part in detail[0].get("loc", ()) if part != "body")
        message = f"{place}: {detail[0].get('msg', 'invalid')}" if place else str(detail[0].get("msg", "invalid"))
        return message[:_MAX_MESSAGE_CHARS], {"param": place or None}
    return None, {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _type_of(status: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "upstream_error"
