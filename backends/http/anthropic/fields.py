"""Fields of a chat completion call, checked for their type and named in the error where they are of another."""

from __future__ import annotations

from typing import TypeVar

from backends.errors import InvalidRequest

_T = TypeVar("_T")
_TYPE_NAMES = {str: "a string", list: "an array", dict: "an object", bool: "a boolean", int: "an integer"}


def typed(value: object, kind: type[_T], where: str) -> _T:
    """The value, which has to be of that type; `where` is its place in the call. Raises: InvalidRequest."""
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise InvalidRequest(f"{where} must be {_TYPE_NAMES[kind]}, not {shown(value)}", param=where)


def shown(value: object) -> str:
    """A value for a message: scalars as JSON has them, shortened; of containers only the kind."""
    if isinstance(value, dict | list):
        return _TYPE_NAMES[type(value)]
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
