"""What header fields tell of quotas, in the words of each provider, and what of their lies is not believed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.quotas.told import MAX_RESET_S, ToldQuota, duration_s, told_quotas

NOW_S = 1_764_000_000.0
"""2025-11-24T16:00:00Z."""


def fields(**named: str) -> list[tuple[bytes, bytes]]:
    """Header fields, with `-` for `_`."""
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]


def test_told_of_openai_has_both_kinds() -> None:
    """Durations as Go writes them."""
    told = told_quotas(
        fields(
            x_ratelimit_limit_requests="60",
            x_ratelimit_limit_tokens="150000",
            x_ratelimit_remaining_requests="59",
            x_ratelimit_remaining_tokens="149984",
            x_ratelimit_reset_requests="1s",
            x_ratelimit_reset_tokens="6m0s",
        ),
        NOW_S,
    )

    assert told == [ToldQuota("requests", 59, 60, 1.0), ToldQuota("tokens", 149984, 150000, 360.0)]


def test_told_of_anthropic_has_four_kinds_and_moments() -> None:
    """RFC 3339, measured from the answer's own date, whatever our clock says."""
    named = {}
    for kind in ("requests", "tokens", "input-tokens", "output-tokens"):
        named |= {f"anthropic-ratelimit-{kind}-limit": "50", f"anthropic-ratelimit-{kind}-remaining": "7"}
        named[f"anthropic-ratelimit-{kind}-reset"] = "2025-11-24T16:00:30Z"

    told = told_quotas(fields(date="Mon, 24 Nov 2025 16:00:10 GMT", **named), NOW_S + 5000)

    kinds = ["requests", "tokens", "input_tokens", "output_tokens"]
    assert [(each.kind, each.left, each.limit, each.whole_in_s) for each in told] == [(k, 7, 50, 20.0) for k in kinds]


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"x-ratelimit-limit-req-minute": "720", "x-ratelimit-remaining-req-minute": "717"}, ("requests", 717, 720)),
        ({"x-ratelimit-remaining-tokens-minute": "49"}, ("tokens", 49, None)),
        ({"x-ratelimit-remaining-requests-day": "900"}, ("requests", 900, None)),
        ({"x-ratelimit-remaining-tokens": "19913"}, ("tokens", 19913, None)),
    ],
    ids=["mistral", "mistral tokens", "cerebras", "azure"],
)
def test_told_in_other_words(named: dict[str, str], expected: tuple[str, int, int | None]) -> None:
    """Some say neither a limit nor when it is whole again."""
    assert told_quotas(fields(**named), NOW_S) == [ToldQuota(*expected, None)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("2m59.56s", 179.56),
        ("120ms", 0.12),
        ("1h0m0.5s", 3600.5),
        ("33011.5", 33011.5),
        ("0", 0.0),
        (str(int(NOW_S) + 30), 30.0),
        (str((int(NOW_S) + 30) * 1000), 30.0),
        ("2025-11-24T16:00:30.250Z", 30.25),
        ("2025-11-24T17:00:30+01:00", 30.0),
        ("2020-01-01T00:00:00Z", 0.0),
    ],
)
def test_told_resets(reset: str, seconds: float) -> None:
    """Durations, seconds, and moments; one that is over is now."""
    (told,) = told_quotas(fields(x_ratelimit_remaining_requests="1", x_ratelimit_reset_requests=reset), NOW_S)

    assert told.whole_in_s == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    "reset",
    ["", "-1s", "1e9", "nan", "inf", "soon", "1s1", "s", "9999h", "2999-01-01T00:00:00Z", "0001-01-01", "9" * 99],
)
def test_told_resets_that_nobody_can_mean_are_none(reset: str) -> None:
    """What is left is believed all the same."""
    (told,) = told_quotas(fields(x_ratelimit_remaining_requests="1", x_ratelimit_reset_requests=reset), NOW_S)

    assert told == ToldQuota("requests", 1, None, told.whole_in_s)
    assert told.whole_in_s in (None, 0.0)


@pytest.mark.parametrize("reset", ["86401", "100000", "2678400", "999999999", "25h"])
def test_told_waits_of_more_than_a_day_are_no_moments_long_ago(reset: str) -> None:
    """Nor is what is used up whole at once."""
    (told,) = told_quotas(fields(x_ratelimit_remaining_requests="0", x_ratelimit_reset_requests=reset), NOW_S)

    assert told == ToldQuota("requests", 0, None, None)


@pytest.mark.parametrize("left", ["", "-1", "nan", "inf", "1e3", "0x10", "٣", "9" * 20, "1,000", "1;w=60"])
def test_told_of_what_is_left_that_is_no_number_tells_nothing(left: str) -> None:
    """Neither does a limit alone."""
    named = {"x-ratelimit-remaining-requests": left, "x-ratelimit-limit-requests": "5"}

    assert told_quotas([(name.encode(), value.encode()) for name, value in named.items()], NOW_S) == []


def test_told_twice_the_first_counts() -> None:
    """A proxy behind the provider may add its own."""
    field = b"x-ratelimit-remaining-requests"

    assert told_quotas([(field, b"3"), (field, b"900")], NOW_S) == [ToldQuota("requests", 3, None, None)]


_KNOWN = st.sampled_from(
    [
        *(b"x-ratelimit-%b-%b" % (f, k) for f in (b"limit", b"remaining", b"reset") for k in (b"requests", b"tokens")),
        *(b"anthropic-ratelimit-input-tokens-%b" % f for f in (b"limit", b"remaining", b"reset")),
        b"date",
        b"retry-after",
    ]
)
_VALUES = st.one_of(
    st.binary(max_size=80),
    st.text("0123456789.smhdTZ:-+eE ", max_size=30).map(str.encode),
    st.datetimes().map(lambda moment: moment.isoformat().encode()),
    st.floats().map(lambda number: str(number).encode()),
    st.integers().map(lambda number: str(number).encode()),
)


@given(st.lists(st.tuples(_KNOWN, _VALUES), max_size=12), st.floats(0, 1e11))
def test_told_is_in_bounds_whatever_is_said(headers: list[tuple[bytes, bytes]], wall_s: float) -> None:
    """Never an error, never a number that arithmetic would suffer from."""
    for told in told_quotas(headers, wall_s):
        assert 0 <= told.left < 1e13
        assert told.limit is None or 0 <= told.limit < 1e13
        assert told.whole_in_s is None or 0 <= told.whole_in_s <= MAX_RESET_S


@given(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_durations_read_as_they_are_written(hours: int, minutes: int, seconds: int, milliseconds: int) -> None:
    """Every form of Go's `Duration.String` below a day."""
    written = f"{hours}h{minutes}m{seconds}.{milliseconds:03}s".encode()

    read = duration_s(written)

    assert read is not None
    assert math.isclose(read, hours * 3600 + minutes * 60 + seconds + milliseconds / 1000, abs_tol=1e-6)
