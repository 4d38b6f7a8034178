"""/v1/files: uploading, listing, reading and deleting the files of the caller's tenant."""

from __future__ import annotations

import asyncio
from typing import Any, BinaryIO

from starlette.types import Receive, Scope, Send

from backends.errors import InvalidRequest, MethodNotAllowed, StoreUnavailable, UnknownPath
from backends.protocol import Headers
from gateway.api.address import path_below, query_of
from gateway.api.respond import Streamed, respond
from gateway.batches.file_store import FileStore, parse_limit
from gateway.batches.records import FileRow, Tenant
from gateway.batches.service import Batches
from gateway.batches.upload import Upload, receive_upload
from gateway.core import Core
from gateway.http.auth import Principal
from gateway.http.connection import connection_of
from gateway.http.incoming import Incoming
from gateway.runtime import Runtime

_READ_BYTES = 256 * 1024
_MAX_LIMIT = 10_000
_FORM_BYTES = 1024
_SHORTEST_KEEP_S = 3600
_LONGEST_KEEP_S = 2_592_000


class FilesApi:
    """All paths below /files. Bare ASGI."""

    def __init__(self, core: Core, batches: Batches) -> None:
        self._core = core
        self._files: FileStore = batches.files
        self._max_bytes = batches.limits.max_file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def make(runtime: Runtime, principal: Principal, incoming: Incoming) -> object:
            tenant = Tenant(principal.tenant)
            name, _, below = path_below(scope, "files").partition("/")
            match scope["method"], bool(name), below:
                case "POST", False, "":
                    return await self._upload(tenant, receive, incoming)
                case "GET", False, "":
                    return await self._list(tenant, query_of(scope))
                case "GET", True, "":
                    return file_object(await self._files.get(tenant, name))
                case "DELETE", True, "":
                    await self._files.delete(tenant, name)
                    return {"id": name, "object": "file", "deleted": True}
                case "GET", True, "content":
                    return await self._content(tenant, name, scope, send)
                case _, _, "" | "content":
                    raise MethodNotAllowed(f"{scope['path']} does not take {scope['method']}")
            raise UnknownPath(f"there is no {scope['path']}")

        await respond(self._core, scope, make)

    async def _upload(self, tenant: Tenant, receive: Receive, incoming: Incoming) -> dict[str, Any]:
        # A little less than the whole form, so that a file that fits is not refused for what stands around it.
        await self._files.check_room(tenant, max(0, incoming.content_length - _FORM_BYTES))
        part = self._files.new_part()
        try:
            upload = await receive_upload(receive, incoming, part, self._max_bytes, self._core.pace())
            if upload.fields.get("purpose") != "batch":
                raise InvalidRequest('files are for batches here: purpose is "batch"', param="purpose")
            keep_s = _keep_of(upload)
            return file_object(await self._files.add(tenant, part, upload.filename, "batch", keep_s))
        except OSError as error:
            raise StoreUnavailable(f"the file cannot be stored: {error.strerror}") from error
        finally:
            part.unlink(missing_ok=True)

    async def _list(self, tenant: Tenant, query: dict[str, str]) -> dict[str, Any]:
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest("order is asc or desc", param="order")
        rows, has_more = await self._files.listing(
            tenant,
            limit=parse_limit(query.get("limit"), _MAX_LIMIT, _MAX_LIMIT),
            after=query.get("after"),
            purpose=query.get("purpose"),
            ascending=order == "asc",
        )
        return page([file_object(row) for row in rows], has_more=has_more)

    async def _content(self, tenant: Tenant, name: str, scope: Scope, send: Send) -> Streamed:
        row = await self._files.get(tenant, name)
        path = self._files.path(row.id)
        try:
            file = await asyncio.to_thread(path.open, "rb")
        except OSError as error:
            raise StoreUnavailable(f"the file cannot be read: {error.strerror}") from error

        async def answer(headers: Headers) -> None:
            await _send_file(scope, send, file, row, headers)

        return Streamed(answer)


def file_object(row: FileRow) -> dict[str, Any]:
    """A file as OpenAI shows it."""
    return {
        "id": row.id,
        "object": "file",
        "bytes": row.num_bytes,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
    }


def page(found: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A part of a list as OpenAI shows it."""
    return {
        "object": "list",
        "data": found,
        "first_id": found[0]["id"] if found else None,
        "last_id": found[-1]["id"] if found else None,
        "has_more": has_more,
    }


def keep_seconds(anchor: object, seconds: object, name: str) -> int:
    """How long something is to be kept, as `expires_after` says it. Raises: InvalidRequest."""
    is_number = isinstance(seconds, int) and not isinstance(seconds, bool)
    if anchor != "created_at" or not is_number or not _SHORTEST_KEEP_S <= int(str(seconds)) <= _LONGEST_KEEP_S:
        raise InvalidRequest(
            f'{name} is {{"anchor": "created_at", "seconds": {_SHORTEST_KEEP_S} to {_LONGEST_KEEP_S}}}', param=name
        )
    return int(str(seconds))


def _keep_of(upload: Upload) -> int | None:
    anchor = upload.fields.get("expires_after[anchor]")
    seconds = upload.fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    number = int(seconds[:9]) if seconds and seconds.isascii() and seconds.isdigit() else None
    return keep_seconds(anchor, number, "expires_after")


async def _send_file(scope: Scope, send: Send, file: BinaryIO, row: FileRow, headers: Headers) -> None:
    """The whole file, as fast as the client reads it; stops where the client leaves."""
    connection = connection_of(scope)
    own = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % row.num_bytes)]
    try:
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, *own]})
        while not connection.is_gone and (piece := await asyncio.to_thread(file.read, _READ_BYTES)):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        file.close()
