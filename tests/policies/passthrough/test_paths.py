"""No spelling of an operation's path is another call."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import MethodNotAllowed, UnknownPath
from backends.operations import BY_PATH
from policies.passthrough.paths import check_is_no_operation, plain_path, plainest

OPERATIONS = sorted(BY_PATH)
_WIDE = {chr(code): chr(code + 0xFEE0) for code in range(0x21, 0x7F)}
_LOOKS_LIKE = {"s": "\u017f", "k": "\u212a"}


def encoded(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


_LETTER = st.sampled_from(
    [
        str,
        str.upper,
        encoded,
        lambda letter: encoded(letter.upper()),
        lambda letter: encoded(_WIDE[letter]),
        lambda letter: encoded(_LOOKS_LIKE.get(letter, letter)),
    ]
)


@st.composite
def spellings(draw: st.DrawFn) -> tuple[str, str]:
    """An operation's path, and another way of writing it."""
    path = draw(st.sampled_from(OPERATIONS))
    written = [letter if letter == "/" else draw(_LETTER)(letter) for letter in path]
    before = draw(st.sampled_from(["", "", "/v1", "/V1/v1"]))
    end = draw(st.sampled_from(["", "", "/", ".", "%20", "..."]))
    return path, f"{before}{''.join(written)}{end}"


@given(spellings(), st.sampled_from(["POST", "PUT", "PATCH", "DELETE"]))
def test_another_spelling_of_an_operation_is_none_of_its_own(spelling: tuple[str, str], method: str) -> None:
    """Whatever the case, the escapes, the width of letters and what stands behind them."""
    path, written = spelling

    with pytest.raises((UnknownPath, MethodNotAllowed)):
        check_is_no_operation(method, written, plain_path(written), has_body=False)
    assert plainest(plain_path(written)) == path


@pytest.mark.parametrize("path", OPERATIONS)
def test_another_method_of_an_operation_is_refused_but_for_listing(path: str) -> None:
    """GET and HEAD list what was made; no other method asks a model."""
    for method in ("PUT", "PATCH", "DELETE"):
        with pytest.raises(MethodNotAllowed):
            check_is_no_operation(method, path, path, has_body=True)

    check_is_no_operation("GET", path, path, has_body=False)
    check_is_no_operation("HEAD", f"{path}/", f"{path}/", has_body=False)
    with pytest.raises(MethodNotAllowed):
        check_is_no_operation("GET", path, path, has_body=True)


@pytest.mark.parametrize(
    "path",
    ["/", "/messages", "/responses/resp_1", "/chat/completions/id", "/embeddings2", "/x/embeddings", "/chat", "/v1"],
)
def test_other_paths_are_no_operation(path: str) -> None:
    """What lies below or beside is a call of its own."""
    check_is_no_operation("POST", path, plain_path(path), has_body=True)


@pytest.mark.parametrize(
    "path",
    ["/chat/completions;x", "/chat//completions", "/chat%2fcompletions", "/./responses", "/a\\b", "/%2565", "/a%00"],
)
def test_what_servers_read_in_more_than_one_way_is_no_path(path: str) -> None:
    """Parameters of segments, steps, separators, escapes of escapes."""
    with pytest.raises(UnknownPath):
        plain_path(path)
