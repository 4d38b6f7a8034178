"""Changing one field of a JSON body, and not one other byte of it."""

from __future__ import annotations

import json
from typing import Any

import jiter
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.http.splice import ask_for_usage, set_field

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.text() | st.just("model") | st.just('"model":'),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "a", "}", '"']), inner, max_size=3)
    ),
    max_leaves=8,
)
_BODIES = st.dictionaries(
    st.sampled_from(["model", "messages", "stream", "x", "é", 'q"', "stream_options"]), _VALUES, max_size=5
)


@st.composite
def written_bodies(draw: st.DrawFn) -> bytes:
    """A JSON object with any white space and any escaping."""
    body = draw(_BODIES)
    text = json.dumps(body, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1, "\t"])))
    return draw(st.sampled_from([b"", b" ", b"\n\t"])) + text.encode()


@given(raw=written_bodies(), name=st.sampled_from(["model", "new", 'q"']), value=_VALUES)
def test_set_field_changes_only_that_field(raw: bytes, name: str, value: Any) -> None:
    """Decoded, the result is the old object with that field set."""
    body: dict[str, Any] = jiter.from_json(raw)

    changed = jiter.from_json(set_field(raw, body, name, value), catch_duplicate_keys=True)

    assert changed == {**body, name: value}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"model":"a", "x" : 1.0}', b'{"model":"zz", "x" : 1.0}'),
        (b'{"x":{"model":"b"},"model" : "a" }', b'{"x":{"model":"b"},"model" : "zz" }'),
        (b'{"mod\\u0065l":"a","y":1e2}', b'{"mod\\u0065l":"zz","y":1e2}'),
        (b'{"a":"model","model":null\n}', b'{"a":"model","model":"zz"\n}'),
        (b'{"model":["a",{"model":"b"}],"z":[]}', b'{"model":"zz","z":[]}'),
        (b"{}", b'{"model":"zz"}'),
        (b' {"z": 0.10}', b' {"model":"zz","z": 0.10}'),
    ],
)
def test_set_field_leaves_every_other_byte(raw: bytes, expected: bytes) -> None:
    """White space, order, escapes and the way numbers are written stay."""
    assert set_field(raw, jiter.from_json(raw), "model", "zz") == expected


@given(raw=written_bodies())
def test_ask_for_usage_keeps_the_other_options(raw: bytes) -> None:
    """The usage chunk is asked for, and nothing else is changed."""
    body: dict[str, Any] = jiter.from_json(raw)
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        return

    changed = jiter.from_json(ask_for_usage(raw, body), catch_duplicate_keys=True)

    assert changed == {**body, "stream_options": {**(options or {}), "include_usage": True}}
