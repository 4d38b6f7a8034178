"""The error tree: its data is complete, its bodies are OpenAI's in shape, its drawing is true."""

from __future__ import annotations

import json
import logging
import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import errors
from backends.errors import SlipstreamError, UpstreamError, error_body
from backends.stream import StreamEnd

_DRAWN = re.compile(
    r"^    (?P<branches>(?:│   |    )*(?:├── |└── )?)(?P<name>[A-Z]\w+)(?: +(?P<status>\d{3})\b)?", re.M
)


def _tree(root: type[SlipstreamError]) -> list[type[SlipstreamError]]:
    """A class and all below it that `backends.errors` defines, depth first."""
    children = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    return [root, *(below for child in children for below in _tree(child))]


CLASSES = _tree(SlipstreamError)
TYPES = {"invalid_request_error", "server_error", "upstream_error", "rate_limit_error", "insufficient_quota"}
each_class = pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)


@each_class
def test_error_class_has_sound_data(kind: type[SlipstreamError]) -> None:
    """Status, type, code, level and stream end are values that others can rely on."""
    assert 400 <= kind.status <= 599
    assert kind.type in TYPES
    assert kind.code is None or re.fullmatch(r"[a-z_]+", kind.code)
    assert kind.fault in get_args(errors.Fault)
    assert kind.log_level in {logging.INFO, logging.WARNING, logging.ERROR}
    assert StreamEnd(kind.stream_end) is not StreamEnd.CLEAN
    assert kind.__doc__


@each_class
def test_error_class_without_children_has_a_code(kind: type[SlipstreamError]) -> None:
    """Whatever is raised can be told apart by its code; a plain bad request has none, as with OpenAI."""
    if len(_tree(kind)) == 1 and kind is not errors.InvalidRequest:
        assert kind.code


def test_error_codes_are_unique() -> None:
    """One code means one class."""
    codes = [kind.code for kind in CLASSES if kind.code is not None and "code" in vars(kind)]

    assert sorted(codes) == sorted(set(codes))


def test_error_retryable_means_that_nothing_was_sent() -> None:
    """Only failures before any byte went out may be tried again without being asked to."""
    retryable = {kind.__name__ for kind in CLASSES if kind.retryable}

    assert retryable == {"ConnectFailed", "ConnectTimeout", "PoolTimeout"}
    assert all(issubclass(kind, UpstreamError) for kind in CLASSES if kind.retryable)


@each_class
def test_error_body_is_openai_shape(kind: type[SlipstreamError]) -> None:
    """Message, type, param and code, and nothing else."""
    error = kind('not "allowed"', param="messages[0]", retry_after_s=2.5)

    assert json.loads(error.body()) == {
        "error": {"message": 'not "allowed"', "type": kind.type, "param": "messages[0]", "code": kind.code}
    }
    assert (str(error), error.message, error.retry_after_s) == ('not "allowed"', 'not "allowed"', 2.5)


@given(message=st.text(), param=st.none() | st.text(), code=st.none() | st.text())
def test_error_body_survives_any_text(message: str, param: str | None, code: str | None) -> None:
    """Quotes, control characters and any script come out as they went in."""
    body = error_body(message, type="server_error", param=param, code=code)

    assert json.loads(body)["error"] == {"message": message, "type": "server_error", "param": param, "code": code}


def test_error_tree_drawing_lists_exactly_the_classes() -> None:
    """The module's drawing shows each class under its parent, in the order of the code, with its status."""
    path: list[str] = []
    drawn = []
    for match in _DRAWN.finditer(errors.__doc__ or ""):
        depth = len(match["branches"]) // 4
        path = [*path[:depth], match["name"]]
        drawn.append((match["name"], path[-2] if depth else "Exception"))
        if match["status"]:
            assert getattr(errors, match["name"]).status == int(match["status"]), match["name"]

    assert drawn == [(kind.__name__, kind.__bases__[0].__name__) for kind in CLASSES]
