"""Which settings are durations, sizes or secrets, and how they are written in messages, listings and the reference."""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from backends.config import ByteSize, Duration, format_duration

Unit = Literal["duration", "size", "secret"]

_FACTORS = {"GiB": 1024**3, "MiB": 1024**2, "KiB": 1024}
_PARSERS: dict[object, Unit] = {get_args(Duration)[1]: "duration", get_args(ByteSize)[1]: "size"}


def format_size(num_bytes: int) -> str:
    """The shortest exact way to write a size: 1048576 -> "1MiB"."""
    for unit, factor in _FACTORS.items():
        if num_bytes and num_bytes % factor == 0:
            return f"{num_bytes // factor}{unit}"
    return f"{num_bytes}B"


def with_unit(number: float, unit: Unit | None) -> object:
    """A number as a policy file writes it: 2.0 -> "2s" for a duration, itself where there is no unit."""
    if unit == "duration":
        return format_duration(number) if number else "0s"
    return format_size(int(number)) if unit == "size" else number


def unit_of(annotation: Any, metadata: Sequence[object] = ()) -> Unit | None:
    """The unit of a field declared so; `Duration | None` is a duration too."""
    for part in metadata:
        if part in _PARSERS:
            return _PARSERS[part]
    annotation, inner = without_wrapping(annotation)
    return unit_of(annotation, inner) if inner else ("secret" if annotation is SecretStr else None)


def without_wrapping(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without `| None` and without `Annotated`, and the metadata found on the way."""
    metadata: tuple[Any, ...] = ()
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *inner = get_args(annotation)
            metadata += tuple(inner)
            continue
        present = [part for part in get_args(annotation) if part is not type(None)]
        if get_origin(annotation) not in (Union, UnionType) or len(present) != 1:
            return annotation, metadata
        annotation = present[0]


def variants(annotation: Any, metadata: Sequence[object] = ()) -> dict[str, type[BaseModel]]:
    """The models of a section whose kind one of its keys says, by the values of that key; empty for other types."""
    union, inner = without_wrapping(annotation)
    for part in (*metadata, *inner):
        if isinstance(part, FieldInfo) and isinstance(key := part.discriminator, str):
            return {kind: model for model in get_args(union) for kind in get_args(model.model_fields[key].annotation)}
    return {}
