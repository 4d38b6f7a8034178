"""Who may name which object that an upstream keeps, and which backend a call about it has to go to.

Asked by the endpoint before a call goes out and when its answer is there. What an answer tells of is noted before the
client has it, so that its next call finds it known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from backends.clock import Clock
from backends.errors import Forbidden, InvalidRequest, UnknownObject, UnknownPath
from backends.operations import Operation
from backends.protocol import Call, Reply
from backends.sse import event_data, split_events
from gateway.api.owners import Owners
from gateway.http.auth import Principal
from gateway.http.decode import decode_json
from gateway.process.slices import Slices
from gateway.runtime import Runtime, Stack
from policies.objects.found_in_answers import ObjectIdTap, objects_told, parts_told
from policies.objects.names import can_name_objects, is_of_collection, is_of_job, object_in, objects_asked_for
from policies.objects.owner import Owner
from policies.passthrough.paths import plainest
from policies.passthrough.rules import is_api_path
from policies.schema import RoutePolicy

_MAX_NAMED = 100
"""Different objects that one body may name."""
_MAX_ANSWER_BYTES = 4 * 1024**2
"""An answer that only passes and tells of a new object is not longer."""
_STEP_BYTES = 1024**2
"""Searched at a time."""


class Custody:
    """One per process."""

    def __init__(self, owners: Owners, clock: Clock) -> None:
        self._owners = owners
        self._clock = clock

    async def place(self, path: str, runtime: Runtime, principal: Principal) -> tuple[Stack, str] | None:
        """Where the caller's object is that a path is about: a route and the backend; None where it is about none, or
        about none that is known to be the caller's.
        """
        named = object_in(path)
        owner = await self._owners.find(named) if named is not None else None
        if owner is None or owner.tenant != principal.tenant:
            return None
        found = (route.name for route in runtime.loaded.policy.routes if _has(route, owner.backend))
        routes = [route for route in found if principal.may_take(route)]
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

    async def check_body(self, raw: bytes, body: Mapping[str, Any], stack: Stack, tenant: str, pinned: str) -> str:
        """The backend that keeps what the body names; `pinned`, or empty, where it names nothing. `raw`: its JSON.

        Raises: as `check_named`, and InvalidRequest for a body that is too large to be looked through.
        """
        try:
            named = list(objects_asked_for(body))
        except InvalidRequest:
            if await _can_name_objects(raw):
                raise
            return pinned
        return await self.check_named(named, stack, tenant, pinned) if named else pinned

    async def check_lines(self, lines: bytes, stack: Stack, tenant: str, pinned: str) -> str:
        """As `check_body`, for the requests of a batch, one a line."""
        slices = Slices(self._clock)
        named: dict[tuple[str, str], None] = {}
        for line in lines.splitlines():
            if can_name_objects(line):
                named.update(dict.fromkeys(_named_in(line)))
            await slices.give_way()
        return await self.check_named(named, stack, tenant, pinned) if named else pinned

    async def check_named(self, named: Iterable[tuple[str, str]], stack: Stack, tenant: str, pinned: str) -> str:
        """The backend that keeps these objects, given with the fields that name them.

        Raises: UnknownObject for another tenant's, InvalidRequest where no backend of the route has all of them.
        """
        named = dict.fromkeys(named)
        if len(named) > _MAX_NAMED:
            raise InvalidRequest(f"the body names {len(named)} objects; at most {_MAX_NAMED} are looked up")
        for param, each in named:
            owner = await self._owners.find(each)
            if owner is None or owner.tenant != tenant:
                if stack.passes.objects_are_owned:
                    raise _unknown(each, param)
                continue
            if (pinned and owner.backend != pinned) or not _has(stack.policy, owner.backend):
                raise InvalidRequest(
                    f'{param}: "{each}" is kept by another backend than this call goes to', param=param
                )
            pinned = owner.backend
        return pinned

    async def note(self, call: Call, reply: Reply, stack: Stack) -> LateObjects | None:
        """Remember what the answer tells of as the caller's; what a stream only tells later is to be shared at its end.

        Raises: as reading the answer does.
        """
        backend = call.facts.backend
        if not 200 <= reply.status < 300 or backend is None:
            return None
        tells, is_made, with_parts = _may_tell(call, stack)
        if not tells and not with_parts:
            return None
        owner = Owner(call.tenant, call.facts.fallback_route or stack.policy.name, backend)
        said, is_whole = await _said(reply)
        told = objects_told(said, is_made=is_made) if tells else []
        if with_parts and is_whole:
            told += parts_told(said)
        await self._put(told, owner)
        is_made = is_made and not told
        if is_whole or reply.stream is None or not (is_made or with_parts):
            return None
        late = LateObjects(self._owners, owner)
        reply.stream.taps.append(ObjectIdTap(late.note, is_made=is_made, with_parts=with_parts))
        return late

    async def _put(self, told: list[str], owner: Owner) -> None:
        if len(told) <= 1:
            for each in told:
                await self._owners.put(each, owner)
            return
        async with asyncio.TaskGroup() as group:
            for each in dict.fromkeys(told):
                group.create_task(self._owners.put(each, owner))


class LateObjects:
    """What a stream told after its beginning: noted here at once, and shared with other processes before its end."""

    def __init__(self, owners: Owners, owner: Owner) -> None:
        self._owners = owners
        self._owner = owner
        self._new: list[str] = []

    def note(self, told: list[str]) -> None:
        """These are the caller's."""
        self._new += [each for each in told if self._owners.note_nowait(each, self._owner)]

    async def share(self) -> None:
        """Let other processes know of them."""
        new, self._new = self._new, []
        async with asyncio.TaskGroup() as group:
            for each in new:
                group.create_task(self._owners.share(each, self._owner))


def _may_tell(call: Call, stack: Stack) -> tuple[bool, bool, bool]:
    """Whether the answer tells of objects, whether one is made, and whether its parts can be named by themselves."""
    if call.operation is Operation.PASSTHROUGH:
        if call.method == "GET":
            return is_of_job(call.path), False, False
        is_told = call.method == "POST" and is_of_collection(call.path)
        return is_told, is_told, stack.passes.objects_are_owned and _may_make_container(call)
    body = call.body
    if body is None:
        return False, False, False
    if call.operation is Operation.CHAT:
        return bool(body.get("store")), bool(body.get("store")), bool(body.get("audio"))
    is_kept = body.get("store") is not False
    return is_kept, is_kept, is_kept and stack.passes.objects_are_owned


def _may_make_container(call: Call) -> bool:
    """Whether a call of the Messages API may have the provider run something, which it then tells the place of."""
    if call.body is None or call.method != "POST" or plainest(call.path) != "/messages":
        return False
    tools = call.body.get("tools")
    return call.body.get("container") is not None or (
        isinstance(tools, list) and any(isinstance(tool, dict) and "type" in tool for tool in tools)
    )


async def _said(reply: Reply) -> tuple[bytes, bool]:
    """A whole answer, or the first event of a stream; nothing where it is neither JSON nor events. And whether it is
    all that is to be read.
    """
    if reply.stream is None:
        return reply.body or b"", True
    content_type = reply.header(b"content-type") or b""
    if content_type.startswith(b"text/event-stream"):
        events = split_events(await reply.stream.peek())
        return next((data for event in events if (data := event_data(event)) is not None), b""), False
    return await reply.stream.peek(_MAX_ANSWER_BYTES) if b"json" in content_type else b"", True


async def _can_name_objects(raw: bytes) -> bool:
    """As `can_name_objects`, with others in between."""
    for begin in range(0, len(raw), _STEP_BYTES):
        if can_name_objects(raw[begin : begin + _STEP_BYTES + 64]):
            return True
        await asyncio.sleep(0)
    return False


def _named_in(line: bytes) -> Iterable[tuple[str, str]]:
    """What one request of a batch names. Raises: InvalidRequest where it cannot be told."""
    request = decode_json(line)
    return (
        objects_asked_for(body) if isinstance(request, dict) and isinstance(body := request.get("body"), dict) else ()
    )


def _has(route: RoutePolicy, backend: str) -> bool:
    return any(part.ref == backend for part in route.backends)


def _unknown(named: str, param: str | None = None) -> UnknownObject:
    return UnknownObject(f'there is no "{named[:200]}" here that was made with a key of this tenant', param=param)
