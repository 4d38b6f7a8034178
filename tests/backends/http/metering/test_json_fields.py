"""Fields of JSON that comes in pieces, against a reader that has all of it."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.http.metering.json_fields import FieldScanner, Wanted

WANTED: Wanted = {b"usage": None, b"type": None, b"response": {b"usage": None}}
_NAMES = st.sampled_from(["usage", "type", "response", "x", 'a"b', "us\\age", "", "message"]) | st.text(max_size=6)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=12)
    | st.sampled_from(['"usage":{}', "\\", '\\"', "}"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=25,
)
_OBJECTS = st.dictionaries(_NAMES, _VALUES, max_size=6)
_CUTS = st.lists(st.integers(0, 2_000), max_size=12)


def scanned(raw: bytes, cuts: list[int]) -> dict[bytes, Any]:
    """What is found where the bytes are cut at these places."""
    scanner = FieldScanner(WANTED)
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    for begin, end in pairwise(places):
        scanner.feed(raw[begin:end])
    return {name: json.loads(value) for name, value in scanner.found.items()}


@given(_OBJECTS, _CUTS, st.booleans(), st.sampled_from([None, 1]))
def test_fields_are_found_where_they_belong(body: dict[str, Any], cuts: list[int], ascii: bool, indent: int) -> None:
    """At the top and within `response`, however deep the same names stand elsewhere, wherever the pieces are cut."""
    raw = json.dumps(body, ensure_ascii=ascii, indent=indent).encode("utf-8", "surrogatepass")
    expected = {}
    for name, value in body.items():
        if name in ("usage", "type"):
            expected[name.encode()] = value
        if name == "response" and isinstance(value, dict) and "usage" in value:
            expected[b"usage"] = value["usage"]

    assert scanned(raw, cuts) == expected
    assert scanned(raw, list(range(len(raw)))) == expected


@given(st.binary(max_size=300) | st.text('{}[]",:\\ua ', max_size=60).map(str.encode), _CUTS)
def test_no_bytes_can_hurt(raw: bytes, cuts: list[int]) -> None:
    """What is no JSON is passed over; whatever is found then means nothing."""
    scanner = FieldScanner(WANTED)
    for cut in cuts:
        scanner.feed(raw[cut % (len(raw) + 1) :])
    scanner.feed(raw)


@pytest.mark.parametrize("raw", [b"", b"  ", b'[{"usage":1}]', b'"usage"', b'x{"usage":1}', b'{"a":[{"usage":1}]}'])
def test_other_json_has_none(raw: bytes) -> None:
    """Only an object's own fields count."""
    assert scanned(raw, []) == {}


def test_a_later_field_wins_and_one_that_is_too_long_is_none() -> None:
    """As readers of JSON have it; and nothing grows beyond a bound."""
    assert scanned(b'{"usage":1,"usage":{"a":[2]}}', [3, 9]) == {b"usage": {"a": [2]}}
    assert scanned(b'{"usage":"%b","type":3}' % (b"x" * 90_000), [100, 70_000]) == {b"type": 3}


@pytest.mark.alone
@pytest.mark.parametrize("filling", [b'"' + b"x" * 4_000_000 + b'"', b"[" * 30_000, b'"' + b"\\" * 2_000_000 + b'"'])
@pytest.mark.timed
def test_size_is_no_trouble(filling: bytes) -> None:
    """Megabytes of a picture, depth, and escapes take a time that grows no faster than they do."""
    raw = b'{"data":' + filling + b',"usage":{"a":1}}'
    scanner = FieldScanner(WANTED)
    began = time.process_time()
    for begin in range(0, len(raw), 65_536):
        scanner.feed(raw[begin : begin + 65_536])

    assert time.process_time() - began < 1.0
