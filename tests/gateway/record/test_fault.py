"""Whose fault a failure is: who can do something about it."""

from __future__ import annotations

import pytest

from backends.errors import (
    BudgetSpent,
    Fault,
    InternalError,
    LimitReached,
    Overloaded,
    SlipstreamError,
    StreamStalled,
    UpstreamRejectedKey,
)
from backends.stream import StreamEnd
from gateway.record.fault import fault_of


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (LimitReached, "client"),
        (BudgetSpent, "client"),
        (Overloaded, "gateway"),
        (InternalError, "gateway"),
        (UpstreamRejectedKey, "gateway"),
        (StreamStalled, "upstream"),
    ],
)
def test_error_of_the_gateway_says_whose_it_is(error: type[SlipstreamError], fault: Fault) -> None:
    """Not its status: a 429 may be a limit of the client's, or too little room here."""
    assert fault_of(error.status, error.fault, StreamEnd.ERROR) == fault


@pytest.mark.parametrize(
    ("status", "end", "fault"),
    [
        (400, StreamEnd.CLEAN, "client"),
        (422, StreamEnd.CLEAN, "client"),
        (401, StreamEnd.CLEAN, "upstream"),
        (429, StreamEnd.CLEAN, "upstream"),
        (503, StreamEnd.CLEAN, "upstream"),
        (200, StreamEnd.UPSTREAM_CUT, "upstream"),
        (200, StreamEnd.CLIENT_GONE, "client"),
        (499, StreamEnd.ERROR, "client"),
    ],
)
def test_answer_of_an_upstream_says_whose_it_is(status: int, end: StreamEnd, fault: Fault) -> None:
    """Its refusal of what the client has sent is the client's; its refusal of the gateway is its own."""
    assert fault_of(status, None, end) == fault


def test_client_that_leaves_has_itself_broken_off() -> None:
    """Whatever the upstream does afterwards."""
    assert fault_of(200, "upstream", StreamEnd.CLIENT_GONE) == "client"
