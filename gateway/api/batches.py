"""/v1/batches: making, listing, watching and cancelling the batches of the caller's tenant."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from backends.config import parse_duration
from backends.errors import InvalidRequest, MethodNotAllowed, UnknownPath
from gateway.api.address import path_below, query_of
from gateway.api.files import keep_seconds, page
from gateway.api.respond import respond
from gateway.batches.file_store import parse_limit
from gateway.batches.input_lines import ENDPOINTS
from gateway.batches.records import BatchRow, Tenant
from gateway.batches.service import Batches
from gateway.core import Core
from gateway.http.auth import Principal
from gateway.http.decode import decode_json
from gateway.http.incoming import Incoming, read_body
from gateway.runtime import Runtime

_LIMIT = 20
_MAX_LIMIT = 100
_MAX_BODY_BYTES = 64 * 1024
_MAX_WINDOW_S = 14 * 86400.0
_MAX_PAIRS = 16
_MAX_NAME_CHARS = 64
_MAX_VALUE_CHARS = 512


class BatchesApi:
    """All paths below /batches. Bare ASGI."""

    def __init__(self, core: Core, batches: Batches) -> None:
        self._core = core
        self._batches = batches
        self._store = batches.store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def make(runtime: Runtime, principal: Principal, incoming: Incoming) -> object:
            tenant = Tenant(principal.tenant)
            name, _, below = path_below(scope, "batches").partition("/")
            match scope["method"], bool(name), below:
                case "POST", False, "":
                    raw = await read_body(receive, incoming, _MAX_BODY_BYTES, self._core.pace())
                    return await self._create(tenant, principal, decode_json(raw))
                case "GET", False, "":
                    return await self._list(tenant, query_of(scope))
                case "GET", True, "":
                    return batch_object(await self._store.get(tenant, name))
                case "POST", True, "cancel":
                    batch = await self._store.cancel(tenant, name)
                    self._batches.wake()
                    return batch_object(batch)
                case _, _, "" | "cancel":
                    raise MethodNotAllowed(f"{scope['path']} does not take {scope['method']}")
            raise UnknownPath(f"there is no {scope['path']}")

        await respond(self._core, scope, make)

    async def _create(self, tenant: Tenant, principal: Principal, body: object) -> dict[str, Any]:
        if not isinstance(body, dict):
            raise InvalidRequest("the body is not a JSON object")
        endpoint = _text(body, "endpoint")
        if endpoint not in ENDPOINTS:
            raise InvalidRequest(f"endpoint is one of {', '.join(ENDPOINTS)}", param="endpoint")
        keep = body.get("output_expires_after")
        batch = await self._store.create(
            tenant,
            key=principal.key,
            endpoint=endpoint,
            input_file_id=_text(body, "input_file_id"),
            window=_window(_text(body, "completion_window")),
            metadata=_metadata(body.get("metadata")),
            output_keep_s=_output_keep(keep) if keep is not None else None,
        )
        self._batches.wake()
        return batch_object(batch)

    async def _list(self, tenant: Tenant, query: dict[str, str]) -> dict[str, Any]:
        limit = parse_limit(query.get("limit"), _LIMIT, _MAX_LIMIT)
        rows, has_more = await self._store.listing(tenant, limit=limit, after=query.get("after"))
        return page([batch_object(row) for row in rows], has_more=has_more)


def batch_object(row: BatchRow) -> dict[str, Any]:
    """A batch as OpenAI shows it, and `cost` where prices are known."""
    shown = {
        "id": row.id,
        "object": "batch",
        "endpoint": row.endpoint,
        "model": row.model,
        "errors": {"object": "list", "data": msgspec.json.decode(row.errors)} if row.errors else None,
        "input_file_id": row.input_file_id,
        "completion_window": row.completion_window,
        "status": row.status,
        "output_file_id": row.output_file_id,
        "error_file_id": row.error_file_id,
        "created_at": row.created_at,
        "in_progress_at": row.in_progress_at,
        "expires_at": row.expires_at,
        "finalizing_at": row.finalizing_at,
        "completed_at": row.completed_at,
        "failed_at": row.failed_at,
        "expired_at": row.expired_at,
        "cancelling_at": row.cancelling_at,
        "cancelled_at": row.cancelled_at,
        "request_counts": {"total": row.total, "completed": row.completed, "failed": row.failed},
        "usage": {
            "input_tokens": row.input_tokens,
            "input_tokens_details": {"cached_tokens": row.cached_tokens},
            "output_tokens": row.output_tokens,
            "output_tokens_details": {"reasoning_tokens": row.reasoning_tokens},
            "total_tokens": row.input_tokens + row.output_tokens,
        },
        "metadata": msgspec.json.decode(row.metadata) if row.metadata else None,
    }
    if row.cost is not None:
        shown["cost"] = round(row.cost, 9)
    return shown


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is missing" if value is None else f"{name} is not a text", param=name)
    return value


def _window(text: str) -> tuple[str, float]:
    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= _MAX_WINDOW_S:
        raise InvalidRequest('completion_window is a time from "1s" to "14d", usually "24h"', param="completion_window")
    return text, seconds


def _output_keep(value: Any) -> int:
    fields = value if isinstance(value, dict) else {}
    return keep_seconds(fields.get("anchor"), fields.get("seconds"), "output_expires_after")


def _metadata(value: Any) -> str:
    if value is None:
        return ""
    pairs = value if isinstance(value, dict) else {"": None}
    is_good = len(pairs) <= _MAX_PAIRS and all(
        len(name) <= _MAX_NAME_CHARS and isinstance(text, str) and len(text) <= _MAX_VALUE_CHARS
        for name, text in pairs.items()
    )
    if not is_good:
        raise InvalidRequest(
            f"metadata has at most {_MAX_PAIRS} texts of {_MAX_VALUE_CHARS} characters, "
            f"their names {_MAX_NAME_CHARS} or fewer",
            param="metadata",
        )
    return msgspec.json.encode(pairs).decode("utf-8")
