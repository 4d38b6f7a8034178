"""Entries as bytes: what was written comes back, anything else is no entry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.charges.usage import Usage
from policies.cache.entry import _MAGIC, AnswerForm, Entry, pack_entry, unpack_entry
from policies.cache.sealed import seal

KEY = b"k" * 32
ENTRY = Entry(AnswerForm.SSE, b"data: x\n\n" * 3, b"text/event-stream", 1.5, Usage(1, 2, 3), (9, 18), True)


@pytest.mark.parametrize("entry", [ENTRY, Entry(AnswerForm.JSON, b"{}", b"application/json", 0.0)], ids=["sse", "json"])
def test_unpack_entry_of_packed_entry_is_the_same(entry: Entry) -> None:
    """Nothing is lost on the way."""
    assert unpack_entry(KEY, pack_entry(KEY, entry)) == entry


def test_unpack_entry_under_another_key_is_none() -> None:
    """A value that was copied to another key does not answer there."""
    assert unpack_entry(b"x" * 32, pack_entry(KEY, ENTRY)) is None


def test_unpack_entry_of_truncated_value_is_none() -> None:
    """No beginning of a value is taken for the whole."""
    value = pack_entry(KEY, ENTRY)

    assert all(unpack_entry(KEY, value[:length]) is None for length in range(len(value)))


def test_unpack_entry_with_one_bit_flipped_is_none() -> None:
    """Damage anywhere is noticed."""
    value = pack_entry(KEY, ENTRY)
    damaged = [value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :] for at in range(len(value))]

    assert all(unpack_entry(KEY, other) is None for other in damaged)


def test_unpack_entry_of_another_version_is_none() -> None:
    """Values of an earlier or later release are not misread."""
    assert unpack_entry(KEY, pack_entry(KEY, ENTRY).replace(b"answer 1", b"answer 2")) is None


@pytest.mark.parametrize("content", [b"", b"\xc0", b"\x91\xa4json", b"\xff" * 20])
def test_unpack_entry_of_another_content_is_none(content: bytes) -> None:
    """A value that is whole but holds something else is not an entry."""
    assert unpack_entry(KEY, seal(_MAGIC, KEY, content)) is None


@given(st.binary())
def test_unpack_entry_of_anything_does_not_raise(value: bytes) -> None:
    """Whatever lies under our key."""
    assert unpack_entry(KEY, value) is None
