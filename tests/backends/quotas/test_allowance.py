"""What is left to a key: as told, less what went out since, plus what came back."""

from __future__ import annotations

import pytest

from backends.quotas.allowance import Allowance, QuotaLeft
from backends.quotas.told import ToldQuota, tells_quota


def test_left_counts_what_went_out_after_the_answer_that_told() -> None:
    """Its own attempt is counted by the upstream already."""
    allowance = Allowance()
    first = allowance.take(100)
    allowance.take(100)
    allowance.note([ToldQuota("requests", 9, 10, None), ToldQuota("tokens", 900, 1000, None)], first, now=0)
    allowance.take(50)

    assert allowance.left(0) == {"requests": QuotaLeft(7, 10), "tokens": QuotaLeft(750, 1000)}


def test_left_believes_the_answer_to_the_newest_attempt() -> None:
    """Answers overtake each other."""
    allowance = Allowance()
    first, second = allowance.take(1), allowance.take(1)
    allowance.note([ToldQuota("requests", 3, 10, None)], second, now=0)
    allowance.note([ToldQuota("requests", 9, 10, None)], first, now=0)

    assert allowance.left(0)["requests"] == QuotaLeft(3, 10)


def test_left_comes_back_evenly_until_it_is_whole() -> None:
    """Not beyond."""
    allowance = Allowance()
    allowance.note([ToldQuota("requests", 0, 60, 30.0)], allowance.take(1), now=100)

    assert allowance.left(110)["requests"].left == pytest.approx(20)
    assert allowance.left(130)["requests"] == QuotaLeft(60, 60)


@pytest.mark.parametrize(
    ("told", "tokens", "expected"),
    [
        ([], 10**9, (True, 1.0)),
        ([ToldQuota("requests", 1, 4, None)], 5, (True, 0.25)),
        ([ToldQuota("requests", 0, 4, None)], 5, (False, 0.0)),
        ([ToldQuota("tokens", 40, 80, None)], 41, (False, 0.5)),
        ([ToldQuota("tokens", 40, 80, None), ToldQuota("requests", 1, 10, None)], 40, (True, 0.1)),
        ([ToldQuota("output_tokens", 0, 80, None)], 40, (True, 0.0)),
        ([ToldQuota("requests", 0, 0, None)], 1, (False, 0.0)),
        ([ToldQuota("requests", 900, 60, None)], 1, (True, 1.0)),
    ],
)
def test_room(told: list[ToldQuota], tokens: int, expected: tuple[bool, float]) -> None:
    """The scarcest kind decides; more left than the limit is believed to be the limit."""
    allowance = Allowance()
    allowance.note(told, allowance.take(0), now=0)

    assert allowance.room(tokens, 0) == expected


def test_a_limit_that_is_not_told_is_the_most_that_was_left() -> None:
    """As with Azure."""
    allowance = Allowance()
    allowance.note([ToldQuota("tokens", 1000, None, None)], allowance.take(0), now=0)
    allowance.note([ToldQuota("tokens", 250, None, None)], allowance.take(0), now=0)

    assert allowance.left(0)["tokens"] == QuotaLeft(250, 1000)


def remaining(number: int) -> list[tuple[bytes, bytes]]:
    """The fields of an answer."""
    fields = [("limit", b"60"), ("remaining", str(number).encode()), ("reset", b"30s")]
    return [(f"x-ratelimit-{name}-requests".encode(), value) for name, value in fields]


def test_fields_that_are_read_later_count_from_when_they_came() -> None:
    """And before what went out between."""
    allowance = Allowance()
    allowance.hear(remaining(0), 1e9, allowance.take(1), now=100)
    allowance.take(1)

    assert allowance.left(110)["requests"].left == pytest.approx(19)


def test_fields_of_an_older_attempt_do_not_take_the_place_of_newer_ones() -> None:
    """Whether those were read meanwhile or not."""
    allowance = Allowance()
    first, second = allowance.take(1), allowance.take(1)
    allowance.hear(remaining(3), 1e9, second, now=0)
    allowance.hear(remaining(9), 1e9, first, now=0)
    unread = allowance.left(0)["requests"].left
    allowance.hear(remaining(9), 1e9, first, now=0)

    assert unread == allowance.left(0)["requests"].left == 3


@pytest.mark.parametrize("name", ["limit-requests", "reset-requests", "remaining-", "remaining-bananas-of-next-year"])
def test_an_answer_that_says_nothing_of_what_is_left_tells_nothing(name: str) -> None:
    """So it cannot take the place of one that does."""
    assert tells_quota(remaining(1))
    assert not tells_quota([(b"x-ratelimit-" + name.encode(), b"5")])
