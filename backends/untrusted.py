"""What upstreams say, read so that no lie gets further: which numbers are believed, and objects field by field.

A field that is not what it should be counts as absent; everything else of the same object is read all the same.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar, get_args

import msgspec

from backends.charges.usage import MAX_TIER_CHARS
from backends.json_errors import NOT_JSON

MAX_COUNT = 10**9
"""No answer has more tokens than that. Also small enough that sums of billions of answers stay exact as floats."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
"""A number of tokens that is believed: a JSON integer, neither negative nor absurd. Anything else is not counted."""

MAX_TEXT_CHARS = 256
"""Of an upstream's name for a model or a request, what is kept for logs."""

_T = TypeVar("_T")
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


ServiceTier = Annotated[str, msgspec.Meta(max_length=MAX_TIER_CHARS)]
"""An upstream's name for a service tier."""


def believed(count: int) -> int:
    """So much of a sum of counts as would be believed of one."""
    return min(count, MAX_COUNT)


class FieldReader(Generic[_T]):
    """Reads JSON objects into a `msgspec.Struct`, whose fields may be such structs themselves.

    An object that is as it should be costs what decoding it costs.
    """

    __slots__ = ("_decode", "_readers", "_required", "_shape")

    def __init__(self, shape: type[_T]) -> None:
        self._shape = shape
        self._decode = msgspec.json.Decoder(shape).decode
        fields = msgspec.structs.fields(shape)  # type: ignore[arg-type]  # a struct
        self._readers = {field.encode_name: (field.name, _reader(field.type)) for field in fields}
        self._required = {field.name for field in fields if field.required}

    def __call__(self, raw: bytes | msgspec.Raw) -> _T:
        """Raises: msgspec.DecodeError for what is no JSON object, or lacks a field that it must have."""
        try:
            return self._decode(raw)
        except msgspec.ValidationError as error:
            wrong: msgspec.DecodeError = error
        except UnicodeDecodeError as error:
            wrong = msgspec.DecodeError(str(error))
        except RecursionError:
            wrong = msgspec.DecodeError("nested too deeply")
        return self._read_fields(raw, wrong)

    def _read_fields(self, raw: bytes | msgspec.Raw, wrong: msgspec.DecodeError) -> _T:
        found: dict[str, Any] = {}
        try:
            fields = _decode_fields(raw)
        except (UnicodeDecodeError, RecursionError):
            raise wrong from None
        for encoded, (name, read) in self._readers.items():
            value = fields.get(encoded)
            if value is not None:
                try:
                    found[name] = read(value)
                except NOT_JSON:
                    # Absent, then.
                    continue
        if not self._required <= found.keys():
            raise wrong
        return self._shape(**found)


def _reader(kind: Any) -> Any:
    """What reads a value of that type, which may be optional."""
    for part in (kind, *get_args(kind)):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            return FieldReader(part)
    return msgspec.json.Decoder(kind).decode
