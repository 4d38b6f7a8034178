"""Which fields of a client travel, and that whatever travels parts callers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.header_names import EVERY_HEADER, NO_HEADERS, TRACE_HEADERS, HeaderNames

CREDENTIALS = [
    b"x-goog-api-key", b"openai-organization", b"openai-project", b"api-key", b"x-api-key", b"authorization",
    b"proxy-authorization", b"x-amz-security-token", b"x-amz-date", b"cookie", b"x-auth-token",
    b"ocp-apim-subscription-key", b"x_goog_api_key", b"openai_organization", b"x_amz_date", b"x-forwarded-user",
]  # fmt: skip
_NAMES = st.one_of(
    st.sampled_from([*CREDENTIALS, *TRACE_HEADERS, b"accept-language", b"openai-beta", b"x-team", b"x_team", b"x-own"]),
    st.from_regex(rb"[a-z0-9_-]{1,20}", fullmatch=True),
)
_GLOBS = st.lists(st.sampled_from(["openai-beta", "x-*", "*", "X-Team", "accept-*", "x_*"]), max_size=3)


def _taken(names: HeaderNames, name: bytes) -> bool:
    return bool(names.taken([(name, b"v")]))


def _travels(names: HeaderNames, name: bytes) -> bool:
    return bool(names.travelling([(name, b"v")]))


@given(name=_NAMES, globs=_GLOBS, others=_GLOBS)
def test_whatever_travels_parts_callers_or_belongs_to_a_trace(name: bytes, globs: list[str], others: list[str]) -> None:
    """Also where several backends of one route take different ones: the route's names cover each of theirs."""
    one, other = HeaderNames(globs, replaced=[b"x-own"]), HeaderNames(others)
    route = one | other

    for backend in (one, other, route):
        if _travels(backend, name):
            assert _taken(route, name) or name in TRACE_HEADERS


@pytest.mark.parametrize("name", CREDENTIALS)
def test_no_wildcard_takes_a_credential(name: bytes) -> None:
    """Nor an account's name, however spelt."""
    assert not _travels(HeaderNames(["*", "x-*", "openai-*", "x_*", "openai_*"]), name)


def test_a_name_in_full_is_the_operators_word() -> None:
    """Whoever wants the client's own project sent on says so."""
    assert _taken(HeaderNames(["OpenAI-Project"]), b"openai-project")


@pytest.mark.parametrize("name", [b"x-team", b"x_team", b"x-team_"[:6]])
@pytest.mark.parametrize("globs", [["x-team", "x_team"], ["x*"], ["*"]], ids=str)
def test_what_the_operator_sets_replaces_the_clients(name: bytes, globs: list[str]) -> None:
    """With an underscore too: servers that make variables of fields take both for one."""
    assert not _travels(HeaderNames(globs, replaced=[b"X-Team"]), name)


def test_every_and_none_are_what_they_say() -> None:
    """Whoever does not tell what it reads is taken to read all."""
    assert _taken(EVERY_HEADER, b"anything")
    assert not _taken(NO_HEADERS, b"anything")
    assert _taken(NO_HEADERS | EVERY_HEADER, b"anything")
    assert _travels(NO_HEADERS, b"traceparent")
