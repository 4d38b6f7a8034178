"""Reading an uploaded file off its form."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.types import Message

from backends.errors import BodyTooLarge, ClientGone, InvalidRequest, SlipstreamError
from gateway.batches.upload import Upload, receive_upload
from gateway.http.incoming import Incoming, Pace
from tests.support.clock import FakeClock

MAX_BYTES = 4 * 1024**2


def form(content: bytes, *, filename: str = "in.jsonl") -> bytes:
    """A form with a purpose and a file."""
    return (
        b'----b0\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'----b0\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n%b\r\n----b0--\r\n" % (filename.encode(), content)
    )


async def upload(part: Path, *pieces: bytes, content_type: bytes = b"multipart/form-data; boundary=--b0") -> Upload:
    """Read a form that comes in these pieces; without the last one whole, the client leaves."""
    waiting: list[Message] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    waiting.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Message:
        return waiting.pop(0)

    return await receive_upload(
        receive, Incoming([(b"content-type", content_type)]), part, MAX_BYTES, Pace(FakeClock(), 1024)
    )


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300), size=st.integers(1, 400))
async def test_upload_in_any_pieces_is_the_same_file(tmp_path: Path, content: bytes, size: int) -> None:
    """Boundaries may be cut anywhere, and the content may look like anything but one."""
    part = tmp_path / "part"
    part.unlink(missing_ok=True)
    if b"----b0" in content:
        return
    whole = form(content)
    found = await upload(part, *(whole[start : start + size] for start in range(0, len(whole), size)))

    assert part.read_bytes() == content
    assert found == Upload({"purpose": "batch"}, "in.jsonl")


async def test_upload_of_much_goes_to_disk_on_its_way(tmp_path: Path) -> None:
    """What has come is written before the rest is there."""
    content = b"0123456789abcdef" * (3 * 1024**2 // 16)
    whole = form(content)
    await upload(tmp_path / "part", *(whole[start : start + 65536] for start in range(0, len(whole), 65536)))

    assert (tmp_path / "part").read_bytes() == content


@pytest.mark.parametrize(
    ("body", "content_type", "error"),
    [
        (form(b"x"), b"application/json", InvalidRequest),
        (form(b"x"), b"multipart/form-data", InvalidRequest),
        (form(b"x")[:-10], b"multipart/form-data; boundary=--b0", InvalidRequest),
        (form(b"x").replace(b'name="file"', b'name="other"'), b"multipart/form-data; boundary=--b0", InvalidRequest),
        (b"garbage", b"multipart/form-data; boundary=--b0", InvalidRequest),
        (b"", b"multipart/form-data; boundary=--b0", InvalidRequest),
        (form(b"x" * (MAX_BYTES + 1)), b"multipart/form-data; boundary=--b0", BodyTooLarge),
        (form(b"x").replace(b"batch", b"b" * 5000), b"multipart/form-data; boundary=--b0", InvalidRequest),
    ],
)
async def test_upload_that_is_no_form_with_a_file_is_refused(
    tmp_path: Path, body: bytes, content_type: bytes, error: type[SlipstreamError]
) -> None:
    """With an error that the client can act on."""
    with pytest.raises(error):
        await upload(tmp_path / "part", body, content_type=content_type)


async def test_upload_of_a_client_that_leaves_ends(tmp_path: Path) -> None:
    """Nobody is left to answer."""

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    incoming = Incoming([(b"content-type", b"multipart/form-data; boundary=x")])
    with pytest.raises(ClientGone):
        await receive_upload(receive, incoming, tmp_path / "part", MAX_BYTES, Pace(FakeClock(), 1024))
