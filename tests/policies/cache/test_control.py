"""What clients may ask of the cache, and what is ignored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.control import UNRESTRICTED, Control, parse_control
from policies.cache.settings import ClientControl

ALL: tuple[ClientControl, ...] = ("no-cache", "no-store", "max-age")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", UNRESTRICTED),
        ("no-cache", Control(may_read=False)),
        ("No-Cache", Control(may_read=False)),
        ("no-store", Control(may_read=False, may_write=False)),
        ("no-cache, no-store", Control(may_read=False, may_write=False)),
        ("max-age=60", Control(max_age_s=60.0)),
        (' private ,max-age="60" ', Control(max_age_s=60.0)),
        ("max-age=60, max-age=5", Control(max_age_s=5.0)),
        ("max-age=5, max-age=60", Control(max_age_s=5.0)),
        ("max-age=0", Control(may_read=False, max_age_s=0.0)),
    ],
)
def test_parse_control_of_known_directives(value: str, expected: Control) -> None:
    """Each directive means what it means in HTTP."""
    assert parse_control(value, ALL) == expected


@pytest.mark.parametrize(
    "value",
    [
        "max-age",
        "max-age=",
        "max-age=-1",
        "max-age=1.5",
        "max-age=\u0665",
        "max-age=" + "9" * 5000,
        "no-cache=x",
        ",,=",
        "public",
    ],
    ids=lambda value: value[:12],
)
def test_parse_control_of_malformed_directives_is_unrestricted(value: str) -> None:
    """What cannot be understood asks for nothing."""
    assert parse_control(value, ALL) == UNRESTRICTED


@pytest.mark.parametrize("value", ["no-cache", "no-store", "max-age=0"])
def test_parse_control_of_directives_not_honoured_is_unrestricted(value: str) -> None:
    """A route decides what its clients may ask."""
    assert parse_control(value, ()) == UNRESTRICTED


@given(st.text())
def test_parse_control_of_anything_does_not_raise(value: str) -> None:
    """The field is the client's, so it may hold anything."""
    assert parse_control(value, ALL).max_age_s != -1
