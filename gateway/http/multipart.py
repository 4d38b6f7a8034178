"""Finds in a form (multipart/form-data) what the gateway acts on: its model, and the objects that it names. Nothing
else is copied.

It is strict, because the upstream parses the form again with its own parser: a form that two parsers could read
differently is refused.
"""

from __future__ import annotations

import asyncio
import re

import msgspec

from backends.errors import InvalidRequest
from gateway.http.decode import decode_json, is_model_name
from policies.objects.names import is_name_of_object, objects_asked_for

_STEP_BYTES = 1024**2
"""Looked through at a time: less than half a millisecond."""
_MAX_PARTS = 1000
_MAX_HEAD_BYTES = 8192
_MAX_MODEL_BYTES = 1024
_MAX_ID_BYTES = 1024
_MAX_JSON_BYTES = 1024**2

_PARAMETERS = rb'(?:\s*;\s*[!#$&+.^_`|~0-9A-Za-z*-]+=(?:"[^"\\\r\n]*"|[^\s";,]+))*\s*'
_PARAMETER = re.compile(rb';\s*([!#$&+.^_`|~0-9A-Za-z*-]+)=("[^"]*"|[^\s";,]+)')
_FORM = re.compile(rb"\s*multipart/form-data(" + _PARAMETERS + rb")", re.IGNORECASE)
_PART = re.compile(rb"\s*form-data(" + _PARAMETERS + rb")", re.IGNORECASE)
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*)")
_NAME = re.compile(rb"[0-9A-Za-z_.\[\]-]{1,128}")
_PLAIN = re.compile(rb'(?:text/plain(?:\s*;\s*charset="?(?:utf-8|us-ascii)"?)?|)\s*', re.IGNORECASE)
_AS_IT_IS = frozenset({b"7bit", b"8bit", b"binary"})


class FormModel(msgspec.Struct, frozen=True):
    """The value of a form's field `model`, and the range of bytes where it stands."""

    name: str
    begin: int
    end: int


class MultipartForm(msgspec.Struct, frozen=True):
    """What was found in a form."""

    model: FormModel | None
    named: tuple[tuple[str, str], ...]
    """Fields that name an object, and its id."""
    lines: tuple[int, int] | None
    """For a file that is uploaded for a batch: the range of bytes with the batch's requests."""


def is_form(content_type: bytes) -> bool:
    """Whether a body of that type is a form."""
    return content_type.lstrip()[:19].lower() == b"multipart/form-data"


async def read_form(raw: bytes, content_type: bytes) -> MultipartForm:
    """What the form says.

    Raises: InvalidRequest for a form that cannot be read in one way only, with two models, or a model that is no name.
    """
    delimiter = b"--" + _boundary(content_type)
    found: FormModel | None = None
    named: list[tuple[str, str]] = []
    file: tuple[int, int] | None = None
    is_batch = False
    num_parts = 0
    at = await _find(raw, delimiter, 0)
    if at not in (0, 2) or raw[:at] not in (b"", b"\r\n"):
        raise _refused("it does not begin with its boundary")
    while True:
        after = at + len(delimiter)
        if raw[after : after + 2] == b"--":
            if raw[after + 2 :] not in (b"", b"\r\n"):
                raise _refused("something stands behind its end")
            return MultipartForm(found, tuple(named), file if is_batch else None)
        if raw[after : after + 2] != b"\r\n":
            raise _refused("its boundary stands within a line")
        next_at = await _find(raw, delimiter, after)
        if next_at < 0 or raw[next_at - 2 : next_at] != b"\r\n":
            raise _refused("a part has no end")
        head_end = raw.find(b"\r\n\r\n", after, min(next_at, after + _MAX_HEAD_BYTES))
        if head_end < 0 or head_end + 4 > next_at - 2:
            raise _refused("a part has no head, or no end")
        name, is_field = _read_head(raw[after + 2 : head_end])
        num_parts += 1
        if num_parts > _MAX_PARTS:
            raise _refused(f"it has more than {_MAX_PARTS} parts")
        if name.lower().partition(b"[")[0] == b"model":
            if found is not None or name != b"model" or not is_field:
                raise InvalidRequest("the form's model is in doubt: give one text field `model`", param="model")
            found = _model(raw, head_end + 4, next_at - 2)
        elif name == b"file":
            file = head_end + 4, next_at - 2
        elif name == b"purpose":
            is_batch = is_batch or raw[head_end + 4 : next_at - 2].strip() == b"batch"
        else:
            named += _objects(name, raw, head_end + 4, next_at - 2)
        at = next_at


def _boundary(content_type: bytes) -> bytes:
    form = _FORM.fullmatch(content_type)
    given = [value for name, value in _PARAMETER.findall(form[1]) if name.lower() == b"boundary"] if form else []
    boundary = given[0].strip(b'"') if len(given) == 1 else b""
    if not _BOUNDARY.fullmatch(boundary):
        raise _refused("its content type has no boundary that is one")
    return boundary


async def _find(raw: bytes, delimiter: bytes, begin: int) -> int:
    """The position of the next delimiter, or -1. Lets other tasks run while it searches a large form."""
    while begin < len(raw):
        end = begin + _STEP_BYTES
        at = raw.find(delimiter, begin, end + len(delimiter))
        if at >= 0:
            return at
        begin = end
        if begin < len(raw):
            await asyncio.sleep(0)
    return -1


def _read_head(head: bytes) -> tuple[bytes, bool]:
    """A part's name, and whether it is a plain text field that everybody reads alike."""
    fields: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        field = _FIELD.fullmatch(line)
        if field is None or field[1].lower() in fields:
            raise _refused("a part's head is malformed")
        fields[field[1].lower()] = field[2]
    disposition = _PART.fullmatch(fields.get(b"content-disposition", b""))
    parameters = _PARAMETER.findall(disposition[1]) if disposition is not None else []
    given = [name.lower() for name, _ in parameters]
    names = [value.strip(b'"') for name, value in parameters if name.lower() == b"name"]
    if len(names) != 1 or len(set(given)) != len(given) or b"name*" in given or not _NAME.fullmatch(names[0]):
        raise _refused("a part has no plain name")
    if fields.get(b"content-transfer-encoding", b"binary").strip().lower() not in _AS_IT_IS:
        raise _refused("a part is encoded")
    if names[0] == b"_charset_":
        raise _refused("it changes its charset")
    is_file = b"filename" in given or b"filename*" in given
    return names[0], not is_file and _PLAIN.fullmatch(fields.get(b"content-type", b"")) is not None


def _model(raw: bytes, begin: int, end: int) -> FormModel:
    try:
        name = raw[begin : min(end, begin + _MAX_MODEL_BYTES + 1)].decode("utf-8")
    except UnicodeDecodeError:
        name = ""
    if end - begin > _MAX_MODEL_BYTES or not is_model_name(name):
        raise InvalidRequest("model must be a name of 1 to 256 printable characters", param="model")
    return FormModel(name, begin, end)


def _objects(name: bytes, raw: bytes, begin: int, end: int) -> list[tuple[str, str]]:
    """Those that one field names: by its own name, or in JSON that stands in it."""
    field = name.decode("ascii")
    if is_name_of_object(field):
        return [(field, raw[begin : min(end, begin + _MAX_ID_BYTES)].decode("utf-8", "replace").strip())]
    if end - begin > _MAX_JSON_BYTES or raw[begin : begin + 64].lstrip()[:1] not in (b"{", b"["):
        return []
    try:
        value = decode_json(raw[begin:end])
    except InvalidRequest:
        return []
    return list(objects_asked_for({field: value}))


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"the form cannot be read: {why}")
