"""Which stored answer is that of which object at an upstream, so that one which is deleted there is not given here.

A pointer is stored beside such an answer: an entry whose body is the answer's key, under a key made of the object's id.
What was deleted has an empty entry under another such key, for calls that build on it: they are not answered any more.
"""

from __future__ import annotations

from itertools import islice

from backends.operations import Operation
from backends.protocol import Call
from backends.sse import event_data, split_events
from policies.cache.entry import AnswerForm, Entry
from policies.cache.key import digest_of
from policies.cache.store import Store
from policies.objects.found_in_answers import objects_told
from policies.objects.names import object_in

_GONE = 404
_MAX_EVENTS = 10
"""Of a stream, in which its object is told of at the beginning."""


def is_kept(call: Call) -> bool:
    """Whether its upstream keeps what later calls can name: responses unless their call says otherwise, chats if it
    says so, and what is said aloud.
    """
    body = call.body or {}
    if call.operation is Operation.RESPONSES:
        return body.get("store") is not False
    return call.operation is Operation.CHAT and bool(body.get("store") or body.get("audio"))


def note_object(store: Store, call: Call, key: bytes, entry: Entry, ttl_s: float) -> None:
    """Remember under which key the answer is, where the upstream keeps it as an object that can be deleted."""
    if (named := _object_of(call, entry)) is not None:
        pointer = Entry(AnswerForm.JSON, key, b"", entry.created)
        store.put(_pointer_key(call.facts.backend, named), pointer, ttl_s)


async def builds_on_deleted(store: Store, call: Call) -> bool:
    """Whether the call goes on from a response that was deleted, so that its upstream has to say what becomes of it."""
    named = (call.body or {}).get("previous_response_id") if call.operation is Operation.RESPONSES else None
    return isinstance(named, str) and await store.get(_grave_key(named)) is not None


async def forget_deleted(store: Store, call: Call, status: int, ttl_s: float) -> None:
    """Where a call that was answered with that status has deleted an object, or found it gone, delete its answer, and
    remember for `ttl_s` that it is gone.
    """
    if call.method != "DELETE" or not (200 <= status < 300 or status == _GONE):
        return
    if (named := object_in(call.path)) is None:
        return
    store.put(_grave_key(named), Entry(AnswerForm.JSON, b"", b"", store.wall()), ttl_s)
    pointer_key = _pointer_key(call.facts.backend, named)
    pointer = await store.get(pointer_key)
    if pointer is not None:
        store.delete(pointer.body)
        store.delete(pointer_key)


def _object_of(call: Call, entry: Entry) -> str | None:
    """Its id, as the answer tells it."""
    if not is_kept(call):
        return None
    if entry.form is AnswerForm.JSON:
        told = objects_told(entry.body, is_made=True)
        return told[0] if told else None
    for event in islice(split_events(entry.body), _MAX_EVENTS):
        if told := objects_told(event_data(event) or b"", is_made=True):
            return told[0]
    return None


def _pointer_key(backend: str | None, named: str) -> bytes:
    """Two upstreams may give the same id. No key of an answer begins with a text."""
    return digest_of(("object", backend, named))


def _grave_key(named: str) -> bytes:
    """Whichever upstream it was at: where another has one of the same id, a call that builds on that is asked anew."""
    return digest_of(("deleted", named))
