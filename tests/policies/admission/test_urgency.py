"""What callers may say of their own urgency."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import InvalidRequest
from backends.protocol import Priority, Slo
from policies.admission.urgency import read_urgency

SLO = Slo(2.0, 0.125, 0.1, 60.0)


def test_urgency_nothing_leaves_the_route_and_the_key_as_they_are() -> None:
    """Other headers mean nothing here, whatever they say."""
    assert read_urgency(SLO, Priority.LOW, [(b"x-slo", b"1"), (b"priority", b"high")]) == (SLO, Priority.LOW)


def test_urgency_limits_take_the_place_of_the_routes() -> None:
    """A caller's limit for the first token holds however long its prompt is; the others stay."""
    slo, _ = read_urgency(SLO, Priority.NORMAL, [(b"x-slo-ttft-ms", b"500"), (b"x-slo-tpot-ms", b" 12.5 ")])

    assert slo == Slo(0.5, 0.0, 0.0125, 60.0)
    assert slo.first_token_limit_s(100_000) == 0.5


@pytest.mark.parametrize("of_key", Priority)
@pytest.mark.parametrize("asked", Priority)
def test_urgency_priority_only_lowers(of_key: Priority, asked: Priority) -> None:
    """Nobody gets before those whose keys say more."""
    said = asked.name.title().encode()

    assert read_urgency(SLO, of_key, [(b"x-priority", said)])[1] == max(of_key, asked)


@pytest.mark.parametrize("name", [b"x-slo-ttft-ms", b"x-slo-tpot-ms"])
@pytest.mark.parametrize(
    "value", [b"", b"-1", b"0", b"nan", b"inf", b"-inf", b"1e9", b"ten", b"1,5", b"500ms", b"0x10", b"\xff", b"1 2"]
)
def test_urgency_limit_that_cannot_be_is_refused(name: bytes, value: bytes) -> None:
    """Not a positive number of milliseconds of at most an hour: 400, naming the header."""
    with pytest.raises(InvalidRequest) as caught:
        read_urgency(SLO, Priority.NORMAL, [(name, value)])

    assert caught.value.param == name.decode()
    assert name.decode() in caught.value.message


@pytest.mark.parametrize("value", [b"", b"ten", b"0", b"-1", b"highest", b"high,low", b"\xe4"])
def test_urgency_priority_that_is_none_is_refused(value: bytes) -> None:
    """The error says which there are."""
    with pytest.raises(InvalidRequest, match="high, normal, low") as caught:
        read_urgency(SLO, Priority.NORMAL, [(b"x-priority", value)])

    assert caught.value.param == "x-priority"


NAMES = st.sampled_from([b"x-slo-ttft-ms", b"x-slo-tpot-ms", b"x-priority", b"accept"])


@given(st.lists(st.tuples(NAMES, st.binary(max_size=12) | st.floats().map(lambda f: repr(f).encode())), max_size=4))
def test_urgency_any_bytes_are_read_or_refused(headers: list[tuple[bytes, bytes]]) -> None:
    """Never another error, and what comes out can be kept."""
    try:
        slo, priority = read_urgency(SLO, Priority.NORMAL, headers)
    except InvalidRequest:
        return
    assert 0 < slo.first_token_limit_s(1) < math.inf
    assert 0 < slo.token_gap_s <= 3600
    assert priority >= Priority.NORMAL
