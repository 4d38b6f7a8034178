"""Value types of configuration files: durations and sizes with units, secrets by reference.

Used by every backend's own settings and by the policy schema. Parsing happens once, at load.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationInfo, WithJsonSchema

from backends.plain_file import read_plain_file

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_SECONDS = 3650 * 86400.0
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|kB|MB|GB)")
_BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "kB": 1000, "MB": 1000**2, "GB": 1000**3}
_MAX_BYTES = 1024**5
_MAX_SECRET_BYTES = 64 * 1024


class Config(BaseModel):
    """Base of every section: unknown keys are errors, values are frozen, secrets are hidden."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def parse_duration(value: object) -> float:
    """Seconds, of a text with a unit. Raises: ValueError."""
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError('a duration needs a number and a unit: "250ms", "2s", "5m", "1h", "7d"')
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > _MAX_SECONDS:
        raise ValueError("a duration is at most 3650d")
    return seconds


def _parse_size(value: object) -> int:
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError('a size needs a number and a unit: "512KiB", "64MiB", "1GiB"')
    size = float(match[1]) * _BYTES[match[2]]
    if size > _MAX_BYTES:
        raise ValueError("a size is at most 1048576GiB")
    return int(size)


def resolve_secret(value: object, info: ValidationInfo) -> object:
    """The secret that env:NAME or file:PATH stands for. Raises: ValueError, which does not repeat it."""
    if isinstance(value, SecretStr):
        return value
    environ: Mapping[str, str] = (info.context or {}).get("environ", {})
    if isinstance(value, str) and value.startswith("env:"):
        name = value.removeprefix("env:")
        secret = environ.get(name, "")
        if not secret:
            raise ValueError(f"the environment variable {name} is not set (or empty)")
        return secret
    if isinstance(value, str) and value.startswith("file:"):
        path = Path(value.removeprefix("file:"))
        try:
            content = read_plain_file(path, _MAX_SECRET_BYTES)
            secret = content.decode("utf-8").strip()
        except OSError as error:
            raise ValueError(f"the secret file {path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"the secret file {path} is not UTF-8 text") from error
        if len(content) > _MAX_SECRET_BYTES:
            raise ValueError(f"the secret file {path} is larger than {_MAX_SECRET_BYTES} bytes")
        if not secret:
            raise ValueError(f"the secret file {path} is empty")
        return secret
    # The value itself may be a secret pasted by mistake, so it is not repeated.
    raise ValueError("a secret is written as env:NAME or file:PATH, never in the file itself")


def _schema(kind: str, pattern: str, examples: list[str]) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "description": kind, "pattern": pattern, "examples": examples})


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    _schema("a duration with a unit", r"^\d+(\.\d+)?\s*(ms|s|m|h|d)$", ["250ms", "2s", "5m"]),
]
"""Seconds; written with a unit (ms, s, m, h, d)."""

ByteSize = Annotated[
    int,
    BeforeValidator(_parse_size),
    _schema("a size with a unit", r"^\d+(\.\d+)?\s*(B|KiB|MiB|GiB|kB|MB|GB)$", ["512KiB", "64MiB"]),
]
"""Bytes; written with a unit (B, KiB, MiB, GiB, kB, MB, GB)."""

Secret = Annotated[
    SecretStr,
    BeforeValidator(resolve_secret),
    _schema("a reference to a secret", r"^(env|file):.+$", ["env:OPENAI_API_KEY", "file:/run/secrets/key"]),
]
"""A secret, written as env:NAME or file:PATH; resolved at load from the validation context's `environ`."""


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
"""A configured name: it becomes a metric label, so it is short and plain."""


def format_duration(seconds: float) -> str:
    """A short way to write a duration that reads back as the same number: 0.25 -> "250ms", 120 -> "2m"."""
    for unit in ("d", "h", "m", "s"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{int(seconds / _SECONDS[unit])}{unit}"
    milliseconds = f"{round(seconds * 1000)}ms"
    # Fixed notation in full, for the few values that whole milliseconds do not give back exactly.
    return milliseconds if parse_duration(milliseconds) == seconds else f"{Decimal(repr(seconds)):f}s"
