"""How much one JSON body may hold: what is counted is what decoding makes, however it is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import BodyTooLarge
from gateway.http.decode import decode_json
from gateway.http.members import COUNTED_FROM_BYTES, MAX_PARTS, check_members

_TEXT = st.text(alphabet='a":,[]{}\\é\n ', max_size=12)
_JSON = st.recursive(
    st.integers() | st.booleans() | _TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_TEXT, inner, max_size=5),
    max_leaves=30,
)


def _num_parts(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(_num_parts, value.values()))
    return 1 + sum(map(_num_parts, value)) if isinstance(value, list) else 0


@given(value=_JSON, piece_bytes=st.integers(2, 40), indent=st.sampled_from([None, 2]), is_ascii=st.booleans())
def test_parts_are_counted_exactly(value: Any, piece_bytes: int, indent: int | None, is_ascii: bool) -> None:
    """Texts with any of JSON's own characters count for nothing, wherever a piece ends."""
    raw = json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode()
    number = _num_parts(value)

    check_members(raw, number + 1, piece_bytes)
    if number:
        with pytest.raises(BodyTooLarge, match="names, objects and lists"):
            check_members(raw, number - 1, piece_bytes)


def test_values_may_be_ten_times_as_many() -> None:
    """A list of tokens is long and cheap."""
    check_members(json.dumps([1] * 20).encode(), 2)
    with pytest.raises(BodyTooLarge, match="20 values"):
        check_members(json.dumps([1] * 22).encode(), 2)


@pytest.mark.parametrize("fill", ["[]", '{"a":1}', '""', "[" * 199 + "]" * 199])
def test_bodies_too_short_to_be_counted_have_few_parts(fill: str) -> None:
    """However dense they are."""
    raw = f"[{','.join([fill] * (COUNTED_FROM_BYTES // (len(fill) + 1) - 1))}]".encode()

    assert len(raw) <= COUNTED_FROM_BYTES
    assert _num_parts(decode_json(raw)) <= MAX_PARTS


def test_body_of_many_names_is_refused_before_it_is_decoded() -> None:
    """Each would take a microsecond and more."""
    names = ",".join(f'"{index}":0' for index in range(MAX_PARTS + 1))
    with pytest.raises(BodyTooLarge):
        decode_json(f"{{{names}}}".encode())


def test_long_text_is_no_member() -> None:
    """Whatever stands in it."""
    text = '[]{},:"\\' * MAX_PARTS

    assert decode_json(json.dumps([text]).encode()) == [text]
