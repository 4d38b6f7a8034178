"""The model of a form: found where it stands, or the form refused; never read otherwise than other readers do."""

from __future__ import annotations

import asyncio
from email import message_from_bytes
from email.policy import HTTP

import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from backends.errors import InvalidRequest
from gateway.http.multipart import FormModel, read_form

TYPE = b"multipart/form-data; boundary=XyZ"
MODEL = b'--XyZ\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n'
FILE = (
    b'--XyZ\r\nContent-Disposition: form-data; name="file"; filename="a b.wav"\r\n'
    b"Content-Type: audio/wav\r\n\r\n\x00\xff--Xy\r\n--\r\n\r\n"
)
END = b"--XyZ--\r\n"


def _read(raw: bytes, content_type: bytes = TYPE) -> FormModel | None:
    return asyncio.run(read_form(raw, content_type)).model


@pytest.mark.parametrize(
    "raw",
    [
        MODEL + FILE + END,
        FILE + MODEL + END,
        FILE + MODEL + b"--XyZ--",
        b"\r\n" + FILE + MODEL + END,
        FILE + MODEL.replace(b'"model"', b"model") + END,
        FILE + MODEL.replace(b"\r\n\r\n", b"\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n") + END,
        FILE + MODEL.replace(b"\r\n\r\n", b"\r\ncontent-transfer-encoding: 8bit\r\nContent-Length: 9\r\n\r\n") + END,
        b'--XyZ\r\ncontent-disposition: form-data; name="timestamps[]"\r\n\r\nword\r\n' + MODEL + END,
    ],
    ids=range(8),
)
def test_model_is_found_where_it_stands(raw: bytes) -> None:
    """Before or behind the file, as different clients write it."""
    found = _read(raw)

    assert found is not None
    assert (found.name, raw[found.begin : found.end]) == ("whisper-1", b"whisper-1")


def test_form_without_a_model_names_none() -> None:
    """An uploaded file, for instance."""
    assert _read(FILE + END) is None
    assert _read(END) is None


def _head(line: bytes) -> bytes:
    return FILE + b"--XyZ\r\n" + line + b"\r\n\r\nother\r\n" + END


DOUBTFUL = {
    "two models": MODEL + FILE + MODEL + END,
    "in capitals": MODEL + MODEL.replace(b'"model"', b'"MODEL"') + END,
    "as a list": MODEL.replace(b'"model"', b'"model[]"') + END,
    "as a file": MODEL.replace(b'"model"', b'"model"; filename="x"') + END,
    "other charset": MODEL.replace(b"\r\n\r\n", b"\r\ncontent-type: text/plain; charset=utf-16\r\n\r\n") + END,
    "as json": MODEL.replace(b"\r\n\r\n", b"\r\ncontent-type: application/json\r\n\r\n") + END,
    "base64": MODEL.replace(b"\r\n\r\n", b"\r\ncontent-transfer-encoding: base64\r\n\r\n") + END,
    "charset field": b'--XyZ\r\ncontent-disposition: form-data; name="_charset_"\r\n\r\nutf-16\r\n' + MODEL + END,
    "two names": _head(b'content-disposition: form-data; name="x"; name="model"'),
    "extended name": _head(b"content-disposition: form-data; name=\"x\"; name*=utf-8''model"),
    "encoded name": _head(b'content-disposition: form-data; name="mod%65l"'),
    "escaped quote": _head(b'content-disposition: form-data; filename="a\\"; name=\\"model"; name="x"'),
    "two dispositions": _head(
        b'content-disposition: form-data; name="x"\r\ncontent-disposition: form-data; name="model"'
    ),
    "folded": _head(b'content-disposition: form-data;\r\n name="model"'),
    "bare feed in a head": _head(
        b'content-disposition: form-data; name="x"\ncontent-disposition: form-data; name="model"'
    ),
    "no name": _head(b"content-disposition: form-data"),
    "attachment": _head(b'content-disposition: attachment; name="model"'),
    "no disposition": _head(b"x: y"),
    "no head": FILE + b"--XyZ\r\n\r\nother\r\n" + END,
    "preamble": b"x\r\n" + MODEL + END,
    "epilogue": MODEL + END + MODEL,
    "end first": END + MODEL + END,
    "bare feeds": (MODEL + END).replace(b"\r\n", b"\n"),
    "a feed before the boundary": MODEL + FILE[:-2] + b"\n" + MODEL.replace(b"whisper-1", b"other") + END,
    "boundary within a line": MODEL + FILE.replace(b"--Xy\r\n", b"--XyZ y\r\n") + END,
    "longer boundary": MODEL + FILE.replace(b"--Xy\r\n", b"\r\n--XyZZ\r\n") + END,
    "padded boundary": MODEL.replace(b"--XyZ\r\n", b"--XyZ \r\n") + END,
    "no end": MODEL + FILE,
    "cut head": MODEL + b'--XyZ\r\ncontent-disposition: form-data; name="model"',
    "nothing": b"",
    "long head": FILE.replace(b"audio/wav", b"audio/wav; " + b"x" * 9000) + END,
    "many parts": FILE * 1001 + END,
    "long model": MODEL.replace(b"whisper-1", b"w" * 257) + END,
    "huge model": MODEL.replace(b"whisper-1", b"w" * 5_000_000) + END,
    "no model in it": MODEL.replace(b"whisper-1", b"") + END,
    "lines in it": MODEL.replace(b"whisper-1", b"a\r\nb") + END,
    "no text": MODEL.replace(b"whisper-1", b"\xff") + END,
}


@pytest.mark.parametrize("raw", DOUBTFUL.values(), ids=DOUBTFUL)
def test_form_in_doubt_is_refused(raw: bytes) -> None:
    """What one reader takes for this and another for that is nobody's."""
    with pytest.raises(InvalidRequest):
        _read(raw)


@pytest.mark.parametrize(
    "content_type",
    [
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b"multipart/form-data; boundary=XyZ; boundary=other",
        b"multipart/form-data; boundary=XyZ, multipart/form-data; boundary=other",
        b"multipart/form-data; boundary*=utf-8''XyZ",
        b'multipart/form-data; boundary="XyZ',
        b"multipart/form-data; boundary=" + b"x" * 71,
        b"multipart/form-data; boundary=X\xffZ",
    ],
)
def test_boundary_in_doubt_is_refused(content_type: bytes) -> None:
    """Two, none, or one that is none."""
    with pytest.raises(InvalidRequest):
        _read(MODEL + END, content_type)


@pytest.mark.parametrize("more", [b'; charset="utf-8"', b"", b' ; boundary="XyZ"'])
def test_content_type_is_read_as_clients_write_it(more: bytes) -> None:
    """Quoted, in capitals, with a charset."""
    content_type = b"Multipart/Form-Data" + (more if b"XyZ" in more else more + b"; Boundary=XyZ")

    assert _read(MODEL + END, content_type) is not None


async def test_large_form_leaves_others_their_turn() -> None:
    """Fifty megabytes before the model; the loop goes on meanwhile."""
    raw = FILE[:-2] + bytes(50_000_000) + b"\r\n" + MODEL + END
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    found = (await read_form(raw, TYPE)).model
    counting.cancel()

    assert found is not None
    assert turns >= 45


_PIECES = st.sampled_from(
    [
        *(MODEL, FILE, END, b"--XyZ", b"--XyZ\r\n", b"\r\n", b"\n", b"--", b"\r", b"model", b"other"),
        *(b'Content-Disposition: form-data; name="model"', b'content-disposition: form-data; name="x"', b": ", b'"'),
        *(b'; name="model"', b'; filename="', b"\r\n\r\n", b" ", b"\\", b"content-type: text/plain", b"\x00"),
    ]
)


@given(pieces=st.lists(_PIECES, max_size=12), at=st.integers(0, 200), dropped=st.integers(0, 5), junk=_PIECES)
def test_what_is_taken_is_what_other_readers_take(pieces: list[bytes], at: int, dropped: int, junk: bytes) -> None:
    """Whatever stands in a form: if it is taken at all, python-multipart and the mail parser find the same models."""
    raw = MODEL + b"".join(pieces) + END
    for body in (raw, raw[:at] + junk + raw[at + dropped :]):
        try:
            found = _read(body)
        except InvalidRequest:
            continue
        models = [found.name.encode()] if found is not None else []
        assert _of_python_multipart(body) == models
        assert _of_mail(body) == models


def _of_python_multipart(raw: bytes) -> list[bytes]:
    models: list[bytes] = []
    state = {"field": b"", "value": b"", "is_model": False}

    def end_of_header() -> None:
        if bytes(state["field"]).lower() == b"content-disposition":  # type: ignore[arg-type]  # of bytes
            name = parse_options_header(state["value"])[1].get(b"name")  # type: ignore[arg-type]  # of bytes
            state["is_model"] = name == b"model"
        state["field"] = state["value"] = b""

    def add(name: str) -> object:
        def take(data: bytes, start: int, end: int) -> None:
            state[name] += data[start:end]  # type: ignore[operator]  # of bytes

        return take

    def begin_data() -> None:
        if state["is_model"]:
            models.append(b"")

    def data(piece: bytes, start: int, end: int) -> None:
        if state["is_model"]:
            models[-1] += piece[start:end]

    def end_of_part() -> None:
        state["is_model"] = False

    callbacks = {
        "on_header_field": add("field"),
        "on_header_value": add("value"),
        "on_header_end": end_of_header,
        "on_headers_finished": begin_data,
        "on_part_data": data,
        "on_part_end": end_of_part,
    }
    parser = MultipartParser(b"XyZ", callbacks)  # type: ignore[arg-type]  # its callbacks are typed by name
    try:
        parser.write(raw)
    except FormParserError:
        return [b"refused"]
    return models


def _of_mail(raw: bytes) -> list[bytes]:
    message = message_from_bytes(b"content-type: " + TYPE + b"\r\n\r\n" + raw, policy=HTTP)
    parts = message.get_payload()
    assert isinstance(parts, list) or raw.startswith(END.rstrip())
    return [
        part.get_payload(decode=True)  # type: ignore[misc]  # bytes for what is no multipart
        for part in (parts if isinstance(parts, list) else [])
        if part.get_param("name", header="content-disposition") == "model"  # type: ignore[union-attr]  # a Message
    ]
