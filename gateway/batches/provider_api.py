"""A provider's Files and Batches API, asked over a backend like any other call that only passes through."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from backends.clock import Clock
from backends.errors import UpstreamError, UpstreamGarbage
from backends.json_errors import NOT_JSON
from backends.operations import Operation
from backends.protocol import Backend, Call, Facts, Headers, Reply, Timeouts
from backends.waits import retry_after_s

_STEP_S = 600.0
"""Uploading or reading a large file may take so long."""
_MAX_BODY_BYTES = 4 * 1024**2
_MAX_PAGES = 20
_TRANSIENT = frozenset({408, 409, 425, 429})
_MAX_MESSAGE_CHARS = 500
_T = TypeVar("_T")


class ProviderRefused(Exception):
    """The provider will not do it, now or later; the message is its own."""


class ProviderBusy(Exception):
    """The provider may do it later; `retry_after_s` is None where it does not say when."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class _Created(msgspec.Struct):
    id: str


class ProviderProblem(msgspec.Struct):
    """Why a provider takes none of a batch; `line` counts from 1."""

    code: str | None = None
    message: str | None = None
    line: int | None = None


class _Problems(msgspec.Struct):
    data: list[ProviderProblem] | None = None


class ProviderBatch(msgspec.Struct):
    """A batch as its provider tells it."""

    id: str
    status: str
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: _Problems | None = None

    @property
    def problems(self) -> Sequence[ProviderProblem]:
        """Why it has failed."""
        return (self.errors.data if self.errors is not None else None) or ()


class _Listing(msgspec.Struct):
    data: list[ProviderBatch]
    has_more: bool = False


class ProviderApi:
    """One provider. Every method raises ProviderRefused and ProviderBusy."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock

    async def upload(self, name: str, content: bytes) -> str:
        """The id of a new input file."""
        boundary = secrets.token_hex(16)
        head = (
            f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="{name}.jsonl"\r\n'
            "content-type: application/jsonl\r\n\r\n"
        )
        raw = b"".join((head.encode("ascii"), content, f"\r\n--{boundary}--\r\n".encode("ascii")))
        content_type = f"multipart/form-data; boundary={boundary}".encode("ascii")
        return (await self._json("POST", "/files", _Created, raw=raw, content_type=content_type)).id

    async def create(self, input_file: str, endpoint: str, token: str) -> str:
        """The id of a new batch."""
        wanted = {
            "input_file_id": input_file,
            "endpoint": endpoint,
            "completion_window": "24h",
            "metadata": {"slipstream": token},
        }
        return (await self._json("POST", "/batches", _Created, raw=msgspec.json.encode(wanted))).id

    async def find(self, input_file: str) -> str | None:
        """The batch of that input file: the one whose creation was not seen to its end."""
        after = ""
        for _ in range(_MAX_PAGES):
            page = await self._json("GET", "/batches", _Listing, query=f"limit=100{after}")
            for batch in page.data:
                if batch.input_file_id == input_file:
                    return batch.id
            if not page.has_more or not page.data:
                return None
            after = f"&after={_segment(page.data[-1].id)}"
        return None

    async def retrieve(self, id: str) -> ProviderBatch:
        """How it stands."""
        return await self._json("GET", f"/batches/{_segment(id)}", ProviderBatch)

    async def cancel(self, id: str) -> None:
        """Ask for its end."""
        async with self._reply("POST", f"/batches/{_segment(id)}/cancel"):
            pass

    async def content(self, file: str) -> AsyncGenerator[bytes, None]:
        """A file's bytes as they come; close it."""
        async with self._reply("GET", f"/files/{_segment(file)}/content") as reply:
            stream = reply.stream
            if stream is None:
                yield reply.body or b""
                return
            try:
                while piece := await stream.read():
                    yield piece
            except UpstreamError as error:
                raise ProviderBusy(error.message) from error

    async def delete(self, file: str) -> None:
        """Delete a file."""
        async with self._reply("DELETE", f"/files/{_segment(file)}"):
            pass

    async def _json(
        self,
        method: str,
        path: str,
        shape: type[_T],
        *,
        raw: bytes = b"",
        query: str = "",
        content_type: bytes = b"application/json",
    ) -> _T:
        async with self._reply(method, path, raw=raw, query=query, content_type=content_type) as reply:
            try:
                return msgspec.json.decode(await _body(reply), type=shape)
            except (*NOT_JSON, UpstreamError) as error:
                raise ProviderBusy(f"{method} {path} is answered with something unexpected: {error}") from error

    @asynccontextmanager
    async def _reply(
        self, method: str, path: str, *, raw: bytes = b"", query: str = "", content_type: bytes = b""
    ) -> AsyncIterator[Reply]:
        headers: Headers = [(b"accept", b"*/*"), (b"accept-encoding", b"identity")]
        if raw:
            headers.append((b"content-type", content_type))
        call = Call(
            operation=Operation.PASSTHROUGH,
            method=method,
            path=path,
            query=query,
            raw=raw,
            body=None,
            model="",
            headers=headers,
            deadline=self._clock.now() + _STEP_S,
            timeouts=Timeouts(total_s=_STEP_S),
            facts=Facts(),
        )
        try:
            reply = await self._backend.send(call)
        except UpstreamError as error:
            raise ProviderBusy(error.message, error.retry_after_s) from error
        try:
            if reply.status >= 300:
                message = f"{method} {path.split('/')[1]}: {_message(await _body(reply))}"
                if reply.status in _TRANSIENT or reply.status >= 500:
                    raise ProviderBusy(message, retry_after_s(reply, self._clock))
                raise ProviderRefused(message)
            yield reply
        finally:
            await reply.aclose()


async def _body(reply: Reply) -> bytes:
    """Raises: UpstreamError."""
    if reply.body is not None:
        return reply.body
    assert reply.stream is not None, "the reply has a body or a stream"
    body = await reply.stream.read_all(_MAX_BODY_BYTES)
    if body is None:
        raise UpstreamGarbage("the answer is too long")
    return body


def _message(body: bytes) -> str:
    try:
        decoded = msgspec.json.decode(body)
        message = decoded["error"]["message"]
    except (*NOT_JSON, KeyError, TypeError):
        return "the provider refuses it"
    return str(message)[:_MAX_MESSAGE_CHARS]


def _segment(id: str) -> str:
    """An id of the provider's within a path. Raises: ProviderRefused for one that would lead elsewhere."""
    if not id.replace("-", "").replace("_", "").isalnum() or not id.isascii():
        raise ProviderRefused("the provider has given an id that is none")
    return id
