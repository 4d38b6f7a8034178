"""Typed reads from a model folder's JSON files. Every complaint is a ModelError that names the file and the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backends.engine.errors import ModelError

MODEL_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
_MOST = 2**24
"""Of layers, tokens, positions and whatever else models have a number of. Some are room that is made at once."""


class JsonFields:
    """The fields of one JSON object; null counts as absent.

    `where` is what messages call the object: the file's path, with the way to a nested object behind it.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    @property
    def values(self) -> Mapping[str, Any]:
        """All fields as they stand."""
        return self._values

    @classmethod
    def from_file(cls, path: Path) -> JsonFields:
        """Raises ModelError where the file is missing, unreadable or no JSON object."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as exc:
            raise ModelError(f"{path} does not exist: is {path.parent} a Hugging Face model folder?") from exc
        except OSError as exc:
            raise ModelError(f"{path} cannot be read: {exc.strerror}") from exc
        except (ValueError, RecursionError) as exc:
            raise ModelError(f"{path} is not JSON ({exc}): copy the file again") from exc
        if not isinstance(values, dict):
            raise ModelError(f"{path} holds a {type(values).__name__}, expected a JSON object")
        return cls(values, str(path))

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def raw(self, name: str) -> Any:
        """The value as it stands, None where absent."""
        return self._values.get(name)

    def whole(self, name: str, default: int | None = None, *, minimum: int = 1) -> int:
        """An integer of at least `minimum`, and no more than any model has; required where there is no default."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.invalid(name, f"an integer of at least {minimum}")
        if value > _MOST:
            raise self.invalid(name, f"an integer of at most {_MOST}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above zero; required where there is no default, which may be anything."""
        if default is not None and name not in self:
            return default
        value = self._present(name, None)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < float("inf"):
            raise self.invalid(name, "a finite number above zero")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._present(name, default)
        if not isinstance(value, bool):
            raise self.invalid(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string; required where there is no default."""
        value = self._present(name, default)
        if not isinstance(value, str):
            raise self.invalid(name, "a string")
        return value

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers, required."""
        value = self._present(name, None)
        if not isinstance(value, list) or not all(isinstance(entry, int | float) for entry in value):
            raise self.invalid(name, "a list of numbers")
        return tuple(float(entry) for entry in value)

    def texts(self) -> frozenset[str]:
        """The values of an object that maps names to strings, each once."""
        for name, value in self._values.items():
            if not isinstance(value, str):
                raise self.invalid(name, "a string")
        return frozenset(self._values.values())

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One integer, a list of them, or nothing."""
        value = self._values.get(name)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0 for entry in ids):
            raise self.invalid(name, "a token id or a list of token ids")
        return tuple(ids)

    def nested(self, name: str) -> JsonFields | None:
        """The object under `name`, None where absent."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.invalid(name, "a JSON object")
        return JsonFields(value, f"{self.where}: {name}")

    def invalid(self, name: str, expected: str) -> ModelError:
        """The error to raise for a field whose value is not as `expected`."""
        return ModelError(f"{self.where}: {name!r} is {self._values.get(name)!r}, expected {expected}")

    def _present(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        value = default if value is None else value
        if value is None:
            raise ModelError(f"{self.where}: {name!r} is missing and has no default; add it")
        return value
