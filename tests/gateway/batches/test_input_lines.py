"""Reading a line of a batch's input."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.batches.input_lines import BadLine, encode_body, read_line, read_request

ENDPOINT = "/v1/chat/completions"
GOOD: dict[str, Any] = {
    "custom_id": "a",
    "method": "POST",
    "url": ENDPOINT,
    "body": {"model": "m", "messages": [], "x_unknown": 1.50},
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def bad(line: object) -> tuple[str, str | None]:
    """The code and the field of a line's problem."""
    with pytest.raises(BadLine) as found:
        read_line(json.dumps(line).encode(), ENDPOINT)
    return found.value.code, found.value.param


def test_line_that_is_good_gives_its_request() -> None:
    """The body stays as it was written, unknown fields and numbers too."""
    raw = json.dumps(GOOD).replace("1.5", "1.50").encode()
    request = read_line(raw, ENDPOINT)

    assert (request.custom_id, request.model) == ("a", "m")
    assert b'"x_unknown": 1.50' in request.raw
    assert encode_body(request.body, "other") == b'{"model":"other","messages":[],"x_unknown":1.50}'
    assert read_request(raw).raw == request.raw


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"custom_id": ""}, "invalid_custom_id", "custom_id"),
        ({"custom_id": "x" * 513}, "invalid_custom_id", "custom_id"),
        ({"custom_id": 7}, "invalid_value", "custom_id"),
        ({"method": "post"}, "invalid_method", "method"),
        ({"url": "/v1/embeddings"}, "invalid_url", "url"),
        ({"url": None}, "invalid_value", "url"),
        ({"body": "text"}, "invalid_value", "body"),
        ({"body": {}}, "missing_required_parameter", "body.model"),
        ({"body": {"model": ["m"]}}, "invalid_value", "body.model"),
        ({"body": {"model": "a\nb"}}, "invalid_value", "body.model"),
        ({"body": {"model": "m", "stream": True}}, "invalid_value", "body.stream"),
    ],
)
def test_line_with_a_bad_field_names_it(change: dict[str, Any], code: str, param: str) -> None:
    """Each field has its own complaint."""
    assert bad({**GOOD, **change}) == (code, param)


@pytest.mark.parametrize("name", ["custom_id", "method", "url", "body"])
def test_line_without_a_field_names_it(name: str) -> None:
    """All four are needed."""
    assert bad({key: value for key, value in GOOD.items() if key != name}) == ("missing_required_parameter", name)


def test_line_with_stream_false_is_good() -> None:
    """Some clients always write it."""
    line = {**GOOD, "body": {"model": "m", "stream": False}}

    assert read_line(json.dumps(line).encode(), ENDPOINT).model == "m"


@given(raw=st.binary(max_size=200))
@example(raw=b'{"custom_id": "\xff"}')
@example(raw=b'{"custom_id": "a", "x": ' + b"[" * 5000)
@example(raw=b"\xef\xbb\xbf{}")
def test_line_of_any_bytes_is_read_or_refused(raw: bytes) -> None:
    """Nothing but BadLine comes of it."""
    with suppress(BadLine):
        assert read_line(raw, ENDPOINT).model


@given(fields=st.dictionaries(st.sampled_from(["custom_id", "method", "url", "body", "other"]), VALUES))
def test_line_of_any_object_is_read_or_refused(fields: dict[str, Any]) -> None:
    """Whatever stands in its fields."""
    with suppress(BadLine):
        assert read_line(json.dumps(fields).encode(), ENDPOINT).model


@given(custom_id=st.text(min_size=1, max_size=20), body=st.dictionaries(st.text(max_size=8), VALUES, max_size=4))
def test_line_read_again_is_the_same(custom_id: str, body: dict[str, Any]) -> None:
    """What the check accepted, the answering reads alike, and another model's name changes nothing else."""
    body = {**{name: value for name, value in body.items() if name != "stream"}, "model": "m"}
    raw = json.dumps({**GOOD, "custom_id": custom_id, "body": body}, ensure_ascii=False)
    request = read_line(raw.encode(), ENDPOINT)

    assert read_request(raw.encode()) == request
    assert request.custom_id == custom_id
    assert json.loads(encode_body(request.body, "other")) == {**body, "model": "other"}
