"""Objects that upstreams keep for who made them (responses, files, batches, ...): how paths and bodies name them.

Pure. Whose they are is remembered by `gateway/owners.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from backends.errors import InvalidRequest

COLLECTIONS = (
    *("/responses", "/conversations", "/chat/completions", "/files", "/uploads", "/batches", "/vector_stores"),
    *("/fine_tuning/jobs", "/assistants", "/threads", "/videos", "/containers"),
)
"""Paths under which an upstream keeps objects: POST makes one, `/ID` and what is below it is about one."""

_NO_IDS = frozenset({"/responses/compact", "/responses/input_tokens", "/threads/runs"})
"""Paths below a collection that name no object."""

_JOBS = frozenset({"/batches", "/fine_tuning/jobs"})
_OF_TOP = frozenset({"previous_response_id", "conversation", "thread_id", "assistant_id"})
_OF_ANY_DEPTH = frozenset(
    {
        *("file_id", "file_ids", "input_file_id", "training_file", "validation_file"),
        *("vector_store_id", "vector_store_ids", "container", "container_id"),
    }
)
_NAMES = tuple(f'"{name}"'.encode() for name in sorted(_OF_TOP | _OF_ANY_DEPTH))
_MAX_PARTS = 50_000
"""Objects and lists of a body that are looked through: some 50 ms."""
_NOT_OURS = frozenset({"metadata", "parameters", "schema", "input_schema"})
"""Fields of the caller's own making, in which a name means what the caller wants."""

_CAME_OF = ("output_file_id", "error_file_id")
_MADE = ("id", "thread_id")


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
    """Whether JSON may have a field that names an object: it has such a name, or a character that is escaped."""
    return b"\\u" in raw or any(name in raw for name in _NAMES)


def objects_asked_for(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each field of a body that names an object, and the object's id. Raises: InvalidRequest for too large a body."""
    for name in _OF_TOP & body.keys():
        value = body[name]
        yield from _ids(name, value.get("id") if isinstance(value, dict) else value)
    waiting: list[Any] = [body]
    num_parts = 0
    while waiting:
        part = waiting.pop()
        num_parts += 1
        if isinstance(part, list):
            waiting += [value for value in part if isinstance(value, dict | list)]
        else:
            for name in _OF_ANY_DEPTH & part.keys():
                yield from _ids(name, part[name])
            waiting += [
                value for name, value in part.items() if isinstance(value, dict | list) and name not in _NOT_OURS
            ]
        if num_parts + len(waiting) > _MAX_PARTS:
            raise InvalidRequest(f"the body has more than {_MAX_PARTS} objects and lists, too many to look through")


def may_name_objects(chat: Mapping[str, Any]) -> bool:
    """Whether a chat's body may: it does so in parts of messages, and most messages are plain text."""
    has_parts = any(type(message.get("content")) is list for message in chat["messages"])
    return has_parts or not _OF_ANY_DEPTH.isdisjoint(chat)


def objects_told(answer: Mapping[str, Any], *, is_made: bool) -> list[str]:
    """Ids of objects that an answer tells are the caller's: what came of its object, and where something `is_made`,
    that.
    """
    if answer.get("object") == "list":
        return []
    found = [answer.get(name) for name in _CAME_OF]
    results = answer.get("result_files")
    found += results if isinstance(results, list) else []
    if is_made:
        found += [answer.get(name) for name in _MADE]
        found += [part.get("id") for name in ("response", "file") if isinstance(part := answer.get(name), dict)]
    return [each for each in found if isinstance(each, str) and each]


def _collection_of(path: str) -> str | None:
    lowered = path.lower()
    while lowered.startswith("/v1/"):
        lowered = lowered[3:]
    for collection in COLLECTIONS:
        if lowered.startswith(collection) and lowered[len(collection) : len(collection) + 1] in ("", "/"):
            return collection
    return None


def _ids(name: str, value: object) -> Iterator[tuple[str, str]]:
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, str) and each:
            yield name, each
