"""Objects that arrive in parts, put together without inventing or losing anything; for `replay_chat` and its twin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class CannotConvert(Exception):
    """This answer has no faithful counterpart in the other form. Never leaves the replay."""


def is_empty(value: object) -> bool:
    """Whether a field says nothing: null, an empty text, list or object. Zero and false say something."""
    return value is None or (isinstance(value, str | list | dict) and not value)


def object_of(value: object) -> dict[str, Any]:
    """The value, which has to be an object.

    Raises: CannotConvert.
    """
    if not isinstance(value, dict):
        raise CannotConvert
    return value


def list_of(value: object) -> list[Any]:
    """The value, which has to be a list.

    Raises: CannotConvert.
    """
    if not isinstance(value, list):
        raise CannotConvert
    return value


class MergedObject:
    """An object that comes in parts: texts and lists are joined, everything else is said once.

    `texts` and `lists` name the fields that are deltas; null adds nothing to them.
    """

    __slots__ = ("_fields", "_lists", "_texts")

    def __init__(self, texts: frozenset[str] = frozenset(), lists: frozenset[str] = frozenset()) -> None:
        self._texts = texts
        self._lists = lists
        self._fields: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._fields)

    def add(self, part: Mapping[str, Any]) -> None:
        """Take in every field of a part.

        Raises: CannotConvert where a part contradicts an earlier one.
        """
        for name, value in part.items():
            self.put(name, value)

    def put(self, name: str, value: Any) -> None:
        """Take in one field.

        Raises: CannotConvert where it contradicts an earlier part.
        """
        known = self._fields.get(name)
        if name in self._texts or name in self._lists:
            if value is None:
                self._fields.setdefault(name, None)
            elif not isinstance(value, str if name in self._texts else list):
                raise CannotConvert
            elif known is None:
                self._fields[name] = [value]
            else:
                known.append(value)
        elif is_empty(known):
            if value is not None or name not in self._fields:
                self._fields[name] = value
        elif not is_empty(value) and value != known:
            raise CannotConvert

    def whole(self) -> dict[str, Any]:
        """The object, its fields in the order in which they first came."""
        return {name: self._joined(name, value) for name, value in self._fields.items()}

    def _joined(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        if name in self._texts:
            return "".join(value)
        if name in self._lists:
            return [item for part in value for item in part]
        return value
