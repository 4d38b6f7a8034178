"""What refusals and breaks of the gateway must look like to a client."""

from __future__ import annotations

import json
from typing import Any, Protocol

import httpx

_FIELDS = {"message", "type", "param", "code"}


class _Answer(Protocol):
    @property
    def status_code(self) -> int: ...

    @property
    def content(self) -> bytes: ...

    @property
    def headers(self) -> Any: ...


def openai_error(answer: _Answer, status: int | None = None) -> dict[str, Any]:
    """The error object of an answer, once it is sure that it has OpenAI's shape (and that status).

    Raises: AssertionError.
    """
    assert status is None or answer.status_code == status, (answer.status_code, answer.content[:500])
    assert answer.status_code >= 400, answer.status_code
    assert answer.headers["content-type"].startswith("application/json"), answer.headers["content-type"]
    body = json.loads(answer.content)
    assert isinstance(body, dict), body
    assert set(body) == {"error"}, body
    error: dict[str, Any] = body["error"]
    assert set(error) == _FIELDS, error
    assert isinstance(error["message"], str), error
    assert error["message"], error
    assert isinstance(error["type"], str), error
    assert isinstance(error["param"], str | None), error
    assert "Traceback" not in error["message"], error
    assert answer.headers.get("x-request-id"), "an error has an id too"
    return error


async def read_broken(answer: httpx.Response) -> bytes:
    """What came of a stream before its connection broke.

    Raises: AssertionError where it ended as if it were whole.
    """
    received = b""
    try:
        async for piece in answer.aiter_raw():
            received += piece
    except httpx.RemoteProtocolError:
        return received
    raise AssertionError(f"the stream ended as if it were whole: {received[-200:]!r}")
