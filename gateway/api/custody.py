"""Who may name which object that an upstream keeps, and which backend a call about it has to go to.

Asked by the endpoint before a call goes out and when its answer is there. What an answer tells of is noted before the
client has it, so that its next call finds it known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from backends.errors import Forbidden, InvalidRequest, UnknownObject, UnknownPath
from backends.json_errors import NOT_JSON
from backends.protocol import Call, Operation, Reply
from backends.sse import event_data, split_events
from gateway.auth import Principal
from gateway.owners import Owners
from gateway.runtime import Runtime, Stack
from policies.objects import can_name_objects, is_of_collection, is_of_job, object_in, objects_asked_for, objects_told
from policies.owner import Owner
from policies.passthrough import is_api_path
from policies.schema import RoutePolicy

_MAX_NAMED = 100
"""Different objects that one body may name."""
_MAX_ANSWER_BYTES = 256 * 1024
"""An answer that tells of a new object is not longer."""


class _Answer(msgspec.Struct):
    """The fields of an answer that may tell of an object; others are not looked at."""

    object: Any = None
    id: Any = None
    thread_id: Any = None
    output_file_id: Any = None
    error_file_id: Any = None
    result_files: Any = None
    response: Any = None
    file: Any = None


class Custody:
    """One per process."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    async def place(self, path: str, runtime: Runtime, principal: Principal) -> tuple[Stack, str] | None:
        """Where the caller's object is that a path is about: a route and the backend; None where it is about none, or
        about none that is known to be the caller's.
        """
        named = object_in(path)
        owner = await self._owners.find(named) if named is not None else None
        if owner is None or owner.tenant != principal.tenant:
            return None
        routes = [route.name for route in runtime.loaded.policy.routes if _has(route, owner.backend)]
        if not routes:
            return None
        return runtime.stacks[owner.route if owner.route in routes else routes[0]], owner.backend

    def check_path(self, method: str, path: str, stack: Stack, pinned: str) -> None:
        """Raises: Forbidden or UnknownPath where nothing of the sort passes, UnknownObject where it is not known to be
        the caller's (`pinned` is empty then).
        """
        if not stack.passes.allows(method, path):
            error = Forbidden if is_api_path(path) else UnknownPath
            raise error(
                f"{method} {path} does not pass here: the route's passthrough.allow would have to list it "
                f'("{method} {path}"; defaults are `defaults`)'
            )
        if not pinned and stack.passes.objects_are_owned and (named := object_in(path)) is not None:
            raise _unknown(named)

    async def check_body(
        self, raw: bytes, body: Mapping[str, Any], stack: Stack, principal: Principal, pinned: str
    ) -> str:
        """The backend that keeps what the body names; `pinned`, or empty, where it names nothing. `raw`: its JSON.

        Raises: UnknownObject for another tenant's, InvalidRequest where no backend of the route has all of them.
        """
        if not can_name_objects(raw):
            return pinned
        named = dict.fromkeys(objects_asked_for(body))
        if len(named) > _MAX_NAMED:
            raise InvalidRequest(f"the body names {len(named)} objects; at most {_MAX_NAMED} are looked up")
        for param, each in named:
            owner = await self._owners.find(each)
            if owner is None or owner.tenant != principal.tenant:
                if stack.passes.objects_are_owned:
                    raise _unknown(each, param)
                continue
            if (pinned and owner.backend != pinned) or not _has(stack.policy, owner.backend):
                raise InvalidRequest(
                    f'{param}: "{each}" is kept by another backend than this call goes to', param=param
                )
            pinned = owner.backend
        return pinned

    async def note(self, call: Call, reply: Reply, stack: Stack) -> None:
        """Remember what the answer tells of as the caller's. Raises: as reading the answer does."""
        backend = call.facts.backend
        if not 200 <= reply.status < 300 or backend is None or not _may_tell(call):
            return
        owner = Owner(call.tenant, call.facts.fallback_route or stack.policy.name, backend)
        for each in objects_told(await _told(reply), is_made=call.method == "POST"):
            await self._owners.put(each, owner)


_decode_answer = msgspec.json.Decoder(_Answer).decode


def _may_tell(call: Call) -> bool:
    if call.operation is Operation.PASSTHROUGH:
        if call.method == "GET":
            return is_of_job(call.path)
        return call.method == "POST" and is_of_collection(call.path)
    return call.body is not None and call.body.get("store") is not False


async def _told(reply: Reply) -> dict[str, Any]:
    """What a whole answer says, or the first event of a stream; nothing where that is no JSON object."""
    body = reply.body
    if reply.stream is not None:
        content_type = reply.header(b"content-type") or b""
        if content_type.startswith(b"text/event-stream"):
            events = split_events(await reply.stream.peek())
            body = next((data for event in events if (data := event_data(event)) is not None), b"")
        elif b"json" in content_type:
            body = await reply.stream.peek(_MAX_ANSWER_BYTES)
    try:
        return msgspec.structs.asdict(_decode_answer(body or b"{}"))
    except NOT_JSON:
        return {}


def _has(route: RoutePolicy, backend: str) -> bool:
    return any(part.ref == backend for part in route.backends)


def _unknown(named: str, param: str | None = None) -> UnknownObject:
    return UnknownObject(f'there is no "{named[:200]}" here that was made with a key of this tenant', param=param)
