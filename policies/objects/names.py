"""Objects that upstreams keep for who made them (responses, files, batches, ...): how paths and bodies name them.

No input or output. `found_in_answers.py` finds the ids in answers; `gateway/api/owners.py` remembers the owners.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from backends.errors import InvalidRequest

COLLECTIONS = (
    *("/responses", "/conversations", "/chat/completions", "/files", "/uploads", "/batches", "/vector_stores"),
    *("/fine_tuning/jobs", "/assistants", "/threads", "/videos", "/containers"),
)
"""Paths under which an upstream keeps objects: POST makes one, `/ID` and what is below it is about one."""

_NO_IDS = frozenset({"/responses/compact", "/responses/input_tokens", "/threads/runs", "/chat/completions/batch"})
"""Paths below a collection that name no object."""

_JOBS = frozenset({"/batches", "/fine_tuning/jobs"})
_OF_TOP = frozenset({"previous_response_id", "conversation", "thread_id", "assistant_id"})
_OF_ANY_DEPTH = frozenset(
    {
        *("file_id", "file_ids", "input_file_id", "training_file", "validation_file"),
        *("vector_store_id", "vector_store_ids", "container", "container_id", "comparison_response_id"),
    }
)
_BROUGHT_BY: dict[str, tuple[str, ...]] = {
    "item_reference": (),
    "reasoning": ("encrypted_content", "content"),
    "image_generation_call": ("result",),
}
"""Kinds of items that an upstream looks up by their `id`, unless one of these fields of the item has the content."""
_ITEMS = ("input", "items")
_NAMES = tuple(f'"{name}"'.encode() for name in sorted(_OF_TOP | _OF_ANY_DEPTH | _BROUGHT_BY.keys() | {"audio"}))
_MAX_PARTS = 50_000
"""Objects and lists of a body that are looked through: some 50 ms."""
_NOT_OURS = frozenset({"metadata", "parameters", "schema", "input_schema"})
"""Fields of the caller's own making, in which a name means what the caller wants."""
_PARTS_OF_A_FIELD = re.compile(r"[\[\].]+")


def is_of_collection(path: str) -> bool:
    """Whether a path is a collection, or below one."""
    return _collection_of(path) is not None


def is_of_job(path: str) -> bool:
    """Whether a path is that of one batch or fine-tuning job itself: its answer tells what came of it."""
    collection = _collection_of(path)
    if collection not in _JOBS:
        return False
    named = path.lower().partition(f"{collection}/")[2]
    return named != "" and "/" not in named


def object_in(path: str) -> str | None:
    """The id of the object that a path is about; None where it is about none."""
    collection = _collection_of(path)
    if collection is None:
        return None
    named = path[path.lower().index(collection) + len(collection) + 1 :].partition("/")[0]
    return named if named and f"{collection}/{named.lower()}" not in _NO_IDS else None


def can_name_objects(raw: bytes) -> bool:
    """Whether JSON may name an object: it has such a name, or a character that is escaped.

    Ten nanoseconds a byte: for bodies in which much would have to be looked through.
    """
    return b"\\u" in raw or any(name in raw for name in _NAMES)


def is_name_of_object(field: str) -> bool:
    """Whether a form's field of that name (`file_id`, `file_ids[]`, `input[0][file_id]`) says an object's id."""
    parts = [part for part in _PARTS_OF_A_FIELD.split(field) if part and not part.isdecimal()]
    if not parts or not _NOT_OURS.isdisjoint(parts[:-1]):
        return False
    return parts[-1] in _OF_ANY_DEPTH or parts[-1] in _OF_TOP or (parts[-1] == "id" and len(parts) > 1)


def objects_asked_for(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each field of a body that names an object, and the object's id. Raises: InvalidRequest for too large a body."""
    for name in _OF_TOP & body.keys():
        yield from _ids(name, body[name])
    for name in _ITEMS:
        items = body.get(name)
        for item in items if isinstance(items, list) else ():
            # A reference need not say that it is one; a message says whose it is.
            if isinstance(item, dict) and item.get("type") is None and "role" not in item:
                yield from _ids("id", item.get("id"))
    waiting: list[Any] = [body]
    num_parts = 0
    while waiting:
        part = waiting.pop()
        num_parts += 1
        if isinstance(part, list):
            waiting += [value for value in part if isinstance(value, dict | list)]
        else:
            if not _OF_ANY_DEPTH.isdisjoint(part):
                for name in _OF_ANY_DEPTH & part.keys():
                    yield from _ids(name, part[name])
            yield from _looked_up(part)
            waiting += [
                value for name, value in part.items() if isinstance(value, dict | list) and name not in _NOT_OURS
            ]
        if num_parts + len(waiting) > _MAX_PARTS:
            raise InvalidRequest(f"the body has more than {_MAX_PARTS} objects and lists, too many to look through")


def may_name_objects(chat: Mapping[str, Any]) -> bool:
    """Whether a chat's body may: it does so in parts of messages and as sound, and most messages are plain text."""
    has_parts = any(type(message.get("content")) is list or "audio" in message for message in chat["messages"])
    return has_parts or not _OF_ANY_DEPTH.isdisjoint(chat)


def _collection_of(path: str) -> str | None:
    lowered = path.lower()
    while lowered.startswith("/v1/"):
        lowered = lowered[3:]
    for collection in COLLECTIONS:
        if lowered.startswith(collection) and lowered[len(collection) : len(collection) + 1] in ("", "/"):
            return collection
    return None


def _looked_up(part: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The ids that an item refers to without bringing their content, and that of the sound of an earlier answer."""
    kind = part.get("type")
    brought_by = _BROUGHT_BY.get(kind) if isinstance(kind, str) else None
    if brought_by is not None and not any(part.get(name) for name in brought_by):
        yield from _ids("id", part.get("id"))
    audio = part.get("audio")
    if isinstance(audio, dict):
        yield from _ids("audio", audio.get("id"))


def _ids(name: str, value: object) -> Iterator[tuple[str, str]]:
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            # A container may be an object that has its id.
            each = each.get("id")
        if isinstance(each, str) and each:
            yield name, each
