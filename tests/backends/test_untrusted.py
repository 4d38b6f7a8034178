"""What upstreams say, field by field: what is wrong counts as absent, and everything else is read."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.untrusted import MAX_COUNT, Count, FieldReader


class _Inner(msgspec.Struct):
    count: Count | None = None
    name: str | None = None


class _Outer(msgspec.Struct):
    id: str
    inner: _Inner | None = None
    other: Count = 7


read = FieldReader(_Outer)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"id":"a","inner":{"count":3,"name":"b"},"other":1}', _Outer("a", _Inner(3, "b"), 1)),
        (b'{"id":"a","inner":{"count":-1,"name":"b"},"other":1}', _Outer("a", _Inner(None, "b"), 1)),
        (b'{"id":"a","inner":{"count":%d},"other":%d}' % (MAX_COUNT, MAX_COUNT + 1), _Outer("a", _Inner(MAX_COUNT), 7)),
        (b'{"id":"a","inner":{"count":1.0,"name":"\xff"}}', _Outer("a", _Inner())),
        (b'{"id":"a","inner":[],"other":true}', _Outer("a")),
        (b'{"id":"a","inner":null,"other":%b}' % (b"9" * 5000), _Outer("a")),
        (b'{"id":"a","inner":{"count":1e999},"x":"\xff"}', _Outer("a", _Inner())),
    ],
)
def test_field_that_is_wrong_counts_as_absent(raw: bytes, expected: _Outer) -> None:
    """And costs no other field."""
    assert read(raw) == expected


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"null", b"{", b'{"inner":{}}', b'{"id":7}', b'{"id":"a","x":' + b"[" * 100_000],
)
def test_what_is_no_such_object_is_one_kind_of_error(raw: bytes) -> None:
    """Callers need to know of one."""
    with pytest.raises(msgspec.DecodeError):
        read(raw)


@given(st.binary() | st.text().map(lambda text: msgspec.json.encode({"id": text, "inner": {"count": text}})))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    """Nothing else comes out."""
    with suppress(msgspec.DecodeError):
        assert read(raw).other == 7
