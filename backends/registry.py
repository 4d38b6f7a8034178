"""Which backend types exist: entry points of the group `slipstream.backends`, built-ins by the same road.

An entry point names a `Kind`. A package of yours adds one in its own pyproject.toml:

    [project.entry-points."slipstream.backends"]
    mine = "my_package.backend:KIND"
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from backends.clock import Clock
from backends.config import Config
from backends.errors import ConfigurationError
from backends.protocol import Backend

GROUP = "slipstream.backends"


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of backend: the settings it takes and how one is built from them."""

    config: type[Config]
    build: Callable[[str, Any, Clock], Backend]
    """Given the configured name, the parsed settings (an instance of `config`) and the clock."""


class Registry:
    """The types that can be named in `backends.*.type`. Loads an entry point when it is first asked for."""

    def __init__(self, points: dict[str, EntryPoint] | None = None) -> None:
        if points is None:
            points = {point.name: point for point in entry_points(group=GROUP)}
        self._points = points

    def names(self) -> list[str]:
        """Every known type, sorted."""
        return sorted(self._points)

    def kind(self, name: str) -> Kind:
        """The type of that name.

        Raises: ConfigurationError, listing the known ones.
        """
        point = self._points.get(name)
        if point is None:
            near = difflib.get_close_matches(name.lower(), self._points, n=1)
            hint = f' Did you mean "{near[0]}"?' if near else ""
            raise ConfigurationError(f'unknown backend type "{name}".{hint} Known types: {", ".join(self.names())}')
        try:
            kind = point.load()
        except Exception as error:  # a named border: the code may be anybody's
            raise ConfigurationError(f'the backend type "{name}" cannot be loaded: {_said(error)}') from error
        if not isinstance(kind, Kind):
            raise ConfigurationError(f'the entry point {point.value} of backend type "{name}" is not a Kind')
        return kind


def broken_backend(name: str, kind: str, what: str, error: Exception) -> ConfigurationError:
    """What to say of a backend whose code fails where it should not: which one, at `what`, and where in the code."""
    return ConfigurationError(f'backends.{name}: type "{kind}" cannot be {what}: {_said(error)}')


def _said(error: Exception) -> str:
    if isinstance(error, ImportError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
